"""The write side of one connection: coalescing, backpressure, stall detection.

Theory of operation. Every byte of a response passes through here on its way to the transport:

    write(data) ──corked?──no──> transport.write
                    │yes
                    ▼
                _buffers ──uncork(), next turn of the loop, or > JOIN_BYTES──> joined ──> transport.write

*Corking* (as TCP_CORK): while requests are being parsed and started, their responses are collected, so that the
responses of a pipeline leave in one system call.

*Backpressure*: `paused` means that nothing more should be produced for this socket. Two counters set it. The transport
calls `pause` and `resume` at `limits.write_buffer_bytes` and a quarter of it. But a transport sends at most once per
turn of the loop and only then counts, so `_count` also pauses after that many bytes within one turn, until the next
turn. When both allow it, `paused` falls and `on_writable` is called.

*Memory*: while the transport is paused, what the peer does not take counts against the `OutputBudget` of all
connections.

*Stalls*: the sweep asks `stalled`. A peer that takes no byte for `limits.write_stall_s` while output waits is aborted.

Knows nothing of requests, order or keep-alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from driftq.server.http.output_budget import TIGHT_BUFFER_BYTES

if TYPE_CHECKING:
    from driftq.server.http.output_budget import OutputBudget
    from driftq.server.http.response import Buffer
    from driftq.server.http.service import Service

# Smaller buffers are joined before they are written: copying is cheaper than a call or an iovec for each.
JOIN_BYTES: Final = 32 * 1024


class WriteBuffer:
    """Writes to a transport. `on_writable` is called when `paused` becomes false."""

    __slots__ = (
        "_turn_bytes",
        "_turn_limit_hit",
        "_buffers",
        "_buffered_bytes",
        "_corked",
        "_limit_bytes",
        "_last_sent_bytes",
        "_on_writable",
        "_flush_scheduled",
        "_held_bytes",
        "_on_turn_needed",
        "_service",
        "_stall_since_s",
        "_transport",
        "_transport_paused",
        "_written_bytes",
        "paused",
    )

    def __init__(
        self,
        service: Service,
        transport: asyncio.Transport,
        on_writable: Callable[[], None],
        on_turn_needed: Callable[[], None],
    ) -> None:
        self._service = service
        self._transport = transport
        self._on_writable = on_writable
        self._on_turn_needed = on_turn_needed
        self._held_bytes = 0  # of the output budget, while the transport is paused
        self._limit_bytes = service.limits.write_buffer_bytes
        transport.set_write_buffer_limits(high=self._limit_bytes, low=self._limit_bytes // 4)
        self.paused = False  # produce nothing more for now
        self._transport_paused = False  # the transport's own buffer is above its high-water mark
        self._corked = False  # collect writes until `uncork`
        self._flush_scheduled = False  # collect writes until the next turn of the loop
        self._buffers: list[Buffer] = []  # collected writes
        self._buffered_bytes = 0  # their size
        self._turn_bytes = 0  # given to the transport since the last turn that was counted
        self._turn_limit_hit = False  # `_turn_bytes` passed the limit: paused until the next turn
        self._written_bytes = 0  # given to the transport, in total
        self._last_sent_bytes = 0  # of those, taken by the peer at the last check for a stall
        self._stall_since_s = 0.0  # when output was last seen to move, or to be absent

    def write(self, data: Buffer) -> None:
        if self._corked or self._flush_scheduled:
            self._buffers.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes > JOIN_BYTES:
                self._flush()
        else:
            self._count(len(data))
            self._transport.write(data)

    def _count(self, size: int) -> None:
        self._written_bytes += size
        self._turn_bytes += size
        if self._turn_bytes > self._limit_bytes and not self._turn_limit_hit:
            # The transport counts its output only once per turn of the loop. Until then, this count pauses producers.
            self._turn_limit_hit = True
            self.paused = True
            self._service.loop.call_soon(self._service.monitor.timed("output", self._on_next_turn))

    def cork(self) -> None:
        """Collect writes until `uncork`, so that the responses of pipelined requests leave in one call."""
        self._corked = True

    def uncork(self) -> None:
        self._corked = False
        if self._buffers:
            self._flush()

    def cork_until_next_turn(self) -> None:
        """Collect writes until the next turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._service.loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        if self._buffers and not self._corked and not self._transport.is_closing():
            self._flush()

    def _flush(self) -> None:
        buffers, self._buffers = self._buffers, []
        self._count(self._buffered_bytes)
        self._buffered_bytes = 0
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        elif max(map(len, buffers)) <= JOIN_BYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def pause(self) -> None:
        self._transport_paused = True
        self.paused = True
        self._held_bytes = self._transport.get_write_buffer_size()
        self.budget.hold(self._held_bytes)

    def resume(self) -> None:
        self._transport_paused = False
        self.release()
        if not self._turn_limit_hit:
            self.paused = False
            self._on_writable()

    def _on_next_turn(self) -> None:
        self._turn_limit_hit = False
        self._turn_bytes = 0
        if not self._transport_paused:
            self.paused = False
            self._on_writable()

    def release(self) -> None:
        """The peer has taken the output, or is gone."""
        self.budget.release(self._held_bytes)
        self._held_bytes = 0

    def stalled(self, now_s: float) -> bool:
        """Whether output has waited for longer than the limit and none of it was sent."""
        unsent_bytes = self._transport.get_write_buffer_size()
        sent_bytes = self._written_bytes - unsent_bytes
        if not unsent_bytes or sent_bytes != self._last_sent_bytes:
            self._last_sent_bytes = sent_bytes
            self._stall_since_s = now_s
            return False
        return now_s - self._stall_since_s > self._service.limits.write_stall_s

    def is_empty(self) -> bool:
        return not self._buffers and not self._transport.get_write_buffer_size()

    def close(self, half_close: bool) -> None:
        """Send what was written, then close. A half close leaves the read side open."""
        if self._buffers:
            self._flush()
        if half_close and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # --- for streams and files, see `stream.Output` ---

    def date_line(self) -> bytes:
        return self._service.date_line

    @property
    def budget(self) -> OutputBudget:
        return self._service.output_budget

    def fit_budget(self) -> None:
        """A piece follows. How much unsent output this connection may have depends on how much there is in all."""
        limit_bytes = TIGHT_BUFFER_BYTES if self.budget.is_tight else self._service.limits.write_buffer_bytes
        if limit_bytes != self._limit_bytes:
            self._limit_bytes = limit_bytes
            self._transport.set_write_buffer_limits(high=limit_bytes, low=limit_bytes // 4)

    def has_turn(self) -> bool:
        """Whether this turn of the loop has time to make more output."""
        return self._service.turns.left > 0

    def wait_for_turn(self) -> None:
        """Call `resume` of the writer when there is time."""
        self._on_turn_needed()

    def charge(self, size_bytes: int) -> None:
        """Output of this size was made in this turn."""
        self._service.turns.charge(size_bytes)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._service.loop.call_soon(callback)

    def abort(self) -> None:
        self._transport.abort()
