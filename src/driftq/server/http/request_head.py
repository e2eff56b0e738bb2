"""The head of a request: while it is parsed, the rules beyond the syntax that the parser checks, the cache of heads.

    bytes of a head ──> HeadLookup: seen before? ──yes──> RequestHead
                              │no
                              ▼
                        IncompleteHead: the parser adds target and fields ──finish──> the rules ──> RequestHead

The rules prevent request smuggling: one Host, one way to know where the body ends, one meaning of a target. They are
pure functions; a violation is raised as `RequestRefused` with the status of the response. Knows nothing of sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driftq.server.http.limits import PIECE_BYTES
from driftq.server.http.request import RequestHead

if TYPE_CHECKING:
    from httptools import HttpRequestParser

    from driftq.server.http.limits import HttpLimits

# Header fields that must not be repeated: two readers could use different ones.
SINGLE = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"content-encoding",
        b"authorization",
        b"expect",
        b"origin",
        b"range",
    }
)

# Fields that change how the rest of the connection is read.
SPECIAL = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

_METHODS = {m.encode(): m for m in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")}


class RequestRefused(Exception):
    """The response has this `status`, and the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class IncompleteHead:
    """The head that is being parsed. The parser calls `add_target` and `add_field`."""

    __slots__ = ("_limits", "_target_parts", "fields", "piece_bytes", "repeated", "size_bytes", "target_bytes")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.piece_bytes = 0  # size of the piece that the parser has now
        self.size_bytes = 0  # given to the parser since the head began, an upper bound; 0: nothing ever arrived
        self.fields: dict[bytes, bytes] = {}
        self.repeated = 0  # header fields that were merged into an earlier one
        self._target_parts: list[bytes] = []
        self.target_bytes = 0

    def add_target(self, part: bytes) -> None:
        size_bytes = self.target_bytes
        if size_bytes:
            self._target_parts.append(part)  # joined once: a target may arrive in a thousand packets
        else:
            self._target_parts = [part]
        self.target_bytes = size_bytes = size_bytes + len(part)
        if size_bytes > self._limits.target_bytes:
            raise RequestRefused(414, f"the request target exceeds {self._limits.target_bytes} bytes")

    def add_field(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        fields = self.fields
        if name not in fields:
            fields[name] = value
        else:
            check_repeated(name)
            self.repeated += 1
            fields[name] = b"%b, %b" % (fields[name].rstrip(), value)

    def check_growth(self) -> None:
        """For a head that is not complete yet: refuse it once it cannot be within the limit."""
        if self.size_bytes - self.target_bytes > self._limits.header_block_bytes + PIECE_BYTES:
            raise RequestRefused(431, f"the header fields exceed {self._limits.header_block_bytes} bytes")

    def finish(self, parser: HttpRequestParser) -> RequestHead:
        """The complete head, checked."""
        fields, limits = self.fields, self._limits
        if len(fields) + self.repeated > limits.header_count or self.size_bytes > limits.header_block_bytes:
            check_size(fields, self.repeated, limits)
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
        return RequestHead(method, target, fields, version, keep_alive, -1 if length is None else int(length))


def check_repeated(name: bytes) -> None:
    if name in SINGLE:
        raise RequestRefused(400, f"{name.decode('latin-1')} must not be repeated")


def check_size(fields: dict[bytes, bytes], repeated: int, limits: HttpLimits) -> None:
    if len(fields) + repeated > limits.header_count:
        raise RequestRefused(431, f"more than {limits.header_count} header fields")
    block_bytes = sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields)
    if block_bytes > limits.header_block_bytes:
        raise RequestRefused(431, f"the header fields exceed {limits.header_block_bytes} bytes")


def check_version(version: str, fields: dict[bytes, bytes]) -> None:
    if version == "1.1":
        if b"host" not in fields:
            raise RequestRefused(400, "a Host header is required")
    elif version != "1.0":
        raise RequestRefused(505, "only HTTP/1.1 and HTTP/1.0 are supported")


def path_of(target: bytes, method: str, fields: dict[bytes, bytes]) -> bytes:
    """The path and query of a target. A whole URL must name the same host as Host does; `*` is for OPTIONS."""
    if b"#" in target:
        raise RequestRefused(400, "a fragment in the request target")
    if method == "CONNECT":
        raise RequestRefused(400, "this is not a proxy")
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    scheme, separator, rest = target.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    same_host = authority.lower() == fields.get(b"host", authority).strip().lower()
    if scheme.lower() not in (b"http", b"https") or not separator or not same_host or b"?" in authority:
        raise RequestRefused(400, "the request target is neither a path nor a URL of this host")
    return slash + path if slash else b"/"


def check_chunked(head: RequestHead) -> None:
    """Exactly one way to know where the body ends."""
    if head.content_length >= 0:
        raise RequestRefused(400, "Content-Length and Transfer-Encoding exclude each other")
    if head.fields[b"transfer-encoding"].strip(b" \t").lower() != b"chunked":
        raise RequestRefused(400, "the only supported Transfer-Encoding is chunked")
    if head.version != "1.1":
        raise RequestRefused(400, "HTTP/1.0 has no Transfer-Encoding")
    if b"upgrade" in head.fields:
        # We never upgrade, and the parser would read such a body as the next request.
        raise RequestRefused(400, "an upgrade with a chunked body is not accepted")


def expects_continue(head: RequestHead) -> bool:
    """Whether the client waits for `100 Continue` before its body. HTTP/1.0 has no interim responses."""
    if head.fields[b"expect"].strip(b" \t").lower() != b"100-continue":
        raise RequestRefused(417, "the only supported expectation is 100-continue")
    has_body = head.content_length > 0 or b"transfer-encoding" in head.fields
    return has_body and head.version == "1.1"


# --- the cache of parsed heads, by their bytes ---

HEADS_MAX: Final = 1_024
HEAD_BYTES_MAX: Final = 1_024
# After so many misses in a row, a connection skips the cache until this many requests have come.
CACHE_MISSES_MAX: Final = 16
CACHE_SKIPPED_REQUESTS: Final = 256


class HeadCache:
    """Shared by the connections of a listener. Cleared when it is full, which is rare and cheap."""

    __slots__ = ("by_bytes",)

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, RequestHead] = {}

    def add(self, raw: bytes, head: RequestHead) -> None:
        if len(self.by_bytes) >= HEADS_MAX:
            self.by_bytes.clear()
        self.by_bytes[raw] = head


def is_cacheable(raw: bytes) -> bool:
    """Only what starts like a request line: empty lines before it are not a part of the head."""
    return len(raw) <= HEAD_BYTES_MAX and raw[:1].isupper()


class HeadLookup:
    """How one connection uses the cache. After many misses in a row it is skipped for a while."""

    __slots__ = ("cache", "misses", "new_bytes")

    def __init__(self, cache: HeadCache) -> None:
        self.cache = cache
        self.misses = 0  # in a row
        self.new_bytes = b""  # the head that is now being parsed, if it should be added to the cache

    def add(self, head: RequestHead) -> None:
        if head.keep_alive and head.version == "1.1":
            self.cache.add(self.new_bytes, head)
