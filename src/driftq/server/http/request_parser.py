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
    3. `_parse`            Everything else goes through httptools (llhttp), which calls back, see `_Callbacks`.

What has arrived of a request is kept in two parts: an `IncompleteHead` and a `RequestBody`. The parser here moves
between them and delivers.

The parser is strict about syntax: bare LF, folded lines, bad chunks. The rules it does not have (sizes, Host, framing
that two readers could understand differently, Expect) are checked in `request_head` and `request_body`. A violation
becomes `refusal`, a status and a message, and `ended` is set: the connection sends it and closes.

Two limits bound what a peer can make us do: input is parsed in pieces of `PIECE_BYTES`, between which `paused` is
checked, and incomplete bodies of all connections share a `BodyBudget`. Knows nothing of sockets, time or responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from driftq.server.http.limits import BODY, HEAD, IDLE, LARGE_BODY_BYTES, PIECE_BYTES, HttpLimits
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_body import BodyBudget, RequestBody
from driftq.server.http.request_head import (
    CACHE_MISSES_MAX,
    CACHE_SKIPPED_REQUESTS,
    SPECIAL,
    HeadCache,
    HeadLookup,
    IncompleteHead,
    RequestRefused,
    check_chunked,
    expects_continue,
    is_cacheable,
)

if TYPE_CHECKING:
    from driftq.server.http.tls import PeerCertificate

# Called with the head, the peer and its certificate before the body of a large request is read; raises
# `RequestRefused`.
CheckLarge = Callable[[RequestHead, str, "PeerCertificate | None"], None]
_NO_HEAD = RequestHead("", b"", {})


