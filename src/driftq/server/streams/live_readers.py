"""Readers at the live end of a log: a long poll, which waits for one response, and an SSE connection.

Both join the shared `LiveTail`, see there. An SSE reader alternates between two modes:

    catch up: read from the log, write, drain ──at the end of the log──> follow: the tail writes to the connection
         ▲                                                                     │
         └──────────────── the socket is full, or the log was closed ──────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftq.engine.cold_reads import RecordsAway, read_cold
from driftq.server.streams.responses import ON_ALL
from driftq.server.streams.sse import control_event, data_event, data_event_piece
from driftq.server.streams.stream_body import RecordsUnreadable, StreamChunk, read_chunk
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.http import Deferred, Request, Response, ResponseStream
    from driftq.server.streams.tails import Arrival, LiveTail, LiveTails

SSE_BYTES = 64 << 10  # a reader that catches up reads this much at a time; at least a batch


class LongPoll:
    """One long poll that waits. `respond` builds the response to an arrival, or to None if nothing arrived in time."""

    def __init__(
        self,
        tails: LiveTails,
        tail: LiveTail,
        offset: int,
        answer: Deferred,
        respond: Callable[[Arrival | None], Response],
    ) -> None:
        self._tails = tails
        self._tail = tail
        self.offset = offset
        self._answer = answer
        self._respond = respond
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, request: Request, wait_s: float) -> None:
        self._tail.join(self)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timeout)
        request.on_gone(self._on_disconnect)

    def take(self, arrival: Arrival) -> bool:
        self._finish(self._respond(arrival))
        return False

    def end(self) -> None:
        self._finish(self._respond(None))

    def _on_timeout(self) -> None:
        self._finish(self._respond(None))

    def _on_disconnect(self) -> None:
        self._leave()

    def _finish(self, response: Response) -> None:
        if self._leave():
            self._answer.resolve(response)

    def _leave(self) -> bool:
        """True the first time: there is one response, and the client may have disconnected before it."""
        if self._timer is None:
            return False
        self._timer.cancel()
        self._timer = None
        self._tail.leave(self)
        self._tails.leave(self._tail)
        return True


class EventReader:
    """One SSE connection."""

    def __init__(
        self, engine: Engine, tails: LiveTails, tail: LiveTail, offset: int, cursor: str, content_type: str
    ) -> None:
        self._engine = engine
        self._tails = tails
        self._tail = tail
        self.offset = offset
        self._cursor = cursor
        self._as_base64 = not w.is_text(content_type)
        self._sent_end = False
        self._woken: asyncio.Future[None] | None = None

    async def run(self, stream: ResponseStream, duration_s: float) -> None:
        """Run until the log ends, the client disconnects or the time is up. A client resumes at its offset."""
        self._stream = stream
        headers = [*ON_ALL, ("Cache-Control", "no-cache")]
        if self._as_base64:
            headers.append((w.SSE_ENCODING, "base64"))
        try:
            await stream.start(200, headers, w.SSE_TYPE)
            stream.on_over(self._wake)
            await self._read(stream, asyncio.get_running_loop().time() + duration_s)
        finally:
            self._tails.leave(self._tail)

    async def _read(self, stream: ResponseStream, until_s: float) -> None:
        tail = self._tail
        silent = True
        while not tail.gone and not stream.over:
            if self.offset < tail.end:
                if not await self._catch_up(stream):
                    return
            elif self._sent_end:
                return
            elif tail.closed or silent:
                stream.write(control_event(self.offset, self._cursor, up_to_date=True, closed=tail.closed))
                self._sent_end = tail.closed
            elif asyncio.get_running_loop().time() >= until_s:
                return
            else:
                await self._follow(until_s)
            silent = False
            if not await stream.drain():
                return

    async def _catch_up(self, stream: ResponseStream) -> bool:
        """Send the next records from the log, in pieces. False: the stream ends."""
        tail = self._tail
        if not await stream.drain():
            return False
        chunk = await self._read_chunk(tail.end)
        if chunk is None or chunk.end == self.offset:
            return False
        end, at_end = chunk.end, chunk.end == tail.end
        payload: bytes | memoryview = chunk.view()
        size = len(payload)
        if size > SSE_BYTES:
            stream.charge(size)
        piece, position = data_event_piece(payload, 0, SSE_BYTES, as_base64=self._as_base64)
        stream.write(piece)
        while position < size:
            if stream.is_tight and not stream.writable:
                payload, chunk = b"", None  # read it again when the client takes more
            if not await stream.drain(len(payload)):
                return False
            if not payload:
                chunk = await self._read_chunk(end)
                if chunk is None or chunk.end != end:
                    return False  # deleted or damaged in the meantime: the client resumes at its offset
                payload = chunk.view()
                stream.charge(size)
            piece, position = data_event_piece(payload, position, SSE_BYTES, as_base64=self._as_base64)
            stream.write(piece)
        self.offset = end
        self._sent_end = at_end and tail.closed
        stream.write(control_event(end, self._cursor, up_to_date=at_end, closed=self._sent_end))
        return True

    async def _read_chunk(self, end: int) -> StreamChunk | None:
        tail = self._tail
        assert tail.view is not None
        read = partial(read_chunk, self._engine, tail.view, tail.form, self.offset, end, SSE_BYTES)
        try:
            return await read_cold(self._engine.cold_reads, read)
        except (RecordsUnreadable, RecordsAway):
            return None  # the next request of this client gets the error

    def _events(self, chunk: StreamChunk, *, up_to_date: bool, closed: bool) -> bytes:
        data = data_event(chunk.body(), as_base64=self._as_base64)
        return data + control_event(chunk.end, self._cursor, up_to_date=up_to_date, closed=closed)

    async def _follow(self, until_s: float) -> None:
        """Join the tail, which writes to this connection, until the reader has to act itself."""
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_at(until_s, self._wake)
        self._tail.join(self)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._tail.leave(self)
            self._woken = None

    def take(self, arrival: Arrival) -> bool:
        if not self._stream.writable or arrival.is_large or (arrival.chunk is None and not arrival.closed):
            self._wake()
            return False
        events = arrival.encoded.get(self._cursor)
        if events is None:
            if arrival.chunk is not None:
                events = self._events(arrival.chunk, up_to_date=True, closed=arrival.closed)
            else:
                events = control_event(arrival.end, self._cursor, up_to_date=True, closed=True)
            arrival.encoded[self._cursor] = events
        assert isinstance(events, bytes)
        self._stream.write(events)
        self.offset = arrival.end
        self._sent_end = arrival.closed
        if arrival.closed:
            self._wake()
        return not arrival.closed

    def end(self) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
