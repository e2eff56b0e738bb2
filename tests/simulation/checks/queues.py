"""The queue side, against a naive model: Q1 (every message in exactly one place), Q2 (an ack stays), Q3 (nothing is
forgotten), Q4 (one holder, fenced), Q5 (no early loss of a lease), Q6 (attempts), Q8 (in-flight bound), Q9 (order),
Q10 (back-off), deadlines and delays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model.facts import ClockSet, LaneKey
from driftq.core.model.job_facts import MadeDue
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, OutcomeReply, Refusal, Settlement
from driftq.core.state.state import State
from driftq.core.transitions.retry import is_exhausted
from driftq.wire.errors import Code
from driftq.wire.message import RetryPolicy, decode_head
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.positions import Holding, Places
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation

ACK_TIMEOUT = "ack_timeout"
LOOK_AGAIN_MS = 100


def _settling_parts(command: Any) -> tuple[Any, ...]:
    """The commands that settle messages as a part of this one, or this one."""
    if isinstance(command, c.CommitOutcome):
        return command.acks
    if isinstance(command, c.Claim):
        return (c.Ack(command.topic, command.group, command.owner, command.acks),) if command.acks else ()
    return (command,)


class GroupModel:
    __slots__ = ("commits_offsets", "filters", "group_id", "name", "paused", "places", "topic")

    def __init__(self, group_id: int, topic: str, name: str, commits_offsets: bool) -> None:
        self.group_id = group_id
        self.topic = topic
        self.name = name
        self.commits_offsets = commits_offsets
        self.paused = False
        self.places: dict[int, Places] = {}
        self.filters: set[tuple[str | None, str | None]] = set()  # its filter; empty: everything


class QueuesCheck:
    """The groups and the schedules of records."""

    def __init__(self, ledger: Ledger, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self.groups: dict[int, GroupModel] = {}
        self.configs: dict[str, f.TopicConfig] = {}
        self.marks: dict[int, dict[int, f.RecordSchedule]] = {}  # log -> offset -> mark
        self.cancelled: dict[int, set[int]] = {}  # by log
        self.made_due: dict[int, set[int]] = {}  # by log: delays that were ended early, for groups that start later
        self._readers: dict[int, list[Places]] = {}
        self._leased: list[tuple[f.Leased, Places]] = []  # of the current frame
        self.max_in_flight = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.TopicCreated: self._topic_created,
            f.TopicConfigured: self._topic_configured,
            f.TopicDeleted: self._topic_deleted,
            f.Appended: self._appended,
            f.Trimmed: self._trimmed,
            f.GroupCreated: self._group_created,
            f.GroupSought: self._sought,
            f.GroupPaused: self._paused,
            f.GroupDeleted: self._group_deleted,
            f.Leased: self._lease,
            f.Extended: self._extended,
            f.Failed: self._failed,
            f.FailureExplained: self._explained,
            f.Released: self._released,
            f.Settled: self._settled,
            f.Cancelled: self._cancelled,
            f.FilterNoted: self._filter_noted,
            MadeDue: self._made_due,
            ClockSet: self._clock_set,
        }

    def _clock_set(self, fact: ClockSet, op: Operation) -> None:
        """Leases and backoffs that run keep the time they had left; delays are dates."""
        moved_ms = fact.at_ms - fact.from_ms
        for places in (places for group in self.groups.values() for places in group.places.values()):
            for offset, holding in places.held.items():
                if holding.until_ms > fact.from_ms:
                    places.held[offset] = holding._replace(
                        until_ms=holding.until_ms + moved_ms, at_ms=holding.at_ms + moved_ms
                    )
            for offset, until_ms in places.resting.items():
                if until_ms > fact.from_ms and offset in places.attempts:
                    places.resting[offset] = until_ms + moved_ms

    # --- topics and groups ---

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        self.configs[fact.topic] = fact.config
        self.configs[f"dlq.{fact.topic}"] = f.TopicConfig()

    def _topic_configured(self, fact: f.TopicConfigured, op: Operation) -> None:
        self.configs[fact.topic] = fact.config

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        names = (fact.topic, f"dlq.{fact.topic}")
        for group in [group for group in self.groups.values() if group.topic in names]:
            self._drop_group(group)

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        if fact.along is None:
            return
        for mark in fact.along.marks:
            offset = fact.first_offset + mark.index
            self.marks.setdefault(fact.log_id, {})[offset] = mark
            if mark.not_before_ms > fact.at_ms:
                for places in self._readers.get(fact.log_id, ()):
                    places.rest(offset, mark.not_before_ms)

    def _trimmed(self, fact: f.Trimmed, op: Operation) -> None:
        for places in self._readers.get(fact.log_id, ()):
            places.trim(fact.start_offset)

    def _group_created(self, fact: f.GroupCreated, op: Operation) -> None:
        demand(fact.group_id not in self.groups, "Q1", f"group number {fact.group_id} was given out twice")
        group = self.groups[fact.group_id] = GroupModel(fact.group_id, fact.topic, fact.group, fact.commits_offsets)
        for log_id, start in zip(self._ledger.topics[fact.topic], fact.starts, strict=True):
            places = group.places[log_id] = Places(log_id, start)
            self._readers.setdefault(log_id, []).append(places)
            self._rest_delayed(places, start, fact.at_ms)
            self._pass_over(places, fact.group)

    def _pass_over(self, places: Places, group: str) -> None:
        """Cancelled messages, and those redriven to another group, are settled for this group."""
        marks = self.marks.get(places.log_id, {})
        directed = [offset for offset, mark in marks.items() if mark.group not in ("", group)]
        for offset in (*self.cancelled.get(places.log_id, ()), *directed):
            places.settle(offset, f.SKIPPED)

    def _cancelled(self, fact: f.Cancelled, op: Operation) -> None:
        self.cancelled.setdefault(fact.log_id, set()).add(fact.offset)

    def _made_due(self, fact: MadeDue, op: Operation) -> None:
        """Only what waits is made due."""
        offsets = {offset for first, end in fact.ranges for offset in range(first, end)}
        if not fact.group_id:
            self.made_due.setdefault(fact.log_id, set()).update(offsets)
            return
        places = self.groups[fact.group_id].places[fact.log_id]
        for offset in offsets:
            demand(places.resting.get(offset, 0) > fact.at_ms, "retry", f"{op}: offset {offset} was not waiting")
            places.resting[offset] = fact.at_ms

    def is_delayed(self, log_id: int, offset: int, at_ms: int) -> bool:
        """Whether its producer's delay still holds."""
        mark = self.marks.get(log_id, {}).get(offset)
        return mark is not None and mark.not_before_ms > at_ms and offset not in self.made_due.get(log_id, ())

    def _filter_noted(self, fact: f.FilterNoted, op: Operation) -> None:
        self.groups[fact.group_id].filters.add((fact.task, fact.label))

    def _rest_delayed(self, places: Places, start: int, at_ms: int) -> None:
        kept = max(start, self._ledger.logs[places.log_id].start)
        for offset, mark in self.marks.get(places.log_id, {}).items():
            if offset >= kept and self.is_delayed(places.log_id, offset, at_ms):
                places.rest(offset, mark.not_before_ms)

    def _group_deleted(self, fact: f.GroupDeleted, op: Operation) -> None:
        self._drop_group(self.groups[fact.group_id])

    def _drop_group(self, group: GroupModel) -> None:
        del self.groups[group.group_id]
        for log_id, places in group.places.items():
            self._readers[log_id].remove(places)

    def _sought(self, fact: f.GroupSought, op: Operation) -> None:
        places = self.groups[fact.group_id].places[fact.log_id]
        places.seeks += 1
        places.restart(fact.offset)
        self._rest_delayed(places, fact.offset, fact.at_ms)
        self._pass_over(places, self.groups[fact.group_id].name)

    def _paused(self, fact: f.GroupPaused, op: Operation) -> None:
        self.groups[fact.group_id].paused = fact.paused

    # --- deliveries ---

    def _lease(self, fact: f.Leased, op: Operation) -> None:
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        demand(not group.commits_offsets, "commit", f"{op}: a group that commits offsets got messages")
        demand(not group.paused, "pause", f"{op}: a paused group got messages")
        holding = Holding(fact.owner, fact.token, fact.until_ms, fact.at_ms)
        marks = self.marks.get(fact.log_id)
        log = self._ledger.logs[fact.log_id]
        for first, end in fact.ranges:
            if end > log.end or log.lsn_of(end - 1) > op.seen_lsn:
                raise Violation(
                    "L10", f"{op}: offset {end - 1} of log {fact.log_id} was delivered before it was durable"
                )
            for offset in range(first, end):
                self._deliver(op, places, offset, holding, marks.get(offset) if marks else None, fact, not log.dead_of)
        config = self.configs.get(group.topic)
        in_flight_max = (config.in_flight_max if config else 0) or self._limits.in_flight_max
        self.max_in_flight = max(self.max_in_flight, len(places.held))
        if len(places.held) > in_flight_max:
            raise Violation("Q8", f"{op}: {len(places.held)} in flight; {in_flight_max} are allowed")
        self._leased.append((fact, places))

    def _deliver(
        self,
        op: Operation,
        places: Places,
        offset: int,
        holding: Holding,
        mark: f.RecordSchedule | None,
        fact: f.Leased,
        dies: bool,
    ) -> None:
        at = f"offset {offset} of log {fact.log_id}"
        if places.is_settled(offset):
            raise Violation("Q2", f"{op}: {at} was delivered again after it was settled")
        if offset in places.held:
            raise Violation("Q4", f"{op}: {at} was delivered while {places.held[offset]} holds it")
        if offset in places.resting:
            if places.resting.pop(offset) > fact.at_ms:
                raise Violation("Q10", f"{op}: {at} was delivered before its time")
        elif offset not in places.attempts or offset in places.unseen:
            self._first_delivery(op, places, offset, mark)
        if mark is not None:
            group = self.groups[fact.group_id].name
            if mark.group not in ("", group):
                raise Violation("redrive", f"{op}: {at} was sent back to {mark.group} and delivered to {group}")
            if mark.timeout_ms and holding.until_ms > fact.at_ms + mark.timeout_ms:
                raise Violation("timeout", f"{op}: {at} is held for longer than its attempt may take")
            if self.is_delayed(fact.log_id, offset, fact.at_ms):
                raise Violation("delay", f"{op}: {at} was delivered {mark.not_before_ms - fact.at_ms} ms early")
            if dies and 0 < mark.deadline_ms <= fact.at_ms:
                raise Violation("deadline", f"{op}: {at} was delivered {fact.at_ms - mark.deadline_ms} ms too late")
        places.unseen.discard(offset)
        places.lost.discard(offset)
        places.last.pop(offset, None)
        places.held[offset] = holding
        places.attempts[offset] = places.attempts.get(offset, 0) + 1
        version = places.versions.get(offset, places.fresh_version - 1) + 1
        places.versions[offset] = version
        places.top_version = max(places.top_version, version)

    def _first_delivery(self, op: Operation, places: Places, offset: int, mark: f.RecordSchedule | None) -> None:
        """In offset order within a lane, except for messages that were released unsent."""
        if offset in places.unseen:
            return
        lane = LaneKey(mark.priority, mark.task, mark.label, mark.tenant) if mark is not None else None
        if lane == LaneKey(0, "", "") and mark is not None and not mark.not_before_ms:
            lane = None
        if offset <= places.lane_tops.get(lane, -1):
            raise Violation("Q9", f"{op}: offset {offset} was first delivered after {places.lane_tops[lane]}")
        places.lane_tops[lane] = offset

    # --- ends of deliveries ---

    def _named(self, op: Operation, group: GroupModel, log_id: int, offset: int) -> c.Held | None:
        """How the caller named this message."""
        partition = self._ledger.logs[log_id].partition
        for part in _settling_parts(op.command):
            if (part.topic, part.group) != (group.topic, group.name):
                continue
            if isinstance(part, c.AckThrough):
                return c.Held(partition, offset, offset + 1, part.token)
            for held in part.held:
                if held.partition == partition and held.first <= offset < held.end:
                    return held
        return None

    def _fenced(self, op: Operation, group: GroupModel, places: Places, offset: int, *, late: bool) -> Holding:
        """Only the holder, or (late) the last holder until the next delivery, may change a message."""
        holding = places.held.get(offset) or (places.last.get(offset) if late else None)
        at = f"offset {offset} of log {places.log_id}"
        if holding is None:
            raise Violation("Q4", f"{op} moved {at}, which no client holds")
        named = self._named(op, group, places.log_id, offset)
        if named is None:
            raise Violation("Q4", f"{op} moved {at}, which it did not name")
        parts = [part for part in _settling_parts(op.command) if part.group == group.name]
        owner = getattr(parts[0], "owner", "") if parts else ""
        fits = named.token == holding.token if named.token else owner == holding.owner
        if not fits:
            raise Violation("Q4", f"{op} moved {at} under {named.token or owner!r}; {holding} holds it")
        return holding

    def _extended(self, fact: f.Extended, op: Operation) -> None:
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        for first, end in fact.ranges:
            for offset in range(first, end):
                holding = self._fenced(op, group, places, offset, late=False)
                timeout_ms = self._timeout_of(places, offset)
                if timeout_ms and fact.until_ms > holding.at_ms + timeout_ms:
                    raise Violation("timeout", f"{op}: offset {offset} was extended past its {timeout_ms} ms")
                places.held[offset] = holding._replace(until_ms=fact.until_ms)

    def _timeout_of(self, places: Places, offset: int) -> int:
        mark = self.marks.get(places.log_id, {}).get(offset)
        return mark.timeout_ms if mark is not None else 0

    def _timed_out(self, op: Operation, places: Places, offset: int) -> bool:
        """Whether the attempt ended because it took too long, and not by its holder."""
        holding = places.held.get(offset)
        if holding is None or not isinstance(op.command, c.Sweep | c.Claim):
            return False
        timeout_ms = self._timeout_of(places, offset)
        return timeout_ms > 0 and holding.until_ms == holding.at_ms + timeout_ms

    def _failed(self, fact: f.Failed, op: Operation) -> None:
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        offset = fact.offset
        if fact.lease_lost:
            holding = places.held.get(offset)
            if holding is None or holding.until_ms > fact.at_ms:
                raise Violation("Q5", f"{op}: offset {offset} lost its lease early: {holding} at {fact.at_ms}")
            demand(fact.error == ACK_TIMEOUT, "Q6", f"{op}: a lost lease is noted as {fact.error!r}")
            demand(not self._timed_out(op, places, offset), "timeout", f"{op}: {holding} is noted as a lost lease")
            places.losses[offset] = places.losses.get(offset, 0) + 1
        elif self._timed_out(op, places, offset):
            demand(
                fact.error == "timeout", "timeout", f"{op}: an attempt that took too long is noted as {fact.error!r}"
            )
            demand(places.held[offset].until_ms <= fact.at_ms, "timeout", f"{op}: offset {offset} was ended early")
        else:
            self._fenced(op, group, places, offset, late=False)
        self._check_backoff(op, group, places, fact)
        places.last[offset] = places.held.pop(offset)
        places.rest(offset, fact.retry_at_ms)
        places.errors[offset] = fact.error
        (places.lost.add if fact.lease_lost else places.lost.discard)(offset)

    def _explained(self, fact: f.FailureExplained, op: Operation) -> None:
        """The last holder gives the reason once, after its lease was lost and before the next delivery."""
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        offset = fact.offset
        demand(offset in places.lost, "Q6", f"{op}: offset {offset} has lost no lease that could be explained")
        self._fenced(op, group, places, offset, late=True)
        delay_ms = getattr(op.command, "delay_ms", None)
        due_ms = places.resting[offset] if delay_ms is None else fact.at_ms + delay_ms
        demand(fact.retry_at_ms == due_ms, "Q10", f"{op}: it rests until {fact.retry_at_ms}, not {due_ms}")
        demand(fact.error == getattr(op.command, "reason", ""), "Q6", f"{op}: noted as {fact.error!r}")
        places.rest(offset, fact.retry_at_ms)
        places.lost.discard(offset)
        places.errors[offset] = fact.error

    def policy_of(self, group: GroupModel, log_id: int, offset: int) -> RetryPolicy:
        head = decode_head(self._ledger.logs[log_id].record(offset).head)
        policy = head.envelope.retry_policy if head.envelope is not None else None
        config = self.configs.get(group.topic)
        policy = policy or (config.retry if config is not None else None)
        server = self._limits.retry
        if policy is None:
            attempts_max = self._limits.job_attempts_max if head.job is not None else server.max_attempts
            return RetryPolicy(attempts_max, server.backoff_ms, server.max_backoff_ms, server.jitter)
        if policy.backoff_ms == 0:
            return RetryPolicy(policy.max_attempts, server.backoff_ms, server.max_backoff_ms, server.jitter)
        return policy

    def _check_backoff(self, op: Operation, group: GroupModel, places: Places, fact: f.Failed) -> None:
        attempts = places.attempts[fact.offset]
        policy = self.policy_of(group, fact.log_id, fact.offset)
        dies = not self._ledger.logs[fact.log_id].dead_of
        if dies and is_exhausted(policy, attempts):
            raise Violation(
                "Q6", f"{op}: attempt {attempts} of {policy.max_attempts} failed and the message is retried"
            )
        rest_ms = fact.retry_at_ms - fact.at_ms
        delay_ms = getattr(op.command, "delay_ms", None) if not fact.lease_lost else None
        window = policy.backoff_ms * 2 ** (attempts - 1)
        window = min(window, policy.max_backoff_ms) if policy.max_backoff_ms else window
        least, most_ms = {
            "none": (window, window),
            "full": (self._limits.retry_floor_ms, max(window, self._limits.retry_floor_ms)),
            "equal": (window // 2, max(window, self._limits.retry_floor_ms)),
            "decorrelated": (self._limits.retry_floor_ms, max(3 * window, self._limits.retry_floor_ms)),
        }[policy.jitter]
        if delay_ms is not None:
            least = most_ms = delay_ms
        if not least <= rest_ms <= most_ms:
            raise Violation("Q10", f"{op}: the backoff is {rest_ms} ms; {least} to {most_ms} were due")

    def _released(self, fact: f.Released, op: Operation) -> None:
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        for first, end in fact.ranges:
            for offset in range(first, end):
                self._fenced(op, group, places, offset, late=False)
                del places.held[offset]
                places.attempts[offset] -= 1
                if not fact.sent and offset not in places.history:
                    places.unseen.add(offset)
                    del places.versions[offset]
                    del places.attempts[offset]
                else:
                    places.rest(offset, fact.retry_at_ms)

    def _settled(self, fact: f.Settled, op: Operation) -> None:
        group = self.groups[fact.group_id]
        places = group.places[fact.log_id]
        for first, end in fact.ranges:
            for offset in range(first, end):
                if fact.how == f.SKIPPED:
                    mark = self.marks.get(fact.log_id, {}).get(offset)
                    other = mark is not None and mark.group not in ("", group.name)
                    demand(other, "redrive", f"{op}: offset {offset} was kept from {group.name}")
                elif isinstance(op.command, v.Redrive | v.MoveMessages | v.DeleteDeadLetters):
                    demand(not places.is_settled(offset), "Q7", f"{op}: offset {offset} was taken twice")
                elif fact.how == f.ACKED and not places.is_settled(offset):
                    self._fenced(op, group, places, offset, late=True)
                places.settle(offset, fact.how)

    def finish(self, op: Operation) -> None:
        self._leased.clear()

    # --- replies ---

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Claimed: self._claimed, Settlement: self._settlement, OutcomeReply: self._concluded}

    def _concluded(self, op: Operation, reply: OutcomeReply) -> None:
        """An outcome that was not refused has settled everything it acked."""
        for ack in op.command.acks:  # type: ignore[attr-defined]
            group = self.group(ack.topic, ack.group)
            for held in ack.held:
                places = group.places[self._ledger.topics[ack.topic][held.partition]] if group else None
                for offset in range(held.first, held.end):
                    if places is None or not places.is_settled(offset):
                        raise Violation("all or nothing", f"{op}: offset {offset} was acked and is not settled")

    def group(self, topic: str, name: str) -> GroupModel | None:
        return next((group for group in self.groups.values() if (group.topic, group.name) == (topic, name)), None)

    def _claimed(self, op: Operation, reply: Claimed) -> None:
        group = self.groups[reply.group_id]
        seen = 0
        for delivery in reply.deliveries:
            places = group.places[delivery.log_id]
            for offset in range(delivery.first, delivery.end):
                holding = places.held.get(offset)
                reported = (delivery.attempts, delivery.version)
                until_ms = delivery.until_ms or reply.until_ms
                if holding is None or (holding.token, holding.until_ms) != (reply.token, until_ms):
                    raise Violation("Q4", f"{op}: offset {offset} was handed out, but {holding} holds it")
                if reported != (places.attempts[offset], places.versions[offset]):
                    known = (places.attempts[offset], places.versions[offset])
                    raise Violation("Q6", f"{op}: the reply has (attempts, version) {reported}, not {known}")
                seen += 1
        if seen > op.command.max_messages:  # type: ignore[attr-defined]
            raise Violation("Q8", f"{op} got {seen} messages, more than it asked for")
        for ack in _settling_parts(op.command):
            self._judge_settlement(op, ack, reply.refused)

    def _settlement(self, op: Operation, reply: Settlement) -> None:
        self._judge_settlement(op, op.command, reply.refused)

    def _judge_settlement(self, op: Operation, command: Any, refusals: tuple[Refusal, ...]) -> None:
        topic = self._ledger.topics.get(command.topic)
        group = self.group(command.topic, command.group)
        if topic is None or group is None or isinstance(command, c.AckThrough):
            return
        refused = {(refusal.partition, refusal.offset): refusal.code for refusal in refusals}
        for held in command.held:
            places = group.places[topic[held.partition]]
            # Offsets past the end are refused as one range.
            for offset in range(held.first, min(held.end, self._ledger.logs[places.log_id].end)):
                code = refused.get((held.partition, offset))
                if code is None and isinstance(command, c.Ack | c.RejectMessages):
                    if not places.is_settled(offset):
                        raise Violation("Q2", f"{op}: offset {offset} was reported as settled and is not")
                    died = places.how.get(offset) == f.DEAD and offset >= self._ledger.logs[places.log_id].start
                    if died and isinstance(command, c.Ack):
                        raise Violation("Q2", f"{op}: offset {offset} is a dead letter and was reported as acked")
                elif code is None and isinstance(command, c.Nack):
                    if places.how.get(offset) == f.ACKED:
                        raise Violation("Q2", f"{op}: offset {offset} was acked and reported as failed")
                    if offset in places.lost:
                        raise Violation("Q6", f"{op}: the reason for offset {offset} was dropped")
                elif code is Code.NOT_OWNER and not isinstance(command, c.Extend):
                    holding = places.held.get(offset) or places.last.get(offset)
                    if held.token and holding is not None and holding.token == held.token:
                        raise Violation("Q4", f"{op}: the holder of offset {offset} was refused")

    # --- when nothing is in flight ---

    def compare(self, state: State, now_ms: int) -> None:
        if list(state.groups) != list(self.groups) and sorted(state.groups) != sorted(self.groups):
            raise Violation("Q1", f"there are groups {sorted(state.groups)}; there should be {sorted(self.groups)}")
        for group_id, group in self.groups.items():
            for log_id, places in group.places.items():
                progress = state.progress_of(group_id, log_id)
                at = f"group {group.name} of {group.topic}, log {log_id}"
                entries = {offset: progress.entries[offset] for offset in progress.entries}
                held = {offset: entry.lease for offset, entry in entries.items() if entry.held}
                for first, end, lease in progress.held:
                    for offset in range(first, end):
                        if offset in held:
                            raise Violation("Q1", f"{at}: offset {offset} is held twice")
                        held[offset] = lease
                resting = {offset: entry.retry_at_ms for offset, entry in entries.items() if not entry.held}
                settled = {offset for first, end in progress.settled for offset in range(first, end)}
                ready = {offset for first, end in progress.ready for offset in range(first, end)}
                if progress.floor != places.floor:
                    raise Violation("Q1", f"{at}: floor {progress.floor}, not {places.floor}")
                if settled != places.settled:
                    raise Violation("Q1", f"{at}: settled {settled ^ places.settled} differs")
                if resting != places.resting:
                    raise Violation("Q1", f"{at}: resting {resting}, not {places.resting}")
                if ready != places.unseen:
                    raise Violation("Q1", f"{at}: unseen {ready ^ places.unseen} differs")
                mine = {offset: (holding.token, holding.until_ms) for offset, holding in places.held.items()}
                theirs = {offset: (lease.token, lease.until_ms) for offset, lease in held.items() if lease}
                if mine != theirs:
                    raise Violation("Q1", f"{at}: held {theirs}, not {mine}")
                if (progress.in_flight, progress.resting) != (len(held), len(resting)):
                    counted = f"{progress.in_flight} in flight and {progress.resting} resting"
                    raise Violation("Q1", f"{at}: counts {counted}, not {len(held)} and {len(resting)}")
                times = [holding.until_ms for holding in places.held.values()]
                times += [at_ms for at_ms in places.resting.values() if at_ms > now_ms]
                if times:
                    hinted(state, min(times), now_ms, ("group", group_id, log_id))

    def ends_of(self, topic: str) -> tuple[tuple[str, int, int], ...]:
        """The end of each partition of a topic, as a reader commits it."""
        logs = enumerate(self._ledger.topics[topic])
        return tuple((topic, partition, self._ledger.logs[log_id].end) for partition, log_id in logs)

    def unsettled(self) -> list[tuple[str, str, int, int]]:
        """What is left to do: (topic, group, log, offset), at most a few."""
        unsettled: list[tuple[str, str, int, int]] = []
        for group in self.groups.values():
            for log_id, places in group.places.items():
                if places.floor < self._ledger.logs[log_id].end:
                    unsettled.append((group.topic, group.name, log_id, places.floor))
        return unsettled


def hinted(state: State, at_ms: int, now_ms: int, subject: tuple[str, int, int]) -> None:
    """Everything that time ends has a timer: at its time, or soon after a sweep that could not end it."""
    hint = state.deadlines._earliest.get(subject)
    soon = hint is not None and hint <= max(at_ms, now_ms + LOOK_AGAIN_MS)
    demand(soon, "wake-up", f"{subject} is due at {at_ms}; the next look is at {hint}")
