"""The live end of a log, shared by everybody who reads there: what arrives is read and encoded once, and handed to all.

A tail exists while somebody needs it and is fed with durable facts. It never waits for a reader: one whose socket is
full leaves, catches up from the log by itself and comes back. Nothing is polled, and nothing is kept per reader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.stream_facts import StreamClosed, StreamDeleted
from driftq.server.streams.stream_body import Form, RecordsUnreadable, StreamChunk, read_chunk

if TYPE_CHECKING:
    from driftq.core.model.replies import StreamView
    from driftq.engine.engine import Engine


class Arrival:
    """What moved a log: records, or only its end. `chunk` is None when there are no records to show."""

    __slots__ = ("chunk", "closed", "encoded", "end", "first")

    def __init__(self, first: int, end: int, chunk: StreamChunk | None, closed: bool) -> None:
        self.first = first
        self.end = end
        self.chunk = chunk
        self.closed = closed
        self.encoded: dict[str, object] = {}  # for the readers: whatever they made of it, made once


class Reader(Protocol):
    """Somebody at the end of a log. `offset` is what they wait for."""

    offset: int

    def take(self, arrival: Arrival) -> bool:
        """Handle what begins at `offset`. False: leave the tail, the reader goes on by itself."""

    def end(self) -> None:
        """The log is gone."""


class LiveTail:
    """One log's live end. `end` and `closed` are durable."""

    def __init__(self, engine: Engine, log_id: int, form: Form, max_bytes: int) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self.log_id = log_id
        self.form = form
        self.users = 0
        self.end = engine.durable_end(log_id)
        self.closed = False
        self.gone = False
        self.view: StreamView | None = None
        self._shown = self.end  # readers were handed everything below
        self._scheduled = False
        self._readers: dict[Reader, None] = {}

    def know(self, view: StreamView) -> None:
        """What a durable answer says about the log."""
        self.view = view
        self.end = max(self.end, view.end_offset)
        self.closed = self.closed or view.closed

    def join(self, reader: Reader) -> None:
        assert reader.offset >= self.end and not self.closed, "only who has read everything may wait here"
        if self._shown < self.end:
            self._show()  # or what comes next would begin before this reader's offset, and pass it by for ever
        self._readers[reader] = None

    def leave(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    def moved(self, end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
        """A durable fact concerns this log. Everybody hears of it at the end of this turn of the loop: what one sync
        made durable arrives together."""
        self.closed = self.closed or closes
        self.gone = self.gone or gone
        self.end = max(self.end, end)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._show)

    def _show(self) -> None:
        self._scheduled = False
        if self.gone:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.end()
            return
        while self._readers and self.view is not None and self._shown < self.end:
            try:
                chunk = read_chunk(self._engine, self.view, self.form, self._shown, self.end, self._max_bytes)
            except RecordsUnreadable:
                self._scatter()
                break
            if chunk.end == self._shown:
                break  # deleted in the same turn
            self._shown = chunk.end
            at_end = self._shown == self.end
            self._hand(Arrival(chunk.first, chunk.end, chunk, self.closed and at_end))
        self._shown = self.end
        if self.closed and self._readers:
            self._hand(Arrival(self.end, self.end, None, True))

    def _hand(self, arrival: Arrival) -> None:
        for reader in list(self._readers):
            if reader.offset == arrival.first and not reader.take(arrival):
                self._readers.pop(reader, None)

    def _scatter(self) -> None:
        """Let everybody find out by themselves."""
        arrival = Arrival(self._shown, self._shown, None, False)
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.take(arrival)


class LiveTails:
    """The tails in use, by log. An observer of durable facts."""

    def __init__(self, engine: Engine, max_bytes: int) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self._by_log: dict[int, LiveTail] = {}
        engine.sequencer.observers.append(self.observe)

    def enter(self, log_id: int, form: Form) -> LiveTail:
        """Begin to follow a log, before asking about it: nothing that becomes durable meanwhile is missed."""
        tail = self._by_log.get(log_id)
        if tail is None:
            tail = self._by_log[log_id] = LiveTail(self._engine, log_id, form, self._max_bytes)
        tail.users += 1
        return tail

    def leave(self, tail: LiveTail) -> None:
        tail.users -= 1
        if not tail.users and self._by_log.get(tail.log_id) is tail:
            del self._by_log[tail.log_id]

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        if not self._by_log:
            return
        for fact in facts:
            match fact:
                case f.Appended():
                    closes = fact.along is not None and fact.along.closes
                    self._moved(fact.log_id, fact.first_offset + fact.count, closes=closes)
                case StreamClosed():
                    self._moved(fact.log_id, closes=True)
                case StreamDeleted():
                    self._moved(fact.log_id, gone=True)
                case Published():
                    for part in fact.parts:
                        self._moved(part.log_id, part.first_offset + part.count)
                case f.TopicDeleted():
                    for log_id in fact.log_ids:
                        self._moved(log_id, gone=True)
                case _:
                    pass

    def _moved(self, log_id: int, end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
        tail = self._by_log.get(log_id)
        if tail is not None:
            tail.moved(end, closes=closes, gone=gone)
