"""Bytes in, `Request` values out, for one connection.

Theory of operation. `feed` takes what was read from the socket and moves through three phases per request:

             first byte             blank line                     last byte of the body
    IDLE ─────────────────> HEAD ──────────────────> BODY ─────────────────────────────────> IDLE, deliver(request)
      └── head in the cache and the whole body already there: deliver at once ────────────────┘

There are three ways to read, from the fastest to the most general:

    1. `_deliver_cached`   The bytes of a head are looked up in `HeadCache`. Clients repeat their heads byte for byte:
                           small requests rarely reach the parser. A client that does not repeat them skips the cache
                           for its next requests.
    2. `_take_body`        The rest of a body of known length is copied from the read buffer, without parsing.
    3. `_parse`            Everything else goes through httptools (llhttp), which calls the `on_…` methods.

The parser is strict about syntax: bare LF, folded lines, bad chunks. The rules it does not have (sizes, Host, framing
that two readers could understand differently, Expect) are checked here and in `request_head`. A violation becomes
`refusal`, a status and a message, and `ended` is set: the connection sends it and closes.

Two limits bound what a peer can make us do: input is parsed in pieces of `PIECE_BYTES`, between which `paused` is
checked, and incomplete bodies of all connections share a `BodyBudget`. Knows nothing of sockets, time or responses.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from driftq.server.http.limits import BODY, HEAD, IDLE, HttpLimits
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_head import (
    CACHE_MISSES_MAX,
    CACHE_SKIPPED_REQUESTS,
    SPECIAL,
    HeadCache,
    HeadRefused,
    check_chunked,
    check_repeated,
    check_size,
    check_version,
    expects_continue,
    is_cacheable,
    path_of,
)

# The parser cannot be paused inside one call. Pieces of at most this size bound what a flood of tiny pipelined requests
# can make us parse ahead.
PIECE_BYTES: Final = 16 * 1024

# How much larger than its data chunk framing may be. Without a limit, chunk extensions could be sent endlessly.
CHUNK_OVERHEAD_FACTOR: Final = 16
CHUNK_OVERHEAD_FREE_BYTES: Final = 64 * 1024

_NO_HEAD = RequestHead("", b"", {})
_METHODS = {m.encode(): m for m in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")}


class BodyBudget:
    """Bytes of incomplete bodies, over all connections."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class RequestParser:
    """The read side of a connection. `deliver` is called with each complete request, in order."""

    __slots__ = (
        "_body_buffer", "_body_remaining", "_body_start", "_budget", "_cache_misses", "_chunked_bytes",
        "_content_length", "_deliver", "_fields", "_framing_bytes", "_head", "_head_cache", "_limits",
        "_new_head_bytes", "_parser", "_peer", "_piece_bytes", "_repeated", "_reserved_bytes", "_target_bytes",
        "_target_parts", "_upgrade", "body_received", "ended", "expects_continue", "head_bytes", "paused", "phase",
        "refusal",
    )  # fmt: skip

    def __init__(
        self,
        limits: HttpLimits,
        budget: BodyBudget,
        head_cache: HeadCache,
        peer: str,
        deliver: Callable[[Request], None],
    ) -> None:
        self._limits = limits
        self._budget = budget
        self._head_cache = head_cache
        self._peer = peer
        self._deliver = deliver
        self._parser = HttpRequestParser(self)

        # Read by the connection.
        self.phase: int = IDLE
        self.refusal: tuple[int, str] | None = None  # status and message of the response that ends the connection
        self.paused = False  # set by the connection: it takes no further request for now
        self.ended = False  # no further request: refused, or the last one had `Connection: close`
        self.expects_continue = False  # the client waits for `100 Continue` before it sends the body
        self.body_received = 0  # bytes of the present body
        self.head_bytes = 0  # bytes given to the parser since the head began, an upper bound; 0: nothing ever arrived

        # The head cache.
        self._new_head_bytes = b""  # the head that is now being parsed, if it should be added to the cache
        self._cache_misses = 0  # in a row

        # The head that is being parsed.
        self._piece_bytes = 0  # size of the piece that the parser has now
        self._target_parts: list[bytes] = []
        self._target_bytes = 0
        self._fields: dict[bytes, bytes] = {}
        self._repeated = 0  # header fields that were merged into an earlier one

        # The body that is being received, and its head.
        self._head: RequestHead = _NO_HEAD
        self._content_length = -1  # -1: chunked, or no body
        self._body_start = b""  # what came in the first piece; most bodies are complete with it
        self._body_buffer: BytesIO | None = None  # all of the body, if it comes in several pieces
        self._body_remaining = 0  # bytes of a body of known length that `_take_body` still has to copy
        self._reserved_bytes = 0  # of the budget
        self._chunked_bytes = 0  # bytes of the chunked body, with its framing
        self._framing_bytes = 0  # bytes since its data last grew
        self._upgrade = False  # the parser took an upgrade for the end of the request

    def feed(self, data: memoryview) -> int:
        """Read `data`. Returns how many bytes were used: all of them, unless `paused` or `ended` was set."""
        position, size = 0, len(data)
        if self.phase == IDLE and size <= PIECE_BYTES:
            self._cache_misses += 1
            if self._cache_misses <= CACHE_MISSES_MAX:
                position = self._deliver_cached(data, size)
            elif self._cache_misses > CACHE_SKIPPED_REQUESTS:
                self._cache_misses = 0
        while position < size and not self.paused and not self.ended:
            if self._body_remaining:
                position += self._take_body(data[position:])
            else:
                piece = data[position : position + PIECE_BYTES]
                position += self._parse(piece, len(piece))
        return position

    def _deliver_cached(self, data: memoryview, size: int) -> int:
        """Deliver complete requests whose heads are cached, up to the first that is not. Returns the bytes used."""
        raw = bytes(data)
        cached = self._head_cache.by_bytes
        position = 0
        self.head_bytes = size
        while position < size and not self.paused and not self.ended:
            end = raw.find(b"\r\n\r\n", position) + 4
            if end < 4:
                break
            head_bytes = raw[position:end]
            head = cached.get(head_bytes)
            if head is None:
                if is_cacheable(head_bytes):
                    self._new_head_bytes = head_bytes
                break
            self._cache_misses = 0
            after = end + head.content_length if head.content_length > 0 else end
            if after > size:
                break
            position = after
            self._deliver(Request(head, raw[end:after], self._peer))
        return position

    def refuse(self, status: int, message: str) -> None:
        """Read nothing more. The connection responds with this and closes."""
        if self.refusal is None:
            self.refusal = (status, message)
        self.ended = True
        self.release()

    def release(self) -> None:
        """Release the memory of an incomplete body."""
        self._budget.used_bytes -= self._reserved_bytes
        self._reserved_bytes = 0
        self._body_buffer = None
        self._body_start = b""

    def _parse(self, piece: memoryview, size: int) -> int:
        self._piece_bytes = size
        self.head_bytes += size
        received = self.body_received
        try:
            self._parser.feed_data(piece)
        except HttpParserUpgrade as upgrade:
            # We do not upgrade, and the parser has stopped right after the head: a new one continues from there.
            self._parser = HttpRequestParser(self)
            return int(upgrade.args[0])
        except HttpParserError as error:
            cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
            if isinstance(cause, HeadRefused):
                self.refuse(cause.status, cause.message)
            elif cause is not None:
                raise cause from None  # a bug of ours, not a malformed request
            elif not self.ended:
                # (After `Connection: close` the parser rejects further bytes; they are ignored.)
                self.refuse(400, f"malformed request: {error}")
            return size
        phase = self.phase
        if phase == HEAD:
            if self.head_bytes - self._target_bytes > self._limits.header_block_bytes + PIECE_BYTES:
                self.refuse(431, f"the header fields exceed {self._limits.header_block_bytes} bytes")
        elif phase == BODY:
            if self._content_length >= 0:
                # The rest of a body of known length needs no parsing, see `_take_body`.
                self._body_remaining = self._content_length - self.body_received
            else:
                self._check_chunk_overhead(size, self.body_received > received)
        return size

    def _check_chunk_overhead(self, size: int, advanced: bool) -> None:
        """Limit the chunk extensions and trailers, which are read and discarded."""
        self._chunked_bytes += size
        self._framing_bytes = 0 if advanced else self._framing_bytes + size
        allowance = CHUNK_OVERHEAD_FREE_BYTES + self.body_received * CHUNK_OVERHEAD_FACTOR
        if self._chunked_bytes > allowance or self._framing_bytes > self._limits.header_block_bytes + PIECE_BYTES:
            self.refuse(400, "the chunk framing is too large for its data")

    def _take_body(self, data: memoryview) -> int:
        taken = min(len(data), self._body_remaining)
        if taken < len(data):
            data = data[:taken]
        try:
            self._append_body(data, taken)
        except HeadRefused as refused:
            self.refuse(refused.status, refused.message)
            return taken
        self._body_remaining -= taken
        if not self._body_remaining:
            self._parser = HttpRequestParser(self)
            self._complete()
        return taken

    def _append_body(self, data: bytes | memoryview, size: int) -> None:
        budget = self._budget
        if budget.used_bytes + size > budget.limit_bytes:
            raise HeadRefused(503, "too many request bodies are being received at once")
        if self._body_buffer is None:
            self._body_buffer = BytesIO()
            self._body_buffer.write(self._body_start)
        budget.used_bytes += size
        self._reserved_bytes += size
        self.body_received += size
        self._body_buffer.write(data)

    def _complete(self) -> None:
        body = self._body_start
        if self._body_buffer is not None:
            body = self._body_buffer.getvalue()  # hands over its buffer without a copy
            self.release()
        elif body:
            self._body_start = b""
        self.phase = IDLE
        head = self._head
        if not head.keep_alive:
            self.ended = True
        self._deliver(Request(head, body, self._peer))

    # --- called by httptools ---

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.head_bytes = self._piece_bytes  # an upper bound: other requests may be in the same piece
        self._target_bytes = 0
        self._repeated = 0
        self._fields = {}

    def on_url(self, url: bytes) -> None:
        if self._target_bytes:
            self._target_parts.append(url)  # joined once: a target may arrive in a thousand packets
        else:
            self._target_parts = [url]
        self._target_bytes += len(url)
        if self._target_bytes > self._limits.target_bytes:
            raise HeadRefused(414, f"the request target exceeds {self._limits.target_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        fields = self._fields
        if name not in fields:
            fields[name] = value
        else:
            check_repeated(name)
            self._repeated += 1
            fields[name] = b"%b, %b" % (fields[name].rstrip(), value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        fields = self._fields
        self.body_received = 0
        self._upgrade = self.expects_continue = False
        if (
            len(fields) + self._repeated > self._limits.header_count
            or self.head_bytes > self._limits.header_block_bytes
        ):
            check_size(fields, self._repeated, self._limits)
        keep_alive = parser.should_keep_alive()
        # Without a Connection header only HTTP/1.1 is kept alive. The call for the version is slow.
        version = "1.1" if keep_alive and b"connection" not in fields else parser.get_http_version()
        if version != "1.1" or b"host" not in fields:
            check_version(version, fields)
        raw_method = parser.get_method()
        method = _METHODS.get(raw_method) or raw_method.decode("latin-1")
        parts = self._target_parts
        target = parts[0] if len(parts) == 1 else b"".join(parts)
        if target[0] != 47 or b"#" in target:
            target = path_of(target, method, fields)
        length = fields.get(b"content-length")
        # Digits and blanks only: the parser has checked that.
        self._content_length = content_length = -1 if length is None else int(length)
        if content_length > self._limits.body_bytes:
            raise HeadRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self._head = head = RequestHead(method, target, fields, version, keep_alive, content_length)
        self.phase = BODY
        if not SPECIAL.isdisjoint(fields):
            self._check_special(head)
        elif self._new_head_bytes:
            if keep_alive and version == "1.1":
                self._head_cache.add(self._new_head_bytes, head)
        self._new_head_bytes = b""

    def on_body(self, data: bytes) -> None:
        if not self.body_received and self._content_length >= 0:
            self._body_start = data
            self.body_received = len(data)
            return
        if self.body_received + len(data) > self._limits.body_bytes:
            raise HeadRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self._append_body(data, len(data))

    def on_message_complete(self) -> None:
        if self._upgrade and self._content_length > 0:
            self._body_remaining = self._content_length  # the parser skips this body, see `_parse`
        else:
            self._complete()

    def _check_special(self, head: RequestHead) -> None:
        """Heads that change how the rest is read. They are never cached."""
        fields = head.fields
        if b"transfer-encoding" in fields:
            check_chunked(head)
            self._chunked_bytes = self._framing_bytes = 0
            self._fields = {}  # trailers end up here and are never merged into the head
        if b"expect" in fields:
            self.expects_continue = expects_continue(head)
        if b"upgrade" in fields:
            self._upgrade = self._parser.should_upgrade()
