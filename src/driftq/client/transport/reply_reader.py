"""Parses the replies of one connection: HTTP/1.1, in plain Python, so that the client needs no package for it.

    feed(bytes) ──▶ _read_head ──▶ _read_length ─────────────────┐
                       │     ├──▶ _read_chunk_size ⇄ _read_chunk ─┤──▶ on_complete
                       │     ├──▶ _read_to_end (until `end`) ─────┤
                       │     └──▶ no body (204, 304, HEAD) ───────┘
                       └── 1xx: the next head follows

Each of these takes bytes from a position on and returns the position after what it has used; the same position means
that it needs more. A reply is taken whole (`reply`) or piece by piece (`take_body`). The body of a large reply is
received straight into its final buffer: see `body_buffer`. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from driftq.client.errors import OutcomeUnknown
from driftq.client.transport.http import HttpReply

# A body of this length gets a buffer of its own and is received into it without a copy.
IN_PLACE_BYTES = range(256 * 1024, 64 * 1024 * 1024)
HEAD_BYTES_MAX = 64 * 1024
LINE_BYTES_MAX = 4 * 1024  # the line before a chunk, or a trailer
_NO_BODY = (204, 304)


class _Head(NamedTuple):
    """The head of a reply, as bytes and parsed. Replies with equal heads share it, and so its headers."""

    text: bytes
    status: int
    headers: dict[str, str]
    keep_alive: bool
    is_chunked: bool
    length: int | None  # as declared; -1 if that is no number


_NO_HEAD = _Head(b"\r\n", 0, {}, keep_alive=False, is_chunked=False, length=None)


class ReplyReader:
    """Parses replies one after the other. The `on_…` methods are for subclasses."""

    def __init__(self) -> None:
        self._unparsed = b""  # the beginning of a head, or of the line before a chunk
        self._head = _NO_HEAD  # the last one that was parsed
        self.reset()

    def reset(self, *, bodiless: bool = False, in_place: bool = False) -> None:
        """Prepare for the next reply. `bodiless`: the reply to a HEAD, whose Content-Length announces no body.
        `in_place`: the caller reads the reply as a whole and receives a large body into `body_buffer`."""
        self._bodiless = bodiless
        self._in_place = in_place
        self._phase: Callable[[ReplyReader, bytes, int], int] = ReplyReader._read_head
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._long: bytearray | None = None
        self._filled = 0
        self.has_head = False
        self.complete = False
        self.keep_alive = True

    def feed(self, data: bytes) -> None:
        """Parse what has arrived. Raises `OutcomeUnknown` if it is not HTTP."""
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
        position, end = 0, len(data)
        while position < end:
            if self.complete:
                self.keep_alive = False  # bytes that belong to no request of ours
                return
            used = self._phase(self, data, position)
            if used == position:
                self._unparsed = data[position:]
                return
            position = used

    def body_buffer(self) -> memoryview | None:
        """Where to receive the rest of a large body; None if no large body is under way."""
        return memoryview(self._long)[self._filled :] if self._long is not None and not self.complete else None

    def body_received(self, count: int) -> None:
        """This many bytes were received into `body_buffer`."""
        assert self._long is not None
        self._filled += count
        self._left -= count
        if self._filled == len(self._long):
            self.on_complete()

    def end(self) -> None:
        """The connection was closed, which completes a reply without a length."""
        self.keep_alive = False
        if self._phase is ReplyReader._read_to_end and not self.complete:
            self.on_complete()

    def reply(self) -> HttpReply:
        return HttpReply(self._status, self._headers, b"".join(self._parts) if self._long is None else self._long)

    def take_body(self) -> bytes:
        """The part of the body that has arrived since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    # --- for subclasses ---

    def on_head(self) -> None:
        """The head of a reply is complete."""

    def on_body(self, body: bytes) -> None:
        """A part of the body has arrived."""
        if self._long is None:
            self._parts.append(body)
        else:
            self._long[self._filled : self._filled + len(body)] = body
            self._filled += len(body)

    def on_complete(self) -> None:
        """A reply is complete. The next one may follow in the same bytes."""
        self.complete = True

    # --- the parts of a reply ---

    def _read_head(self, data: bytes, position: int) -> int:
        end = data.find(b"\r\n\r\n", position)
        if end < 0:
            if len(data) - position > HEAD_BYTES_MAX:
                raise _not_http(f"its head exceeds {HEAD_BYTES_MAX} bytes")
            if not b"HTTP/1.".startswith(data[position : position + 7]):
                raise _not_http(f"it begins with {data[position : position + 16]!r}")
            return position
        text = data[position:end]
        if text != self._head.text:  # replies to calls of one kind usually repeat the head of the one before
            head = _parse_head(text)
            if head.status < 200:
                return end + 4
            self._head = head
        self._begin_body(self._head)
        return end + 4

    def _begin_body(self, head: _Head) -> None:
        self._status, self._headers = head.status, head.headers
        self.has_head = True
        self.keep_alive = head.keep_alive
        if self._bodiless or head.status in _NO_BODY:
            self.on_head()
            self.on_complete()
            return
        if head.is_chunked:
            self._phase = ReplyReader._read_chunk_size
        elif head.length is None:
            self.keep_alive = False
            self._phase = ReplyReader._read_to_end
        elif head.length < 0:
            raise _not_http(f"its length is {head.headers['content-length'][:40]!r}")
        else:
            self._left = head.length
            self._phase = ReplyReader._read_length
            if self._in_place and self._left in IN_PLACE_BYTES:
                self._long = bytearray(self._left)
        self.on_head()
        if self._phase is ReplyReader._read_length and not self._left:
            self.on_complete()

    def _read_length(self, data: bytes, position: int) -> int:
        end = position + self._left
        part = data[position:end]
        self._left -= len(part)
        self.on_body(part)
        if not self._left:
            self.on_complete()
        return position + len(part)

    def _read_to_end(self, data: bytes, position: int) -> int:
        self.on_body(data[position:] if position else data)
        return len(data)

    def _read_chunk_size(self, data: bytes, position: int) -> int:
        end = _line_end(data, position)
        if end < 0:
            return position
        digits = data[position:end].partition(b";")[0].strip()
        try:
            self._left = int(digits, 16)
        except ValueError:
            self._left = -1
        if self._left < 0 or digits[:1] in (b"+", b"-"):
            raise _not_http(f"{digits[:40]!r} is not the size of a chunk")
        self._phase = ReplyReader._read_chunk if self._left else ReplyReader._read_trailer
        return end + 2

    def _read_chunk(self, data: bytes, position: int) -> int:
        part = data[position : position + self._left]
        if part:
            self._left -= len(part)
            self.on_body(part)
            return position + len(part)
        if len(data) - position < 2:  # the line break after the chunk
            return position
        if data[position : position + 2] != b"\r\n":
            raise _not_http("a chunk is longer than its size")
        self._phase = ReplyReader._read_chunk_size
        return position + 2

    def _read_trailer(self, data: bytes, position: int) -> int:
        end = _line_end(data, position)
        if end < 0:
            return position
        if end == position:
            self.on_complete()
        return end + 2


def _parse_head(text: bytes) -> _Head:
    first, *lines = text.decode("latin-1").split("\r\n")
    status = _status(first)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise _not_http(f"{line[:40]!r} is not a header")
        headers[name.lower()] = value.strip(" \t")
    connection = headers.get("connection", "").lower()
    keep_alive = "keep-alive" in connection if first.startswith("HTTP/1.0") else "close" not in connection
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length")
    length_bytes = None
    if length is not None:
        length_bytes = int(length) if length.isascii() and length.isdigit() else -1
    return _Head(text, status, headers, keep_alive, is_chunked, length_bytes)


def _status(line: str) -> int:
    """The status of a status line."""
    version, _, rest = line.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (rest[:3].isascii() and rest[:3].isdigit() and len(rest) >= 3):
        raise _not_http(f"it begins with {line[:40]!r}")
    return int(rest[:3])


def _line_end(data: bytes, position: int) -> int:
    """The position of the line break; -1 if it has not arrived."""
    end = data.find(b"\r\n", position, position + LINE_BYTES_MAX)
    if end < 0 and len(data) - position > LINE_BYTES_MAX:
        raise _not_http("the line before a chunk is too long")
    return end


def _not_http(reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the reply is not HTTP: {reason}")
