"""A broker without an engine: a test submits commands and checks the facts, the reply and the state.

A `BrokerFixture` decides, applies and gives appended records to the reader, as an engine does, but with a clock that
the test moves and seeded randomness. With `held_back=True`, appends become durable only at `commit()`. It contains no
rule of the broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, Staged
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Decision, Rejected, Reply
from driftq.core.model.stream_facts import StreamDeleted
from driftq.testing.clock import HandClock
from driftq.wire.message import Head, encode_head
from driftq.wire.records import Record, pack, stamp, unpack


class SeededChance:
    """Seeded randomness: tokens are t1, t2 and so on; `fixed` pins the uniform number."""

    def __init__(self, seed: int = 1, fixed: float | None = None) -> None:
        self.fixed = fixed
        self._random = Random(seed)
        self._tokens = 0

    def uniform(self) -> float:
        return self._random.random() if self.fixed is None else self.fixed

    def token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"


class Piece(NamedTuple):
    """One append of a log."""

    first: int
    end: int
    at_ms: int
    batch: bytes


class MemoryReader:
    """A `LogReader` over lists of appends. `feed` takes facts in the order in which they became durable."""

    def __init__(self) -> None:
        self.pieces: dict[int, list[Piece]] = {}
        self.ends: dict[int, int] = {}

    def feed(self, facts: Iterable[f.Fact]) -> None:
        for fact in facts:
            if isinstance(fact, f.Appended):
                self._add(fact.log_id, fact.first_offset, fact.count, fact.at_ms, fact.batch)
            elif isinstance(fact, Staged):
                self._add(f.STAGING_LOG, fact.first_offset, fact.count, fact.at_ms, fact.batch)
            elif isinstance(fact, Published):
                for part in fact.parts:
                    batch = stamp(self._piece(f.STAGING_LOG, part.staged_offset).batch, part.first_offset, fact.at_ms)
                    self._add(part.log_id, part.first_offset, part.count, fact.at_ms, batch)
            elif isinstance(fact, f.Trimmed):
                kept = [piece for piece in self.pieces.get(fact.log_id, []) if piece.end > fact.start_offset]
                self.pieces[fact.log_id] = kept
            elif isinstance(fact, f.TopicDeleted):
                for log_id in fact.log_ids:
                    self.pieces.pop(log_id, None)
            elif isinstance(fact, StreamDeleted) and not fact.soft:
                self.pieces.pop(fact.log_id, None)

    def _add(self, log_id: int, first: int, count: int, at_ms: int, batch: bytes) -> None:
        pieces = self.pieces.setdefault(log_id, [])
        assert not pieces or pieces[-1].end == first, f"log {log_id} has a gap before {first}"
        pieces.append(Piece(first, first + count, at_ms, batch))
        self.ends[log_id] = first + count

    def _piece(self, log_id: int, offset: int) -> Piece:
        pieces = self.pieces[log_id]
        piece = pieces[bisect_right(pieces, offset, key=lambda piece: piece.first) - 1]
        assert piece.first <= offset < piece.end, f"offset {offset} of log {log_id} is not durable"
        return piece

    def end(self, log_id: int) -> int:
        return self.ends.get(log_id, 0)

    def record(self, log_id: int, offset: int) -> Record:
        piece = self._piece(log_id, offset)
        return unpack(piece.batch, first=offset - piece.first, count=1)[0]

    def head(self, log_id: int, offset: int) -> bytes:
        return self.record(log_id, offset).head

    def batch_end(self, log_id: int, offset: int) -> int:
        return self._piece(log_id, offset).end

    def time_of(self, log_id: int, offset: int) -> int:
        return self._piece(log_id, offset).at_ms

    def offset_at(self, log_id: int, at_ms: int) -> int:
        for piece in self.pieces.get(log_id, []):
            if piece.at_ms >= at_ms:
                return piece.first
        return self.end(log_id)

    def spans(self, log_id: int) -> Sequence[tuple[int, int, int, int]]:
        """Every append is a span of its own."""
        return [(piece.first, piece.end, len(piece.batch), piece.at_ms) for piece in self.pieces.get(log_id, [])]


class BrokerFixture:
    """A broker and its parts, in memory."""

    def __init__(
        self, limits: BrokerLimits | None = None, *, seed: int = 1, chance: float | None = None, held_back: bool = False
    ) -> None:
        self.limits = limits or BrokerLimits()
        self.clock = HandClock()
        self.chance = SeededChance(seed, chance)
        self.reader = MemoryReader()
        self.broker = Broker(self.limits, self.reader, self.chance)
        self.journal: list[bytes] = []  # one encoded frame for each command that changed something
        self.held_back = held_back
        self._waiting: list[f.Fact] = []

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def decide(self, command: c.Command) -> Decision:
        """Decide without applying."""
        return self.broker.decide(command, self.clock.now_ms())

    def take(self, command: c.Command) -> Decision:
        """Decide and apply. The facts are the ones that came back from their encoded frame."""
        decision = self.decide(command)
        if decision.facts:
            self.fold(encode(decision.facts))
        return decision

    def fold(self, frame: bytes) -> None:
        facts = decode(frame)
        self.journal.append(frame)
        for fact in facts:
            self.broker.apply(fact)
        self._waiting.extend(facts)
        if not self.held_back:
            self.commit()

    def do(self, command: c.Command) -> Reply:
        return self.take(command).reply

    def commit(self) -> None:
        """Everything so far becomes durable."""
        self.reader.feed(self._waiting)
        self._waiting.clear()

    def sweep(self) -> list[f.Fact]:
        """Run what is due now until nothing is left; returns the facts."""
        facts: list[f.Fact] = []
        for _ in range(1_000):
            command = self.broker.due(self.clock.now_ms())
            if command is None:
                return facts
            facts += self.take(command).facts
        raise AssertionError("a thousand sweeps at the same time: something is always due")

    def regular_sweeps(self) -> list[f.Fact]:
        """A round of sweeps of what has no deadline, as an engine does every ten seconds; returns the facts."""
        return [fact for command in self.broker.regular_sweeps() for fact in self.take(command).facts]

    def advance(self, milliseconds: int, *, sweep: bool = True) -> None:
        self.clock.move(milliseconds)
        if sweep:
            self.sweep()

    # --- other brokers with the same state ---

    def restarted(self) -> Broker:
        """A broker folded from this one's snapshot, through its encoded form."""
        return self._folded([encode([image]) for image in self.broker.snapshot()])

    def replayed(self) -> Broker:
        """A broker folded from the journal."""
        return self._folded(self.journal)

    def _folded(self, frames: Iterable[bytes]) -> Broker:
        broker = Broker(self.limits, self.reader, self.chance)
        for frame in frames:
            for fact in decode(frame):
                broker.apply(fact)
        return broker

    # --- shorthands ---

    def topic(self, topic: str = "t", partitions: int = 1, config: f.TopicConfig | None = None) -> None:
        reply = self.do(c.CreateTopic(topic, partitions, config or f.TopicConfig()))
        assert not isinstance(reply, Rejected), reply

    def produce(self, *values: str | bytes, topic: str = "t", partition: int | None = 0, **more: object) -> Reply:
        return self.do(produce(*values, topic=topic, partition=partition, **more))

    def claim(
        self, max_count: int = 10, *, topic: str = "t", group: str = "g", owner: str = "w", **more: object
    ) -> Claimed:
        reply = self.do(c.Claim(topic, group, owner, max_count, **more))  # type: ignore[arg-type]
        assert isinstance(reply, Claimed), reply
        return reply


