"""Claims against the naive model: first deliveries of a partition are in offset order within a priority (and within a
tenant, in a fair topic); settled or unsettled messages below do not block others; and retries get exactly their share
while fresh messages wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.positions import Places
from tests.simulation.checks.queues import GroupModel, QueuesCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.operation import Operation


class _Share:
    """The deliveries of a partition since messages of both kinds, or fresh ones, were first left over."""

    __slots__ = ("fresh", "retries")

    def __init__(self) -> None:
        self.fresh = 0
        self.retries = 0


class ClaimsCheck:
    """Judges claims when they are answered; frames show the kind of each delivery."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._limits = limits
        self._first: dict[tuple[int, int], list[int]] = {}  # first deliveries of the last frame, by (group, log)
        self._again: dict[tuple[int, int], int] = {}  # and how many others
        self._disturbed = False  # whether that frame did something else too
        self._judged = True
        self._both: dict[tuple[int, int], _Share] = {}
        self._some: dict[tuple[int, int], _Share] = {}

    def begin(self) -> None:
        """A new frame. A claim without a reply is not checked."""
        if not self._judged:
            for key in (*self._first, *self._again):
                self._start_over(key)
        self._judged = False
        self._first.clear()
        self._again.clear()
        self._disturbed = False

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {f.Leased: self._leased, f.Failed: self._other, f.Settled: self._other, f.GroupSought: self._sought}

    def _other(self, fact: f.Fact, op: Operation) -> None:
        self._disturbed = True

    def _sought(self, fact: f.GroupSought, op: Operation) -> None:
        self._start_over((fact.group_id, fact.log_id))

    def _start_over(self, key: tuple[int, int]) -> None:
        self._both.pop(key, None)
        self._some.pop(key, None)

    def _leased(self, fact: f.Leased, op: Operation) -> None:
        """Called before the places move."""
        places = self._queues.groups[fact.group_id].places[fact.log_id]
        key = fact.group_id, fact.log_id
        for first, end in fact.ranges:
            for offset in range(first, end):
                if offset in places.resting:
                    self._again[key] = self._again.get(key, 0) + 1
                else:
                    self._first.setdefault(key, []).append(offset)

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Claimed: self._claimed}

    def _claimed(self, op: Operation, reply: Claimed) -> None:
        command = op.command
        group = self._queues.groups.get(reply.group_id)
        if not isinstance(command, c.Claim) or group is None or group.paused or not (op.own or not reply.deliveries):
            return
        if command.task is not None or command.label is not None:
            for log_id in group.places:
                self._start_over(
                    (reply.group_id, log_id)
                )  # messages that the filter excludes are left for another reason
            return
        config = self._queues.configs.get(group.topic) or f.TopicConfig()
        given = sum(delivery.end - delivery.first for delivery in reply.deliveries)
        cut = command.max_bytes > 0 and 0 < given < command.max_messages  # its bytes may have been too few for more
        for log_id, places in group.places.items():
            fresh = self._fresh(op, group, places)
            self._order(op, group, places, fresh, reply, config)
            room = (config.in_flight_max or self._limits.in_flight_max) - len(places.held)
            is_short = given < command.max_messages and not cut
            if is_short and room > 0 and fresh and not (self._disturbed or config.history):
                raise Violation("gaps", f"{op}: {sorted(fresh)[:5]} of log {log_id} could be delivered and were not")
            if cut:
                self._start_over((reply.group_id, log_id))  # the share is one of bytes too
            else:
                self._balance(op, group, places, fresh)
        self._judged = self._judged or op.own

    def _durable_end(self, op: Operation, places: Places) -> int:
        """At the decision of the claim."""
        log = self._ledger.logs[places.log_id]
        end = log.end
        while end > max(places.floor, log.start) and log.lsn_of(end - 1) > op.seen_lsn:
            end -= 1
        return end

    def _fresh(self, op: Operation, group: GroupModel, places: Places) -> set[int]:
        """Durable messages that were never delivered and may be delivered now."""
        log = self._ledger.logs[places.log_id]
        end = self._durable_end(op, places)
        known = places.attempts.keys() - places.unseen
        fresh = set(range(max(places.floor, log.start), end)) - known - places.settled - places.resting.keys()
        if not log.dead_of:
            marks = self._queues.marks.get(places.log_id, {})
            fresh = {n for n in fresh if n not in marks or not 0 < marks[n].deadline_ms <= op.at_ms}
        return fresh

    def _order(
        self, op: Operation, group: GroupModel, places: Places, fresh: set[int], reply: Claimed, config: f.TopicConfig
    ) -> None:
        marks = self._queues.marks.get(places.log_id, {})
        tops: dict[object, int] = {}
        first = set(self._first.get((group.group_id, places.log_id), ())) if op.own else set()
        given = (
            n
            for delivery in reply.deliveries
            if delivery.log_id == places.log_id
            for n in range(delivery.first, delivery.end)
        )
        for offset in given:
            if offset in first:
                line = self._line(marks.get(offset), config)
                if offset < tops.get(line, -1):
                    raise Violation("Q9", f"{op}: offset {offset} of log {places.log_id} came after {tops[line]}")
                tops[line] = offset
        for offset in fresh:
            line = self._line(marks.get(offset), config)
            if offset < tops.get(line, -1):
                raise Violation("Q9", f"{op}: offset {offset} of log {places.log_id} was left and {tops[line]} given")

    def _line(self, mark: f.RecordSchedule | None, config: f.TopicConfig) -> object:
        if mark is None:
            return 0, ""
        return mark.priority, mark.tenant if config.fair else ""

    def _balance(self, op: Operation, group: GroupModel, places: Places, fresh: set[int]) -> None:
        """While both are left over, retries have exactly their share, give or take one message; while something fresh
        is left over, not more than it."""
        key = group.group_id, places.log_id
        if (
            self._disturbed
        ):  # a frame holds a limited number of dead letters: fresh messages may be left for the next one
            self._start_over(key)
            return
        end = self._durable_end(op, places)
        due = [n for n, at_ms in places.resting.items() if at_ms <= op.at_ms and n < end]
        ratio = self._limits.retry_ratio
        for shares, counts, bound in ((self._both, bool(fresh and due), True), (self._some, bool(fresh), False)):
            if not counts:
                shares.pop(key, None)
                continue
            share = shares.setdefault(key, _Share())
            share.fresh += len(self._first.get(key, ())) if op.own else 0
            share.retries += self._again.get(key, 0) if op.own else 0
            surplus = share.retries - ratio * (share.retries + share.fresh)
            if surplus > 1 or (bound and surplus < -1):
                summary = f"{share.retries} retries and {share.fresh} fresh messages were given"
                raise Violation("retry share", f"{op}: {summary} of log {places.log_id}; the share is {ratio}")
