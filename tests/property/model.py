"""A naive model of queues: one small object for each message and group, changed by facts, each of which must be legal.

It shares no code and no data structure with the broker. `fold` checks that each fact is a legal transition;
`test_broker_model` compares states, counts and replies. It has no ranges, heaps or cursors, and no objects for leases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import KeysSwept, OutcomeRecorded, OutcomesForgotten
from driftq.wire.message import decode_head
from driftq.wire.records import unpack

Event = tuple[str, int, int, str, str, int]  # what, partition, offset, group, owner, attempt

FRESH, HELD, RESTING, SETTLED = "fresh", "held", "resting", "settled"
HOW = {f.ACKED: "acked", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}


class Message:
    """A message as one group sees it."""

    def __init__(self, state: str = FRESH) -> None:
        self.state = state
        self.attempts = 0
        self.version = 0  # of the last delivery that a client may have seen
        self.owner = self.token = self.error = ""
        self.until_ms = self.retry_at_ms = 0
        self.has_history = False
        self.how: int | None = None
        self.lost = False  # its lease was lost, and its holder has not reported why


class Shared:
    """The part of a message that all groups share."""

    def __init__(self, mark: f.RecordSchedule | None, at_ms: int) -> None:
        self.lane = (mark.priority, mark.task, mark.label) if mark is not None else (0, "", "")
        self.not_before_ms = mark.not_before_ms if mark is not None and mark.not_before_ms > at_ms else 0
        self.deadline_ms = mark.deadline_ms if mark is not None else 0
        self.group = mark.group if mark is not None else ""  # the only group that gets it
        self.cancelled = False

    def is_for(self, group: str) -> bool:
        return not self.cancelled and self.group in ("", group)


class Model:
    """Every group's messages, by (group id, log id)."""

    def __init__(self) -> None:
        self.logs: dict[int, list[Shared]] = {}
        self.starts: dict[int, int] = {}
        self.dead_logs: set[int] = set()
        self.log_ids: dict[str, tuple[int, ...]] = {}
        self.groups: dict[int, tuple[str, str]] = {}
        self.paused: set[int] = set()
        self.messages: dict[tuple[int, int], list[Message]] = {}
        self.letters: dict[tuple[str, int, int, str], int] = {}
        self.rounds: dict[tuple[str, int, int, str], int] = {}  # after a seek a group may fail a message again
        self.durable: dict[int, int] = {}
        self.outcomes: list[bytes] = []
        self.history_events: list[Event] | None = None  # the history events of a frame, if the topic has a history

    # --- views ---

    def group_id(self, topic: str, group: str) -> int | None:
        return next((number for number, names in self.groups.items() if names == (topic, group)), None)

    def of(self, group_id: int) -> Iterator[tuple[int, int, int, Message]]:
        """(partition, log, offset, message) of all a group may still read."""
        topic, _ = self.groups[group_id]
        for partition, log_id in enumerate(self.log_ids[topic]):
            for offset, message in enumerate(self.messages[group_id, log_id]):
                if offset >= self.starts[log_id]:
                    yield partition, log_id, offset, message

    def in_flight(self, group_id: int, log_id: int) -> int:
        return sum(message.state == HELD for message in self.messages[group_id, log_id])

    # --- folding ---

    def fold(self, facts: Iterable[f.Fact], now_ms: int) -> None:
        unmatched: list[tuple[str, int, int, str]] = []
        facts = list(facts)
        for fact in facts:
            if isinstance(fact, f.Appended):
                self._append(fact, unmatched)
            elif isinstance(fact, f.Settled):
                self._settle(fact, unmatched)
            else:
                getattr(self, f"_{type(fact).__name__}")(fact, now_ms)
        assert not unmatched, f"dead letters without their originals in the same frame: {unmatched}"
        self._check_history(facts)

    def _check_history(self, facts: list[f.Fact]) -> None:
        """Every event is in the history once, in its partition, in the order of the facts, and nothing else is."""
        if self.history_events is None:
            return
        for partition, log_id in enumerate(self.log_ids["t.history"]):
            batches = [fact.batch for fact in facts if isinstance(fact, f.Appended) and fact.log_id == log_id]
            assert len(batches) <= 1, "one batch for each command and partition"
            events = [json.loads(record.value) for batch in batches for record in unpack(batch)]
            names = ("event", "partition", "offset", "group", "owner", "attempt")
            expected = [event for event in self.history_events if event[1] == partition]
            assert [tuple(event[name] for name in names) for event in events] == expected
        self.history_events = []

    def _record_event(
        self, what: str, fact: f.Leased | f.Failed | f.FailureExplained | f.Settled | f.Released, offset: int
    ) -> None:
        topic, group = self.groups[fact.group_id]
        if self.history_events is not None and topic == "t":
            _, message = self._at(fact, offset)
            partition = self.log_ids[topic].index(fact.log_id)
            self.history_events.append((what, partition, offset, group, message.owner, message.attempts))

    def _TopicCreated(self, fact: f.TopicCreated, now_ms: int) -> None:
        first, count = fact.first_log_id, fact.partitions
        self.log_ids[fact.topic] = tuple(range(first, first + count))
        self.log_ids["dlq." + fact.topic] = tuple(range(first + count, first + 2 * count))
        for log_id in range(first, first + 2 * count):
            self.logs[log_id], self.starts[log_id] = [], 0
        self.dead_logs |= set(range(first + count, first + 2 * count))
        if fact.config.history:
            self.history_events = []

    def _append(self, fact: f.Appended, unmatched: list[tuple[str, int, int, str]]) -> None:
        log = self.logs[fact.log_id]
        assert len(log) == fact.first_offset, "offsets are dense"
        marks = {mark.index: mark for mark in fact.along.marks} if fact.along is not None else {}
        if fact.log_id in self.dead_logs:
            letter = decode_head(unpack(fact.batch)[0].head).dlq
            assert letter is not None
            name = letter.topic, letter.partition, letter.offset, letter.group
            unmatched.append(name)
            self.letters[name] = self.letters.get(name, 0) + 1
            assert self.letters[name] <= self.rounds.get(name, 0) + 1, f"{name} became a dead letter twice"
        for index in range(fact.count):
            shared = Shared(marks.get(index), fact.at_ms)
            log.append(shared)
            for (_, log_id), messages in self.messages.items():
                if log_id == fact.log_id:
                    messages.append(_arrived(shared, fact.at_ms))

    def _GroupCreated(self, fact: f.GroupCreated, now_ms: int) -> None:
        self.groups[fact.group_id] = fact.topic, fact.group
        for log_id, start in zip(self.log_ids[fact.topic], fact.starts, strict=True):
            self.messages[fact.group_id, log_id] = [
                _arrived(shared, now_ms) if offset >= start and shared.is_for(fact.group) else Message(SETTLED)
                for offset, shared in enumerate(self.logs[log_id])
            ]

    def _GroupSought(self, fact: f.GroupSought, now_ms: int) -> None:
        topic, group = self.groups[fact.group_id]
        partition = self.log_ids[topic].index(fact.log_id)
        old = self.messages[fact.group_id, fact.log_id]
        for offset, shared in enumerate(self.logs[fact.log_id]):
            gets = offset >= fact.offset and shared.is_for(group)
            message = _arrived(shared, now_ms) if gets else Message(SETTLED)
            message.version = old[offset].version
            old[offset] = message
            name = topic, partition, offset, group
            self.rounds[name] = self.letters.get(name, 0)

    def _GroupPaused(self, fact: f.GroupPaused, now_ms: int) -> None:
        (self.paused.add if fact.paused else self.paused.discard)(fact.group_id)

    def _GroupDeleted(self, fact: f.GroupDeleted, now_ms: int) -> None:
        topic, group = self.groups.pop(fact.group_id)
        for partition, log_id in enumerate(self.log_ids[topic]):
            del self.messages[fact.group_id, log_id]
            for name in [name for name in self.letters if name[:2] == (topic, partition) and name[3] == group]:
                self.rounds[name] = self.letters[name]

    def _Leased(self, fact: f.Leased, now_ms: int) -> None:
        assert fact.group_id not in self.paused, "a paused group gets no messages"
        for first, end in fact.ranges:
            assert first < end, "a lease is over at least one message"
            for offset in range(first, end):
                shared, message = self._at(fact, offset)
                assert offset < self.durable.get(fact.log_id, 0), f"{offset} is delivered before it is durable"
                assert message.state in (FRESH, RESTING), f"{offset} is {message.state}"
                assert message.state == FRESH or message.retry_at_ms <= now_ms, "before its delay is over"
                overdue = 0 < shared.deadline_ms <= now_ms and fact.log_id not in self.dead_logs
                assert not overdue, "past its deadline"
                message.state, message.owner, message.token = HELD, fact.owner, fact.token
                message.until_ms = fact.until_ms
                message.attempts += 1
                message.lost = False
                self._record_event("delivered", fact, offset)

    def _Extended(self, fact: f.Extended, now_ms: int) -> None:
        for message in self._held(fact):
            message.until_ms = fact.until_ms

    def _Failed(self, fact: f.Failed, now_ms: int) -> None:
        _, message = self._at(fact, fact.offset)
        assert message.state == HELD
        assert not fact.lease_lost or message.until_ms <= now_ms, "the lease was lost too early"
        assert fact.retry_at_ms >= now_ms
        message.state, message.retry_at_ms, message.error = RESTING, fact.retry_at_ms, fact.error
        message.has_history = True
        message.lost = fact.lease_lost
        self._record_event("expired" if fact.lease_lost else "failed", fact, fact.offset)

    def _FailureExplained(self, fact: f.FailureExplained, now_ms: int) -> None:
        _, message = self._at(fact, fact.offset)
        assert message.state == RESTING
        assert message.lost, "only a lost lease is explained, and only once"
        assert fact.retry_at_ms >= now_ms or fact.retry_at_ms == message.retry_at_ms
        message.retry_at_ms, message.error, message.lost = fact.retry_at_ms, fact.error, False
        self._record_event("failed", fact, fact.offset)

    def _OutcomeRecorded(self, fact: OutcomeRecorded, now_ms: int) -> None:
        assert fact.outcome not in self.outcomes, "an outcome was carried out twice"
        self.outcomes.append(fact.outcome)

    def _OutcomesForgotten(self, fact: OutcomesForgotten, now_ms: int) -> None:
        pass

    def _Released(self, fact: f.Released, now_ms: int) -> None:
        for first, end in fact.ranges:
            for offset in range(first, end):
                self._record_event("released", fact, offset)
        for message in self._held(fact):
            message.attempts -= 1
            message.owner = message.token = ""
            if fact.sent or message.has_history:
                message.state, message.retry_at_ms, message.has_history = RESTING, fact.retry_at_ms, True
            else:
                message.state = FRESH
            if not fact.sent:
                message.version = -1  # released unsent: compare with what a client saw before

    def _settle(self, fact: f.Settled, unmatched: list[tuple[str, int, int, str]]) -> None:
        topic, group = self.groups[fact.group_id]
        for first, end in fact.ranges:
            for offset in range(first, end):
                _, message = self._at(fact, offset)
                if message.state == SETTLED:
                    assert fact.how == f.ACKED, "only a cumulative ack covers settled messages"
                    continue
                assert fact.how != f.ACKED or message.state in (HELD, RESTING), "acked, but never delivered"
                message.state, message.how = SETTLED, fact.how
                self._record_event(HOW[fact.how], fact, offset)
                if fact.how == f.DEAD and fact.log_id not in self.dead_logs:
                    unmatched.remove((topic, self.log_ids[topic].index(fact.log_id), offset, group))

    def _Cancelled(self, fact: f.Cancelled, now_ms: int) -> None:
        self.logs[fact.log_id][fact.offset].cancelled = True

    def _FilterNoted(self, fact: f.FilterNoted, now_ms: int) -> None:
        assert fact.group_id in self.groups

    def _KeysSwept(self, fact: KeysSwept, now_ms: int) -> None:
        assert fact.until_ms <= now_ms, "keys are dropped only after their TTL"

    def _Trimmed(self, fact: f.Trimmed, now_ms: int) -> None:
        self.starts[fact.log_id] = fact.start_offset
        for (_, log_id), messages in self.messages.items():
            if log_id == fact.log_id:
                for message in messages[: fact.start_offset]:
                    message.state = SETTLED

    def _at(
        self, fact: f.Leased | f.Failed | f.FailureExplained | f.Settled | f.Extended | f.Released, offset: int
    ) -> tuple[Shared, Message]:
        return self.logs[fact.log_id][offset], self.messages[fact.group_id, fact.log_id][offset]

    def _held(self, fact: f.Extended | f.Released) -> Iterator[Message]:
        for first, end in fact.ranges:
            for offset in range(first, end):
                _, message = self._at(fact, offset)
                assert message.state == HELD, f"{offset} is {message.state}"
                yield message


def _arrived(shared: Shared, now_ms: int) -> Message:
    message = Message()
    if shared.not_before_ms > now_ms:
        message.state, message.retry_at_ms, message.has_history = RESTING, shared.not_before_ms, True
    return message
