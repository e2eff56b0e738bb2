"""One HTTP request as a value, and the strict decoding of what it carries.

Owns percent-decoding, query parsing and the header dictionary, each done on first use. Bad input is raised as
`BadRequest`: a handler does not catch it, and the connection sends the response. Knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftq.server.access.identity import Identity
    from driftq.server.http.tls import PeerCertificate

QUERY_FIELDS_MAX = 1_000

_HEX = {
    b"%c%c" % (high, low): bytes((int(bytes((high, low)), 16),))
    for high in b"0123456789abcdefABCDEF"
    for low in b"0123456789abcdefABCDEF"
}


class BadRequest(Exception):
    """The request is malformed. The response has this `status`, and the connection stays usable."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def percent_decoded(raw: bytes) -> str:
    """`raw` with its escapes resolved, as text. Broken escapes, bad UTF-8 and control characters are refused."""
    if b"%" in raw:
        first, *rest = raw.split(b"%")
        pieces = [first]
        for piece in rest:
            octet = _HEX.get(piece[:2])
            if octet is None:
                raise BadRequest("broken percent-escape in the request target")
            pieces.append(octet)
            pieces.append(piece[2:])
        raw = b"".join(pieces)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("the request target is not valid UTF-8") from None


def query_pairs(raw: bytes) -> list[tuple[str, str]]:
    """The fields of a query string in order; `+` is a space, a field without `=` has an empty value."""
    if not raw:
        return []
    if raw.count(b"&") >= QUERY_FIELDS_MAX:
        raise BadRequest(f"more than {QUERY_FIELDS_MAX} query parameters")
    pairs = []
    for field in raw.split(b"&"):
        if field:
            name, _, value = field.replace(b"+", b" ").partition(b"=")
            pairs.append((percent_decoded(name), percent_decoded(value)))
    return pairs


class RequestHead:
    """Everything of a request but its body. Requests with the same bytes share one `RequestHead` and what it decoded.

    `fields` holds lower-case header names; repeated ones are joined with `, ` as HTTP defines. It is immutable, except
    that the application caches five things here: `handler`, the handler of requests with this head, `route`, its name
    (the cause of a stall), `action`, what they are in the audit, `cross_origin`, the CORS header lines of their
    responses, and `identity`, who sends them.
    """

    __slots__ = (
        "_headers",
        "_path",
        "_query",
        "action",
        "content_length",
        "cross_origin",
        "fields",
        "handler",
        "identity",
        "keep_alive",
        "method",
        "raw_path",
        "raw_query",
        "route",
        "version",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        fields: dict[bytes, bytes],
        version: str = "1.1",
        keep_alive: bool = True,
        content_length: int = -1,
    ) -> None:
        self.method = method
        self.raw_path, _, self.raw_query = target.partition(b"?")
        self.fields = fields
        self.version = version
        self.keep_alive = keep_alive
        self.content_length = content_length  # -1: no such header
        self.handler: Callable[[Request], Any] | None = None
        self.route = "http"
        self.action = ""
        self.identity: Identity | None = None  # None: public, or the server does not authenticate
        self.cross_origin = b""
        self._path: str | None = None
        self._query: Mapping[str, str] | None = None
        self._headers: Mapping[str, str] | None = None

    @property
    def path(self) -> str:
        path = self._path
        if path is None:
            path = percent_decoded(self.raw_path)
            if not path.isprintable() and any(character < " " or character == "\x7f" for character in path):
                raise BadRequest("control character in the path")
            self._path = path
        return path

    @property
    def query(self) -> Mapping[str, str]:
        query = self._query
        if query is None:
            first: dict[str, str] = {}
            for name, value in query_pairs(self.raw_query):
                first.setdefault(name, value)
            self._query = query = MappingProxyType(first)
        return query

    @property
    def headers(self) -> Mapping[str, str]:
        headers = self._headers
        if headers is None:
            text = {name.decode("latin-1"): value.decode("latin-1").strip(" \t") for name, value in self.fields.items()}
            self._headers = headers = MappingProxyType(text)
        return headers


class Request:
    """A complete request. `peer` is the client's IP address, or `unix`; `certificate` is the client's, verified."""

    __slots__ = (
        "_gone_callbacks", "body", "certificate", "gone", "head", "id", "identity", "is_counted", "keep_alive",
        "method", "peer", "raw_path", "started_s", "trace_id", "version",
    )  # fmt: skip

    def __init__(self, head: RequestHead, body: bytes, peer: str, certificate: PeerCertificate | None = None) -> None:
        self.head = head
        self.method = head.method
        self.raw_path = head.raw_path
        self.version = head.version
        self.keep_alive = head.keep_alive
        self.body = body
        self.peer = peer
        self.certificate = certificate  # None: the client has none, or was not asked for one
        self.gone = False
        self.identity: Identity | None = None  # who sent it; set by the application
        self.is_counted = False  # its connection is counted for the tenant of an earlier request
        self.id = b""  # the request id and the start time, for the access log
        self.started_s = 0.0
        self.trace_id = 0  # of a request that is traced
        self._gone_callbacks: list[Callable[[], None]] | None = None

    @property
    def path(self) -> str:
        """The percent-decoded path. Routes that allow `%2F` inside a segment split `raw_path` instead."""
        return self.head.path

    @property
    def raw_query(self) -> bytes:
        return self.head.raw_query

    @property
    def query(self) -> Mapping[str, str]:
        """Query parameters; the first of a repeated one. `query_pairs(request.raw_query)` returns all of them."""
        return self.head.query

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields by lower-case name."""
        return self.head.headers

    def has_ended_credential(self) -> bool:
        return self.identity is not None and self.identity.until_s <= time()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once if the client disconnects (or shuts its write side) before the response; at once if it has."""
        if self.gone:
            callback()
        elif self._gone_callbacks is None:
            self._gone_callbacks = [callback]
        else:
            self._gone_callbacks.append(callback)

    def mark_gone(self) -> None:
        """For the connection only."""
        if self.gone:
            return
        self.gone = True
        callbacks, self._gone_callbacks = self._gone_callbacks, None
        for callback in callbacks or ():
            callback()

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.raw_path!r} from {self.peer}, {len(self.body)} body bytes>"
