"""Responses that are written over time: `ResponseStream` for a producer coroutine, `FilePump` for a range of a file,
`PiecePump` for a reply that is made in pieces.

Owns chunk framing, the coalescing of small writes and backpressure towards the producer. All write to an `Output`,
which is the write buffer of the connection. Knows nothing of requests or of what is streamed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from driftq.server.http.response import JSON, Buffer, FileResponse, Headers, has_no_body, header_lines, prefix

if TYPE_CHECKING:
    from driftq.server.http.output_budget import OutputBudget
    from driftq.server.http.response import PieceSource

# Small writes of one turn of the loop leave together: one chunk header and one call of the transport.
FLUSH_BYTES: Final = 32 * 1024
# Below the size from which malloc maps and unmaps memory for every buffer.
FILE_PIECE_BYTES: Final = 64 * 1024


class Output(Protocol):
    """The write side of a connection, as streams see it."""

    paused: bool

    @property
    def budget(self) -> OutputBudget: ...

    def fit_budget(self) -> None: ...

    def has_turn(self) -> bool: ...

    def wait_for_turn(self) -> None: ...

    def charge(self, size_bytes: int) -> None: ...

    def write(self, data: Buffer) -> None: ...

    def date_line(self) -> bytes: ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def abort(self) -> None: ...


class ResponseStream:
    """One response that is being written. Produce nothing while `writable` is false; `drain` waits until it is true.

    `closed`: the client has disconnected and nothing written now arrives. `stopping`: the server wants the stream to
    end. `over`: either of them.
    """

    __slots__ = (
        "_callbacks",
        "_chunked",
        "_granted_bytes",
        "_keep_alive",
        "_mute",
        "_on_start",
        "_output",
        "_pending",
        "_pending_bytes",
        "_scheduled",
        "_waiters",
        "closed",
        "started",
        "stopping",
    )

    def __init__(
        self,
        output: Output,
        *,
        version: str,
        head_only: bool,
        keep_alive: bool,
        stopping: bool,
        on_start: Callable[[int], bytes] | None = None,
    ) -> None:
        self._output = output
        self._on_start = on_start  # returns header lines of the connection itself
        self._mute = head_only  # send no body: HEAD, 204, 304
        self._keep_alive = keep_alive
        self._chunked = version == "1.1"
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._granted_bytes = 0  # what the producer may write although the turn of the loop is spent
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
        """Whether the connection takes more. False once the client has disconnected."""
        return not self.closed and not self._output.paused

    @property
    def ready(self) -> bool:
        """Whether to produce more now: the connection takes more, and the loop has time."""
        return self.writable and (self._granted_bytes > 0 or self._output.has_turn())

    @property
    def is_tight(self) -> bool:
        """Whether memory for output is scarce: drop what can be read again before `drain`."""
        return self._output.budget.is_tight

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request after this stream has ended."""
        return self._keep_alive and self._chunked

    async def start(self, status: int = 200, headers: Headers = (), content_type: str = JSON) -> None:
        """Send the head at once, so that the client of an empty stream does not wait for its headers."""
        assert not self.started, "a stream is started once"
        lines = prefix(status, content_type) + self._output.date_line() + header_lines(headers)
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
            self._output.write(lines + b"\r\n")

    def write(self, data: Buffer) -> None:
        """Send `data`, without waiting. It leaves at the end of this turn of the loop at the latest."""
        assert self.started, "start the stream before writing to it"
        if self.closed or self._mute or not data:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._output.call_soon(self._flush_soon)

    def flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        size = self._pending_bytes
        self._pending = []
        self._pending_bytes = 0
        if self.closed:
            return
        if self._granted_bytes > 0:
            self._granted_bytes -= size
        else:
            self._output.charge(size)
        self._output.fit_budget()
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self._output.write(b"".join((b"%x\r\n" % size, data, b"\r\n")) if self._chunked else data)

    def charge(self, size_bytes: int) -> None:
        """The producer has read this much at once: the loop has less time for others in this turn."""
        self._output.charge(size_bytes)

    async def drain(self, held_bytes: int = 0) -> bool:
        """Wait until the connection takes more and the loop has time. False: the client has disconnected, stop
        producing. `held_bytes` is what the producer keeps in memory in the meantime."""
        if self._must_wait():
            self._output.budget.hold(held_bytes)
            try:
                while self._must_wait():
                    self.flush()
                    if not self._output.paused:
                        self._output.wait_for_turn()
                    await self._wait()
            finally:
                self._output.budget.release(held_bytes)
        return not self.closed

    def _must_wait(self) -> bool:
        return not self.closed and not self.ready

    async def wait_over(self) -> None:
        """Wait until the client disconnects or the server stops."""
        while not self.over:
            await self._wait()

    def on_over(self, callback: Callable[[], None]) -> None:
        """Call back once when the stream is over; at once if it is already."""
        if self.over:
            callback()
        else:
            self._callbacks.append(callback)

    # --- for the connection only ---

    def resume(self) -> None:
        self._wake()

    def take_turn(self, size_bytes: int) -> None:
        """The producer may write this much. It runs later in the same turn, or in the next one."""
        self._granted_bytes = size_bytes
        self._wake()

    def stop(self) -> None:
        self.stopping = True
        self._ended()

    def disconnect(self) -> None:
        self.closed = True
        self._pending = []
        self._ended()

    def finish(self) -> None:
        """End the response: the producer has returned."""
        self.flush()
        if self._chunked and not self._mute and not self.closed:
            self._output.write(b"0\r\n\r\n")

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
    """Writes a range of a file as fast as the connection takes it, without a task."""

    __slots__ = ("_finished", "_left", "_output", "_position", "_response")

    def __init__(self, output: Output, response: FileResponse, finished: Callable[[], None]) -> None:
        self._output = output
        self._response = response
        self._position = response.position
        self._left = response.size
        self._finished = finished

    def resume(self) -> None:
        """Write as much as the connection takes. Called at the start and whenever it takes more."""
        while self._left and not self._output.paused:
            if not self._output.has_turn():
                self._output.wait_for_turn()
                return
            data = os.pread(self._response.fd, min(FILE_PIECE_BYTES, self._left), self._position)
            if not data:
                # The file is shorter than the Content-Length that was sent: all that is left is to abort.
                self._output.abort()
                return
            self._position += len(data)
            self._left -= len(data)
            self._output.write(data)
            self._output.charge(len(data))
        if not self._left:
            self.release()
            self._finished()

    def skip(self) -> None:
        """Send only the head."""
        self._left = 0

    def disconnect(self) -> None:
        self.release()

    def stop(self) -> None:
        """A stopping server lets a range finish."""

    def release(self) -> None:
        release, self._response.release = self._response.release, None
        if release is not None:
            release()


