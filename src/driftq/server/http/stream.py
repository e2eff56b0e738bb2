"""Answers that are written over time: `ResponseStream` for a producer coroutine, `FilePump` for a range of a file.

Owns chunk framing, the joining of small writes and back-pressure towards whoever produces. Knows nothing of requests
or of what is streamed. Both write through an `Outlet`, which is the connection seen from here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, Protocol

from driftq.server.http.response import JSON, Buffer, FileResponse, Headers, has_no_body, header_lines, prefix

# Small writes of one turn of the loop leave together: one chunk header and one call into the transport.
FLUSH_BYTES: Final = 32 * 1024
# Below the size from which malloc maps and unmaps every buffer.
FILE_PIECE_BYTES: Final = 64 * 1024


class Outlet(Protocol):
    """The writing side of a connection."""

    paused: bool

    def write(self, data: Buffer) -> None: ...

    def date_line(self) -> bytes: ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def abort(self) -> None: ...


class ResponseStream:
    """One response in the making. Nothing should be produced while `writable` is false; `drain` waits for that.

    `closed`: the client is gone, nothing written now arrives. `stopping`: the server asks for a clean end. `over`:
    either.
    """

    __slots__ = (
        "_callbacks",
        "_chunked",
        "_keep_alive",
        "_mute",
        "_on_start",
        "_outlet",
        "_pending",
        "_pending_bytes",
        "_scheduled",
        "_version",
        "_waiters",
        "closed",
        "started",
        "stopping",
    )

    def __init__(
        self,
        outlet: Outlet,
        *,
        version: str,
        head_only: bool,
        keep_alive: bool,
        stopping: bool,
        on_start: Callable[[int], bytes] | None = None,
    ) -> None:
        self._outlet = outlet
        self._on_start = on_start  # gives header lines of the connection's own
        self._version = version
        self._mute = head_only
        self._keep_alive = keep_alive
        self._chunked = version == "1.1"
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._scheduled = False
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], None]] = []
        self.started = False
        self.closed = False
        self.stopping = stopping

    @property
    def over(self) -> bool:
        return self.closed or self.stopping

    @property
    def writable(self) -> bool:
        """Whether the socket takes more. False once the client has gone."""
        return not self.closed and not self._outlet.paused

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request after this stream has ended."""
        return self._keep_alive and self._chunked

    async def start(self, status: int = 200, headers: Headers = (), content_type: str = JSON) -> None:
        """Sends the head at once, so that a client of an empty stream does not wait for its headers."""
        assert not self.started, "a stream is started once"
        lines = prefix(status, content_type) + self._outlet.date_line() + header_lines(headers)
        if self._on_start is not None:
            lines += self._on_start(status)
        self.started = True
        if has_no_body(status):
            self._mute = True
            self._chunked = False
        elif self._chunked:
            lines += b"Transfer-Encoding: chunked\r\n"
        if not self.reusable:
            lines += b"Connection: close\r\n"
        if not self.closed:
            self._outlet.write(lines + b"\r\n")

    def write(self, data: Buffer) -> None:
        """Takes `data` for sending, without waiting; it leaves at the end of this turn of the loop at the latest."""
        assert self.started, "start the stream before writing to it"
        if self.closed or self._mute or not data:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._outlet.call_soon(self._flush_soon)

    def flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        size = self._pending_bytes
        self._pending = []
        self._pending_bytes = 0
        if self.closed:
            return
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self._outlet.write(b"".join((b"%x\r\n" % size, data, b"\r\n")) if self._chunked else data)

    async def drain(self) -> bool:
        """Waits until the socket takes more. False: the client is gone, stop producing."""
        while self._outlet.paused and not self.closed:
            self.flush()
            await self._wait()
        return not self.closed

    async def wait_over(self) -> None:
        """Returns when the client has gone or the server stops."""
        while not self.over:
            await self._wait()

    def on_over(self, callback: Callable[[], None]) -> None:
        """Calls back once when the stream is over; at once if it is."""
        if self.over:
            callback()
        else:
            self._callbacks.append(callback)

    # For the connection only.

    def resumed(self) -> None:
        self._wake()

    def stop(self) -> None:
        self.stopping = True
        self._ended()

    def gone(self) -> None:
        self.closed = True
        self._pending = []
        self._ended()

    def finish(self) -> None:
        """The producer has returned: a clean end."""
        self.flush()
        if self._chunked and not self._mute and not self.closed:
            self._outlet.write(b"0\r\n\r\n")

    def _flush_soon(self) -> None:
        self._scheduled = False
        self.flush()

    def _ended(self) -> None:
        self._wake()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class FilePump:
    """Moves a range of a file to the socket as fast as the socket takes it, without a task."""

    __slots__ = ("_finished", "_left", "_outlet", "_position", "_response")

    def __init__(self, outlet: Outlet, response: FileResponse, finished: Callable[[], None]) -> None:
        self._outlet = outlet
        self._response = response
        self._position = response.position
        self._left = response.size
        self._finished = finished

    def resumed(self) -> None:
        """Called at the start and whenever the socket takes more."""
        while self._left and not self._outlet.paused:
            data = os.pread(self._response.fd, min(FILE_PIECE_BYTES, self._left), self._position)
            if not data:
                # The file is shorter than the length already promised: only cutting the connection tells the client.
                self._outlet.abort()
                return
            self._position += len(data)
            self._left -= len(data)
            self._outlet.write(data)
        if not self._left:
            self.release()
            self._finished()

    def skip(self) -> None:
        """Only the head is wanted."""
        self._left = 0

    def gone(self) -> None:
        self.release()

    def stop(self) -> None:
        """A server that stops lets a range finish."""

    def release(self) -> None:
        release, self._response.release = self._response.release, None
        if release is not None:
            release()
