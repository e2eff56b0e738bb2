"""Bytes in, `Request` values out, for one connection.

Owns the httptools parser and every rule about what a request may look like: sizes, framing, Host, Expect. The parser is
strict about syntax (bare LF, folded lines, bad chunks); the rules it does not have are here. Knows nothing of
sockets, time or responses: a breach is left in `refusal` for the connection to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from driftq.server.http.limits import BODY, HEAD, IDLE, HttpLimits
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_head import (
    MISSES_MAX,
    REST_REQUESTS,
    SPECIAL,
    HeadCache,
    HeadRefused,
    check_chunked,
    check_repeated,
    check_size,
    check_version,
    expects_continue,
    is_memorable,
    path_of,
)

# The parser cannot be stopped inside one call, so it gets pieces of at most this size: what a flood of tiny pipelined
# requests can make us parse ahead is then bounded.
PIECE_BYTES: Final = 16 * 1024

# Chunk framing may cost this much more than the data it carries, so that empty extensions cannot be sent for ever.
CHUNK_OVERHEAD_FACTOR: Final = 16
CHUNK_OVERHEAD_FREE_BYTES: Final = 64 * 1024

_NO_HEAD = RequestHead("", b"", {})
_METHODS = {m.encode(): m for m in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")}


class BodyBudget:
    """Bytes of half-received bodies over all connections."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class RequestParser:
    """The reading side of a connection. `deliver` is called with each complete request, in order."""

    __slots__ = (
        "_barren_fed",
        "_body",
        "_budget",
        "_chunk_fed",
        "_candidate",
        "_content_length",
        "_deliver",
        "_fields",
        "_head",
        "_header_block_bytes_max",
        "_header_count_max",
        "_held_bytes",
        "_known",
        "_left",
        "_limits",
        "_misses",
        "_parser",
        "_peer",
        "_piece_bytes",
        "_repeated",
        "_rest",
        "_target_bytes",
        "_target_parts",
        "_upgrade",
        "body_received",
        "ended",
        "expects_continue",
        "head_fed",
        "phase",
        "refusal",
        "stopped",
    )

    def __init__(
        self,
        limits: HttpLimits,
        budget: BodyBudget,
        known: HeadCache,
        peer: str,
        deliver: Callable[[Request], None],
    ) -> None:
        self._limits = limits
        self._budget = budget
        self._known = known
        self._candidate = b""  # the bytes of the head now given to the parser, if they are worth remembering
        self._misses = 0
        self._peer = peer
        self._deliver = deliver
        self._header_count_max = limits.header_count
        self._header_block_bytes_max = limits.header_block_bytes
        self.phase: int = IDLE
        self.refusal: tuple[int, str] | None = None
        self.stopped = False  # set by the connection when it can take no further request for now
        self.ended = False  # no further request will come: refused, or the last one said `Connection: close`
        self.expects_continue = False
        self.body_received = 0
        self.head_fed = 0
        self._piece_bytes = 0
        self._held_bytes = 0
        self._left = 0
        self._chunk_fed = self._barren_fed = 0
        self._target_parts: list[bytes] = []
        self._target_bytes = 0
        self._repeated = 0
        self._fields: dict[bytes, bytes] = {}
        self._head: RequestHead = _NO_HEAD
        self._body = b""
        self._rest: BytesIO | None = None
        self._upgrade = False
        self._content_length = -1
        self._parser = HttpRequestParser(self)

    def feed(self, data: memoryview) -> int:
        """Reads on and says how many bytes were used: all of them, unless `stopped` or `ended` came up."""
        position, size = 0, len(data)
        if self.phase == IDLE and size <= PIECE_BYTES:
            self._misses += 1
            if self._misses <= MISSES_MAX:
                position = self._recall(data, size)
            elif self._misses > REST_REQUESTS:
                self._misses = 0
        while position < size and not self.stopped and not self.ended:
            if self._left:
                position += self._take_body(data[position:])
            else:
                piece = data[position : position + PIECE_BYTES]
                position += self._parse(piece, len(piece))
        return position

    def _recall(self, data: memoryview, size: int) -> int:
        """Delivers whole requests whose heads are known, without the parser, up to the first that is not."""
        raw = bytes(data)
        known = self._known.by_bytes
        position = 0
        self.head_fed = size
        while position < size and not self.stopped and not self.ended:
            end = raw.find(b"\r\n\r\n", position) + 4
            if end < 4:
                break
            head_bytes = raw[position:end]
            head = known.get(head_bytes)
            if head is None:
                if is_memorable(head_bytes):
                    self._candidate = head_bytes
                break
            self._misses = 0
            after = end + head.content_length if head.content_length > 0 else end
            if after > size:
                break
            position = after
            self._deliver(Request(head, raw[end:after], self._peer))
        return position

    def refuse(self, status: int, message: str) -> None:
        """Nothing more is read; the connection answers with this and closes."""
        if self.refusal is None:
            self.refusal = (status, message)
        self.ended = True
        self.release()

    def release(self) -> None:
        """Gives back what a half-received body holds."""
        self._budget.used_bytes -= self._held_bytes
        self._held_bytes = 0
        self._rest = None
        self._body = b""

    def _parse(self, piece: memoryview, size: int) -> int:
        self._piece_bytes = size
        self.head_fed += size
        received = self.body_received
        try:
            self._parser.feed_data(piece)
        except HttpParserUpgrade as upgrade:
            # The upgrade is not taken, and the parser has stopped right behind the head: a fresh one goes on from
            # there.
            self._parser = HttpRequestParser(self)
            return int(upgrade.args[0])
        except HttpParserError as error:
            cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
            if isinstance(cause, HeadRefused):
                self.refuse(cause.status, cause.message)
            elif cause is not None:
                raise cause from None  # a bug of ours, not a malformed request
            elif not self.ended:
                # (After `Connection: close` the parser objects to further bytes; those are ignored, not answered.)
                self.refuse(400, f"malformed request: {error}")
            return size
        phase = self.phase
        if phase == HEAD:
            if self.head_fed - self._target_bytes > self._header_block_bytes_max + PIECE_BYTES:
                self.refuse(431, f"the header fields exceed {self._header_block_bytes_max} bytes")
        elif phase == BODY:
            if self._content_length >= 0:
                # The rest of a body of known length needs no parsing: it is copied once, straight from the read buffer.
                self._left = self._content_length - self.body_received
            else:
                self._weigh_framing(size, self.body_received > received)
        return size

    def _weigh_framing(self, size: int, advanced: bool) -> None:
        """Chunk extensions and trailers are thrown away; this bounds how much of them is read before."""
        self._chunk_fed += size
        self._barren_fed = 0 if advanced else self._barren_fed + size
        allowance = CHUNK_OVERHEAD_FREE_BYTES + self.body_received * CHUNK_OVERHEAD_FACTOR
        if self._chunk_fed > allowance or self._barren_fed > self._header_block_bytes_max + PIECE_BYTES:
            self.refuse(400, "the chunk framing outweighs the body")

    def _take_body(self, data: memoryview) -> int:
        taken = min(len(data), self._left)
        if taken < len(data):
            data = data[:taken]
        try:
            self._grow(data, taken)
        except HeadRefused as refused:
            self.refuse(refused.status, refused.message)
            return taken
        self._left -= taken
        if not self._left:
            self._parser = HttpRequestParser(self)
            self._complete()
        return taken

    def _grow(self, data: bytes | memoryview, size: int) -> None:
        budget = self._budget
        if budget.used_bytes + size > budget.limit_bytes:
            raise HeadRefused(503, "too many request bodies are being received at once")
        if self._rest is None:
            self._rest = BytesIO()
            self._rest.write(self._body)
        budget.used_bytes += size
        self._held_bytes += size
        self.body_received += size
        self._rest.write(data)

    def _complete(self) -> None:
        body = self._body
        if self._rest is not None:
            body = self._rest.getvalue()  # hands over its buffer, without a copy
            self.release()
        elif body:
            self._body = b""
        self.phase = IDLE
        head = self._head
        if not head.keep_alive:
            self.ended = True
        self._deliver(Request(head, body, self._peer))

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.head_fed = self._piece_bytes  # at most: other requests may be in the same piece
        self._target_bytes = 0
        self._repeated = 0
        self._fields = {}

    def on_url(self, url: bytes) -> None:
        if self._target_bytes:
            self._target_parts.append(url)  # joined once at the end: a target may come in a thousand packets
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
        if len(fields) + self._repeated > self._header_count_max or self.head_fed > self._header_block_bytes_max:
            check_size(fields, self._repeated, self._limits)
        keep_alive = parser.should_keep_alive()
        # Without a Connection header only HTTP/1.1 is kept alive; asking for the version costs more than all the rest.
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
        # Digits and blanks only: the parser has seen to that.
        self._content_length = content_length = -1 if length is None else int(length)
        if content_length > self._limits.body_bytes:
            raise HeadRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self._head = head = RequestHead(method, target, fields, version, keep_alive, content_length)
        self.phase = BODY
        if not SPECIAL.isdisjoint(fields):
            self._check_special(head)
        elif self._candidate:
            if keep_alive and version == "1.1":
                self._known.remember(self._candidate, head)
        self._candidate = b""

    def on_body(self, data: bytes) -> None:
        if not self.body_received and self._content_length >= 0:
            self._body = data
            self.body_received = len(data)
            return
        if self.body_received + len(data) > self._limits.body_bytes:
            raise HeadRefused(413, f"the body exceeds {self._limits.body_bytes} bytes")
        self._grow(data, len(data))

    def on_message_complete(self) -> None:
        if self._upgrade and self._content_length > 0:
            self._left = self._content_length  # the parser skips this body, see `_parse`
        else:
            self._complete()

    def _check_special(self, head: RequestHead) -> None:
        """Heads that change how the rest is read. They are never remembered."""
        fields = head.fields
        if b"transfer-encoding" in fields:
            check_chunked(head)
            self._chunk_fed = self._barren_fed = 0
            self._fields = {}  # trailers fall in here and are never merged into the head
        if b"expect" in fields:
            self.expects_continue = expects_continue(head)
        if b"upgrade" in fields:
            self._upgrade = self._parser.should_upgrade()