class PiecePump:
    """Writes a `PieceResponse`: makes a piece whenever the connection takes one and the loop has time, without a
    task."""

    __slots__ = ("_chunked", "_finished", "_held_bytes", "_output", "_report", "_source")

    def __init__(
        self,
        output: Output,
        source: PieceSource,
        chunked: bool,
        finished: Callable[[], None],
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._output = output
        self._source = source
        self._chunked = chunked
        self._finished = finished
        self._report = report
        self._held_bytes = 0  # of the output budget, while the source waits

    def resume(self) -> None:
        output, source = self._output, self._source
        self._release()
        while not output.paused:
            if not output.has_turn():
                output.wait_for_turn()
                return
            try:
                piece = source.next_piece()
            except Exception as error:
                # The head is sent: aborting the connection is the only way to report that the rest is missing.
                self._report("a reply could not be completed", error)
                output.abort()
                return
            if not piece:
                if self._chunked:
                    output.write(b"0\r\n\r\n")
                source.close()
                self._finished()
                return
            output.charge(len(piece))
            output.fit_budget()
            output.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        if output.budget.is_tight:
            source.drop()
        self._held_bytes = source.held_bytes
        output.budget.hold(self._held_bytes)

    def _release(self) -> None:
        self._output.budget.release(self._held_bytes)
        self._held_bytes = 0

    def disconnect(self) -> None:
        self._release()
        self._source.close()

    def stop(self) -> None:
        """A stopping server lets a reply finish."""
