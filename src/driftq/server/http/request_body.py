"""The body of a request while it arrives, and the budget that the bodies of all connections share.

    head complete ──begin──▶ add, take: the bytes in pieces ──last byte──▶ finish: the body
                                │
                                ├── over a limit: `RequestRefused`
                                └── refused or disconnected: release

Most bodies are complete with their first piece, which is kept as it came and costs no copy. Only bodies in several
pieces are collected in a buffer and count against the `BodyBudget`; the connection counts large ones until their
response is known. Knows nothing of parsers or sockets.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from driftq.server.http.limits import PIECE_BYTES
from driftq.server.http.request_head import RequestRefused

if TYPE_CHECKING:
    from driftq.server.http.limits import HttpLimits

# How much larger than its data chunk framing may be. Without a limit, chunk extensions could be sent endlessly.
CHUNK_OVERHEAD_FACTOR: Final = 16
CHUNK_OVERHEAD_FREE_BYTES: Final = 64 * 1024


class BodyBudget:
    """Bytes of bodies, over all connections: of incomplete ones, and of large ones until their response.

    When the budget is used up, a body is refused only if it is larger than an equal share of the budget. So one that
    needs little is not refused because others need much. All together never hold more than twice the budget.
    """

    __slots__ = ("_bodies", "_limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bodies = 0  # that hold something
        self.used_bytes = 0

    def admits(self, body_bytes: int, more_bytes: int) -> bool:
        """Whether a body that holds `body_bytes` may hold `more_bytes` more."""
        if self.used_bytes + more_bytes <= self._limit_bytes:
            return True
        bodies = self._bodies if body_bytes else self._bodies + 1
        return (body_bytes + more_bytes) * bodies <= self._limit_bytes

    def hold(self, size_bytes: int) -> None:
        """A further body holds this much."""
        self._bodies += 1
        self.used_bytes += size_bytes

    def grow(self, more_bytes: int) -> None:
        """A body that holds something already holds more."""
        self.used_bytes += more_bytes

    def release(self, size_bytes: int) -> None:
        """A body that held this much is gone."""
        self._bodies -= 1
        self.used_bytes -= size_bytes


class RequestBody:
    """The body that a connection receives now."""

    __slots__ = (
        "_budget", "_chunked_bytes", "_framing_bytes", "_limits", "_reserved_bytes",
        "buffer", "content_length", "expects_continue", "received", "remaining", "start", "upgraded",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self.content_length = -1  # -1: chunked, or no body
        self.received = 0  # bytes
        self.remaining = 0  # bytes of a body of known length that `take` still has to copy
        self.expects_continue = False  # the client waits for `100 Continue` before it sends the body
        self.upgraded = False  # the parser took an upgrade for the end of the request
        self.start = b""  # what came in the first piece
        self.buffer: BytesIO | None = None  # all of the body, if it comes in several pieces
        self._reserved_bytes = 0  # of the budget
        self._chunked_bytes = 0  # bytes of the chunked body, with its framing
        self._framing_bytes = 0  # bytes since its data last grew

    def begin(self, content_length: int) -> None:
        """A head is complete. -1: its body is chunked, or there is none."""
        if content_length > self._limits.body_bytes:
            raise RequestRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self.content_length = content_length
        self.received = 0
        self.expects_continue = self.upgraded = False
        if content_length < 0:
            self._chunked_bytes = self._framing_bytes = 0

    def add(self, data: bytes) -> None:
        """Data from the parser."""
        size = len(data)
        if not self.received and self.content_length >= 0:
            self.start = data
            self.received = size
            return
        if self.received + size > self._limits.body_bytes:
            raise RequestRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self._append(data, size)

    def end_piece(self, size: int, received_before: int) -> None:
        """The parser has read a piece of `size` bytes, and the body is not complete."""
        if self.content_length >= 0:
            self.remaining = self.content_length - self.received  # it needs no parsing, see `take`
            return
        # Limit the chunk extensions and trailers, which are read and discarded.
        self._chunked_bytes += size
        self._framing_bytes = 0 if self.received > received_before else self._framing_bytes + size
        allowance = CHUNK_OVERHEAD_FREE_BYTES + self.received * CHUNK_OVERHEAD_FACTOR
        if self._chunked_bytes > allowance or self._framing_bytes > self._limits.header_block_bytes + PIECE_BYTES:
            raise RequestRefused(400, "the chunk framing is too large for its data")

    def take(self, data: memoryview) -> int:
        """Copy the rest of a body of known length from the read buffer. Returns how many bytes were used."""
        taken = min(len(data), self.remaining)
        self._append(data[:taken] if taken < len(data) else data, taken)
        self.remaining -= taken
        return taken

    def _append(self, data: bytes | memoryview, size: int) -> None:
        budget = self._budget
        if not budget.admits(self._reserved_bytes, size):
            raise RequestRefused(503, "too many large request bodies at once; send less at a time, or try again later")
        if self.buffer is None:
            self.buffer = BytesIO()
            self.buffer.write(self.start)
        if self._reserved_bytes:
            budget.grow(size)
        else:
            budget.hold(size)
        self._reserved_bytes += size
        self.received += size
        self.buffer.write(data)

    def finish(self) -> bytes:
        """The complete body. (`RequestParser._complete` takes `start` itself, if that is all.)"""
        assert self.buffer is not None
        body = self.buffer.getvalue()  # hands over its buffer without a copy
        self.release()
        return body

    def release(self) -> None:
        """Release the memory of an incomplete body."""
        if self._reserved_bytes:
            self._budget.release(self._reserved_bytes)
            self._reserved_bytes = 0
        self.buffer = None
        self.start = b""