class RequestParser:
    """The read side of a connection. `deliver` is called with each complete request, in order."""

    __slots__ = (
        "_callbacks", "_certificate", "_check_large", "_deliver", "_head", "_incomplete_head", "_lookup", "_parser",
        "_peer",
        "body", "ended", "paused", "phase", "refusal",
    )  # fmt: skip

    def __init__(
        self,
        limits: HttpLimits,
        budget: BodyBudget,
        head_cache: HeadCache,
        peer: str,
        deliver: Callable[[Request], None],
        certificate: PeerCertificate | None = None,
        check_large: CheckLarge | None = None,
    ) -> None:
        self._peer = peer
        self._certificate = certificate
        self._check_large = check_large
        self._deliver = deliver
        self._lookup = HeadLookup(head_cache)
        self._incomplete_head = IncompleteHead(limits)
        self._head = _NO_HEAD  # the head of the present body

        # Read by the connection.
        self.body = RequestBody(limits, budget)
        self.phase: int = IDLE
        self.refusal: tuple[int, str] | None = None  # status and message of the response that ends the connection
        self.paused = False  # set by the connection: it takes no further request for now
        self.ended = False  # no further request: refused, or the last one had `Connection: close`

        self._callbacks = _Callbacks(self, self._incomplete_head, self.body)
        self._parser = HttpRequestParser(self._callbacks)

    def feed(self, data: memoryview) -> int:
        """Read `data`. Returns how many bytes were used: all of them, unless `paused` or `ended` was set."""
        position, size = 0, len(data)
        while position < size and not self.paused and not self.ended:
            if self.body.remaining:
                position += self._take_body(data[position:])
                continue
            piece = data[position : position + PIECE_BYTES]
            used = self._deliver_cached(piece, len(piece)) if self.phase == IDLE and self._may_be_cached() else 0
            position += used or self._parse(piece, len(piece))
        return position

    def _may_be_cached(self) -> bool:
        """Whether to look the next head up in the cache."""
        lookup = self._lookup
        lookup.misses += 1
        if lookup.misses <= CACHE_MISSES_MAX:
            return True
        if lookup.misses > CACHE_SKIPPED_REQUESTS:
            lookup.misses = 0
        return False

    def _deliver_cached(self, data: memoryview, size: int) -> int:
        """Deliver complete requests whose heads are cached, up to the first that is not. Returns the bytes used."""
        raw = bytes(data)
        lookup = self._lookup
        cached = lookup.cache.by_bytes
        position = 0
        self._incomplete_head.size_bytes = size
        while position < size and not self.paused and not self.ended:
            end = raw.find(b"\r\n\r\n", position) + 4
            if end < 4:
                break
            head_bytes = raw[position:end]
            head = cached.get(head_bytes)
            if head is None:
                if is_cacheable(head_bytes):
                    lookup.new_bytes = head_bytes
                break
            lookup.misses = 0
            after = end + head.content_length if head.content_length > 0 else end
            if after > size:
                break
            position = after
            self._deliver(Request(head, raw[end:after], self._peer, self._certificate))
        return position

    def refuse(self, status: int, message: str) -> None:
        """Read nothing more. The connection responds with this and closes."""
        if self.refusal is None:
            self.refusal = (status, message)
        self.ended = True
        self.body.release()

    def is_new(self) -> bool:
        """Whether nothing ever arrived."""
        return not self._incomplete_head.size_bytes

    def _parse(self, piece: memoryview, size: int) -> int:
        head, body = self._incomplete_head, self.body
        head.piece_bytes = size
        head.size_bytes += size
        received = body.received
        try:
            self._parser.feed_data(piece)
            if self.phase == HEAD:
                head.check_growth()
            elif self.phase == BODY:
                body.end_piece(size, received)
        except HttpParserUpgrade as upgrade:
            # We do not upgrade, and the parser has stopped right after the head: a new one continues from there.
            self._parser = HttpRequestParser(self._callbacks)
            return int(upgrade.args[0])
        except RequestRefused as refused:
            self.refuse(refused.status, refused.message)
        except HttpParserError as error:
            cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
            if isinstance(cause, RequestRefused):
                self.refuse(cause.status, cause.message)
            elif cause is not None:
                raise cause from None  # a bug of ours, not a malformed request
            elif not self.ended:
                # (After `Connection: close` the parser rejects further bytes; they are ignored.)
                self.refuse(400, f"malformed request: {error}")
        return size

    def _take_body(self, data: memoryview) -> int:
        body = self.body
        try:
            taken = body.take(data)
        except RequestRefused as refused:
            self.refuse(refused.status, refused.message)
            return len(data)
        if not body.remaining:
            self._parser = HttpRequestParser(self._callbacks)
            self._complete()
        return taken

    def _complete(self) -> None:
        body = self.body
        if body.buffer is None:
            content, body.start = body.start, b""
        else:
            content = body.finish()
        self.phase = IDLE
        head = self._head
        if not head.keep_alive:
            self.ended = True
        self._deliver(Request(head, content, self._peer, self._certificate))

    # --- called by httptools ---

    def on_message_begin(self) -> None:
        self.phase = HEAD
        head = self._incomplete_head
        head.size_bytes = head.piece_bytes  # an upper bound: other requests may be in the same piece
        head.fields = {}
        head.target_bytes = head.repeated = 0

    def on_headers_complete(self) -> None:
        self._head = head = self._incomplete_head.finish(self._parser)
        self.body.begin(head.content_length)
        self.phase = BODY
        if self._check_large is not None:
            if head.content_length > LARGE_BODY_BYTES or b"transfer-encoding" in head.fields:
                self._check_large(head, self._peer, self._certificate)
        lookup = self._lookup
        if not SPECIAL.isdisjoint(head.fields):
            self._check_special(head)
        elif lookup.new_bytes:
            lookup.add(head)
        lookup.new_bytes = b""

    def on_message_complete(self) -> None:
        body = self.body
        if body.upgraded and body.content_length > 0:
            body.remaining = body.content_length  # the parser skips this body, see `_parse`
        else:
            self._complete()

    def _check_special(self, head: RequestHead) -> None:
        """Heads that change how the rest is read. They are never cached."""
        fields = head.fields
        if b"transfer-encoding" in fields:
            check_chunked(head)
            self._incomplete_head.fields = {}  # trailers end up here and are never merged into the head
        if b"expect" in fields:
            self.body.expects_continue = expects_continue(head)
        if b"upgrade" in fields:
            self.body.upgraded = self._parser.should_upgrade()


class _Callbacks:
    """What httptools calls. It looks the methods up once, so each call goes straight to the part that handles it."""

    __slots__ = ("on_body", "on_header", "on_headers_complete", "on_message_begin", "on_message_complete", "on_url")

    def __init__(self, parser: RequestParser, head: IncompleteHead, body: RequestBody) -> None:
        self.on_message_begin = parser.on_message_begin
        self.on_url = head.add_target
        self.on_header = head.add_field
        self.on_headers_complete = parser.on_headers_complete
        self.on_body = body.add
        self.on_message_complete = parser.on_message_complete