def produce(
    *values: str | bytes,
    topic: str = "t",
    partition: int | None = 0,
    key: bytes = b"",
    head: Head | None = None,
    marks: tuple[f.RecordSchedule, ...] = (),
    producer: f.ProducerSequence | None = None,
    once: c.ProduceKey | None = None,
    job: c.ProduceKey | None = None,
) -> c.Produce:
    """A produce command with its packed batch; every value gets the same key and head."""
    batch, count, payload_bytes = packed(*values, key=key, head=head)
    return c.Produce(topic, batch, count, payload_bytes, key, partition, producer, once, marks, job)


def packed(*values: str | bytes, key: bytes = b"", head: Head | None = None) -> tuple[bytes, int, int]:
    """(batch, count, payload bytes)"""
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    text = encode_head(head) if head is not None else b""
    batch = pack([Record(value, key, text) for value in raw])
    return batch, len(raw), sum(len(value) + len(key) + len(text) for value in raw)


def offsets(claimed: Claimed) -> list[int]:
    """The offsets of a claim, in the order in which they are handed out."""
    return [offset for delivery in claimed.deliveries for offset in range(delivery.first, delivery.end)]


def held(*runs: int | tuple[int, int], partition: int = 0, token: str = "") -> tuple[c.Held, ...]:
    """Offsets, or runs of them, that a caller claims to hold."""
    pairs = [(run, run + 1) if isinstance(run, int) else run for run in runs]
    return tuple(c.Held(partition, first, end, token) for first, end in pairs)
