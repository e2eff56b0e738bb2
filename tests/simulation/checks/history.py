"""Q12: a topic's history, and the states of a group's messages as a query returns them.

Whatever happens to a message of a topic with a history is recorded in `<topic>.history`, in the same frame, once, and
nothing else is. A group's states are the places of its messages, page by page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec import json

from driftq.core.model import facts as f
from driftq.core.model.queries import ReadStates
from driftq.core.model.replies import StatesView
from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.wire.records import unpack
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.positions import Places
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.operation import Operation

Event = tuple[int, str, int, str]  # log, what, offset, group
_HOW = {f.ACKED: "acked", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}


class HistoryCheck:
    """Compares the facts of a frame with the history events in it."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck) -> None:
        self._ledger = ledger
        self._queues = queues
        self._happened: Counter[Event] = Counter()
        self._maybe: Counter[Event] = Counter()  # settled without a delivery
        self._told: Counter[Event] = Counter()
        self._new_groups: dict[int, str] = {}
        self._kept: set[int] = set()  # logs whose topic keeps a history
        self.count = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.TopicCreated: self._topic_created,
            f.TopicConfigured: self._topic_configured,
            f.TopicDeleted: self._topic_deleted,
            f.GroupCreated: self._group_created,
            f.Leased: lambda fact, op: self._note(fact, fact.ranges, "delivered"),
            f.Released: lambda fact, op: self._note(fact, fact.ranges, "released"),
            f.Failed: self._failed,
            f.FailureExplained: lambda fact, op: self._note(fact, ((fact.offset, fact.offset + 1),), "failed"),
            f.Settled: self._settled,
            f.Appended: self._appended,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {StatesView: self._shown}

    # --- histories ---

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        if fact.config.history:
            self._kept.update(range(fact.first_log_id, fact.first_log_id + fact.partitions))

    def _topic_configured(self, fact: f.TopicConfigured, op: Operation) -> None:
        logs = self._ledger.topics[fact.topic]
        (self._kept.update if fact.config.history else self._kept.difference_update)(logs)

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        self._kept.difference_update(self._ledger.topics[fact.topic])

    def _group_created(self, fact: f.GroupCreated, op: Operation) -> None:
        self._new_groups[fact.group_id] = fact.group

    def _group_of(self, group_id: int) -> str:
        known = self._queues.groups.get(group_id)
        return known.name if known is not None else self._new_groups[group_id]

    def _note(self, fact: Any, ranges: tuple[tuple[int, int], ...], what: str) -> None:
        if fact.log_id in self._kept:
            group = self._group_of(fact.group_id)
            for first, end in ranges:
                self._happened.update((fact.log_id, what, offset, group) for offset in range(first, end))

    def _failed(self, fact: f.Failed, op: Operation) -> None:
        self._note(fact, ((fact.offset, fact.offset + 1),), "expired" if fact.lease_lost else "failed")

    def _settled(self, fact: f.Settled, op: Operation) -> None:
        if fact.log_id not in self._kept:
            return
        known = self._queues.groups.get(fact.group_id)
        places = known.places[fact.log_id] if known is not None else None
        group, what = self._group_of(fact.group_id), _HOW[fact.how]
        for first, end in fact.ranges:
            for offset in range(first, end):
                event = (fact.log_id, what, offset, group)
                if end == first + 1 or (places is not None and _was_given(places, offset)):
                    self._happened[event] += 1
                else:
                    self._maybe[event] += 1

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        log = self._ledger.logs[fact.log_id]
        if not log.topic.endswith(HISTORY_SUFFIX):
            return
        of = self._ledger.topics.get(log.topic.removesuffix(HISTORY_SUFFIX))
        for record in unpack(fact.batch):
            event = json.decode(record.value)
            if of is None or event["partition"] != log.partition or record.key.decode() != event["group"]:
                raise Violation("Q12", f"{op}: an event is in the wrong partition: {event}")
            self._told[of[log.partition], event["event"], event["offset"], event["group"]] += 1

    def finish(self, op: Operation) -> None:
        if self._happened or self._told:
            missing, added = self._happened - self._told, self._told - self._happened - self._maybe
            if missing or added:
                raise Violation("Q12", f"{op}: the history lacks {dict(missing)} and has too many {dict(added)}")
            self.count += self._told.total()
            for events in (self._happened, self._told):
                events.clear()
        self._maybe.clear()
        self._new_groups.clear()

    # --- states ---

    def _shown(self, op: Operation, reply: StatesView) -> None:
        command = op.command
        assert isinstance(command, ReadStates)
        log_id = self._ledger.topics[command.topic][command.partition]
        group = next(
            group
            for group in self._queues.groups.values()
            if (group.topic, group.name) == (command.topic, command.group)
        )
        places = group.places[log_id]
        page = range(reply.offset, reply.next_offset)
        pending = {offset for offset in (*places.held, *places.resting) if offset in page}
        settled = {offset for offset in places.settled if offset in page}
        reported = {offset for first, end in reply.settled for offset in range(first, end)}
        if reply.floor != places.floor or reported != settled:
            raise Violation("Q1", f"{op}: floor {reply.floor} and settled {reported}, not {places.floor} and {settled}")
        if [message.offset for message in reply.pending] != sorted(pending):
            raise Violation(
                "Q1", f"{op}: pending {[message.offset for message in reply.pending]}, not {sorted(pending)}"
            )
        for message in reply.pending:
            holding = places.held.get(message.offset)
            expected = (holding.owner, holding.until_ms, 0) if holding else ("", 0, places.resting[message.offset])
            if (message.owner, message.until_ms, message.retry_at_ms) != expected:
                raise Violation("Q1", f"{op}: {message}, not {expected}")


def _was_given(places: Places, offset: int) -> bool:
    return not places.is_settled(offset) and (offset in places.held or offset in places.resting)
