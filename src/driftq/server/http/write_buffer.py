"""The writing side of one connection: gathering, back-pressure, stall detection.

Owns every byte between a response and the transport. `paused` means that nothing more should be produced for this
socket. Knows nothing of requests, order or keep-alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftq.server.http.response import Buffer
    from driftq.server.http.service import Service

# Buffers below this are joined before they are written: copying them is cheaper than a call or an iovec each.
JOIN_BYTES: Final = 32 * 1024


class WriteBuffer:
    """Writes to a transport. `on_room` is called when `paused` falls."""

    __slots__ = (
        "_burst_bytes",
        "_burst_check",
        "_gathered",
        "_gathered_bytes",
        "_gathering",
        "_high_bytes",
        "_last_sent_bytes",
        "_on_room",
        "_scheduled",
        "_service",
        "_stall_since_s",
        "_transport",
        "_transport_paused",
        "_written_bytes",
        "paused",
    )

    def __init__(self, service: Service, transport: asyncio.Transport, on_room: Callable[[], None]) -> None:
        self._service = service
        self._transport = transport
        self._on_room = on_room
        self._high_bytes = service.limits.write_buffer_bytes
        transport.set_write_buffer_limits(high=self._high_bytes, low=self._high_bytes // 4)
        self.paused = False
        self._transport_paused = False
        self._gathering = False
        self._scheduled = False
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._burst_bytes = 0
        self._burst_check = False
        self._written_bytes = 0
        self._last_sent_bytes = 0
        self._stall_since_s = 0.0

    def write(self, data: Buffer) -> None:
        if self._gathering or self._scheduled:
            self._gathered.append(data)
            self._gathered_bytes += len(data)
            if self._gathered_bytes > JOIN_BYTES:
                self._flush()
        else:
            self._count(len(data))
            self._transport.write(data)

    def _count(self, size: int) -> None:
        self._written_bytes += size
        self._burst_bytes += size
        if self._burst_bytes > self._high_bytes and not self._burst_check:
            # The transport counts its output only once per turn of the loop; until then this count holds producers
            # back.
            self._burst_check = True
            self.paused = True
            self._service.loop.call_soon(self._burst_over)

    def gather(self) -> None:
        """From here on answers are collected, so that those of pipelined requests leave in one call."""
        self._gathering = True

    def release(self) -> None:
        self._gathering = False
        if self._gathered:
            self._flush()

    def gather_soon(self) -> None:
        """Collects answers until the next turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._service.loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._scheduled = False
        if self._gathered and not self._gathering and not self._transport.is_closing():
            self._flush()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._count(self._gathered_bytes)
        self._gathered_bytes = 0
        if len(gathered) == 1:
            self._transport.write(gathered[0])
        elif max(map(len, gathered)) <= JOIN_BYTES:
            self._transport.write(b"".join(gathered))
        else:
            self._transport.writelines(gathered)

    def pause(self) -> None:
        self._transport_paused = True
        self.paused = True

    def resume(self) -> None:
        self._transport_paused = False
        if not self._burst_check:
            self.paused = False
            self._on_room()

    def _burst_over(self) -> None:
        self._burst_check = False
        self._burst_bytes = 0
        if not self._transport_paused:
            self.paused = False
            self._on_room()

    def stalled(self, now_s: float) -> bool:
        """Whether output has been waiting, and none of it has moved, for longer than the limit."""
        unsent_bytes = self._transport.get_write_buffer_size()
        sent_bytes = self._written_bytes - unsent_bytes
        if not unsent_bytes or sent_bytes != self._last_sent_bytes:
            self._last_sent_bytes = sent_bytes
            self._stall_since_s = now_s
            return False
        return now_s - self._stall_since_s > self._service.limits.write_stall_s

    def empty(self) -> bool:
        return not self._gathered and not self._transport.get_write_buffer_size()

    def finish(self, half_close: bool) -> None:
        """Sends what is there, then closes; a half close leaves the reading side open."""
        if self._gathered:
            self._flush()
        if half_close and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # For answers written over time.

    def date_line(self) -> bytes:
        return self._service.date_line

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._service.loop.call_soon(callback)

    def abort(self) -> None:
        self._transport.abort()
