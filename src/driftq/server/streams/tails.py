"""The live end of a log, shared by all its readers: what arrives is read and encoded once and handed to each of them.

Theory of operation. A `LiveTail` exists while at least one request uses it. It follows durable facts, so a reader never
sees what a crash could take back:

    sync ──> facts ──> LiveTails.observe ──> LiveTail.advance(end)        remembers the new end, schedules one _deliver
                                                  │  end of this turn of the loop: all facts of one sync together
                                                  ▼
                                              _deliver ──> read_chunk(from the last delivered offset to the end)
                                                  │
                                                  ├──> reader 1 .take(arrival)      long poll: responds and leaves
                                                  ├──> reader 2 .take(arrival)      SSE: writes the event
                                                  └──> reader 3 .take(arrival)      SSE, socket full: returns False

Rules:

    1. Only a reader that has read everything up to `end` may join: it waits for exactly the next offset.
    2. The tail never waits for a reader. One whose socket is full leaves (`take` returns False), catches up from the
       log on its own, and joins again. So the tail keeps no data and no position per reader.
    3. `enter` comes before the question about the log: facts that become durable in between are not missed.

Nothing is polled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.stream_facts import StreamClosed, StreamDeleted
from driftq.server.streams.stream_body import Form, RecordsUnreadable, StreamChunk, read_chunk
from driftq.storage.cold_segments import ColdRange

if TYPE_CHECKING:
    from driftq.core.model.replies import StreamView
    from driftq.engine.engine import Engine


LARGE_BYTES = 128 << 10


class Arrival:
    """News of a log: records, or that it was closed. `chunk` is None if there are no records."""

    __slots__ = ("chunk", "closed", "encoded", "end", "first", "is_large")

    def __init__(self, first: int, end: int, chunk: StreamChunk | None, closed: bool) -> None:
        self.first = first
        self.end = end
        self.chunk = chunk
        self.closed = closed
        # Too large to be written at once to each reader, some of which may not read: each reads it from the log.
        self.is_large = chunk is not None and sum(map(len, chunk.parts)) > LARGE_BYTES
        self.encoded: dict[str, object] = {}  # what readers made of it, by their own keys, so that it is encoded once


class Reader(Protocol):
    """A request that waits at the end of a log, for the record at `offset`."""

    offset: int

    def take(self, arrival: Arrival) -> bool:
        """Handle an arrival that begins at `offset`. False: the reader leaves the tail."""

    def end(self) -> None:
        """The log was deleted."""


class LiveTail:
    """The live end of one log. `end` and `closed` are durable."""

    def __init__(self, engine: Engine, log_id: int, form: Form, max_bytes: int) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self.log_id = log_id
        self.form = form
        self.users = 0  # requests that use this tail, see `LiveTails.enter`
        self.end = engine.durable_end(log_id)
        self.closed = False
        self.gone = False  # deleted
        self.view: StreamView | None = None  # where the records of the stream are kept
        self._delivered = self.end  # readers were handed everything below
        self._scheduled = False  # `_deliver` runs at the end of this turn of the loop
        self._readers: dict[Reader, None] = {}

    def know(self, view: StreamView) -> None:
        """Take over what a durable reply reports about the log."""
        self.view = view
        self.end = max(self.end, view.end_offset)
        self.closed = self.closed or view.closed

    def join(self, reader: Reader) -> None:
        assert reader.offset >= self.end and not self.closed, "a reader has to catch up before it joins"
        if self._delivered < self.end:
            self._deliver()  # otherwise the next arrival would begin before this reader's offset and skip it
        self._readers[reader] = None

    def leave(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    def advance(self, end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
        """A fact of this log became durable. Readers get it at the end of this turn of the loop, so that everything one
        sync made durable arrives together."""
        self.closed = self.closed or closes
        self.gone = self.gone or gone
        self.end = max(self.end, end)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._engine.monitor.timed("live reads", self._deliver))

    def _deliver(self) -> None:
        self._scheduled = False
        if self.gone:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.end()
            return
        while self._readers and self.view is not None and self._delivered < self.end:
            try:
                chunk = read_chunk(self._engine, self.view, self.form, self._delivered, self.end, self._max_bytes)
            except (RecordsUnreadable, ColdRange):
                self._release_all()
                break
            if chunk.end == self._delivered:
                break  # deleted in the same turn
            self._delivered = chunk.end
            at_end = self._delivered == self.end
            self._hand_out(Arrival(chunk.first, chunk.end, chunk, self.closed and at_end))
        self._delivered = self.end
        if self.closed and self._readers:
            self._hand_out(Arrival(self.end, self.end, None, True))

    def _hand_out(self, arrival: Arrival) -> None:
        for reader in list(self._readers):
            if reader.offset == arrival.first and not reader.take(arrival):
                self._readers.pop(reader, None)

    def _release_all(self) -> None:
        """Records cannot be read: let each reader read on its own and report the error."""
        arrival = Arrival(self._delivered, self._delivered, None, False)
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.take(arrival)


class LiveTails:
    """The tails in use, by log. Observes durable facts."""

    def __init__(self, engine: Engine, max_bytes: int) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self._by_log: dict[int, LiveTail] = {}
        engine.sequencer.observers.append(self.observe)

    def enter(self, log_id: int, form: Form) -> LiveTail:
        """Follow a log. Called before asking about it, so that nothing that becomes durable in between is missed."""
        tail = self._by_log.get(log_id)
        if tail is None:
            tail = self._by_log[log_id] = LiveTail(self._engine, log_id, form, self._max_bytes)
        tail.users += 1
        return tail

    def leave(self, tail: LiveTail) -> None:
        tail.users -= 1
        if not tail.users and self._by_log.get(tail.log_id) is tail:
            del self._by_log[tail.log_id]

    def readers_of(self, log_id: int) -> int:
        """How many requests follow a log now."""
        tail = self._by_log.get(log_id)
        return tail.users if tail is not None else 0

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        if not self._by_log:
            return
        for fact in facts:
            match fact:
                case f.Appended():
                    closes = fact.along is not None and fact.along.closes
                    self._advance(fact.log_id, fact.first_offset + fact.count, closes=closes)
                case StreamClosed():
                    self._advance(fact.log_id, closes=True)
                case StreamDeleted():
                    self._advance(fact.log_id, gone=True)
                case Published():
                    for part in fact.parts:
                        self._advance(part.log_id, part.first_offset + part.count)
                case f.TopicDeleted():
                    for log_id in fact.log_ids:
                        self._advance(log_id, gone=True)
                case _:
                    pass

    def _advance(self, log_id: int, end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
        tail = self._by_log.get(log_id)
        if tail is not None:
            tail.advance(end, closes=closes, gone=gone)
