"""The rules for request heads beyond the syntax that the parser enforces, and the cache of heads.

The rules prevent request smuggling: one Host, one way to know where the body ends, one meaning of a target. They are
pure functions; a violation is raised as `HeadRefused` with the status of the response. Knows nothing of parsers or
sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftq.server.http.limits import HttpLimits
    from driftq.server.http.request import RequestHead

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


class HeadRefused(Exception):
    """The response has this `status`, and the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def check_repeated(name: bytes) -> None:
    if name in SINGLE:
        raise HeadRefused(400, f"{name.decode('latin-1')} must not be repeated")


def check_size(fields: dict[bytes, bytes], repeated: int, limits: HttpLimits) -> None:
    if len(fields) + repeated > limits.header_count:
        raise HeadRefused(431, f"more than {limits.header_count} header fields")
    block_bytes = sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields)
    if block_bytes > limits.header_block_bytes:
        raise HeadRefused(431, f"the header fields exceed {limits.header_block_bytes} bytes")


def check_version(version: str, fields: dict[bytes, bytes]) -> None:
    if version == "1.1":
        if b"host" not in fields:
            raise HeadRefused(400, "a Host header is required")
    elif version != "1.0":
        raise HeadRefused(505, "only HTTP/1.1 and HTTP/1.0 are supported")


def path_of(target: bytes, method: str, fields: dict[bytes, bytes]) -> bytes:
    """The path and query of a target. A whole URL must name the same host as Host does; `*` is for OPTIONS."""
    if b"#" in target:
        raise HeadRefused(400, "a fragment in the request target")
    if method == "CONNECT":
        raise HeadRefused(400, "this is not a proxy")
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    scheme, separator, rest = target.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    same_host = authority.lower() == fields.get(b"host", authority).strip().lower()
    if scheme.lower() not in (b"http", b"https") or not separator or not same_host or b"?" in authority:
        raise HeadRefused(400, "the request target is neither a path nor a URL of this host")
    return slash + path if slash else b"/"


def check_chunked(head: RequestHead) -> None:
    """Exactly one way to know where the body ends."""
    if head.content_length >= 0:
        raise HeadRefused(400, "Content-Length and Transfer-Encoding exclude each other")
    if head.fields[b"transfer-encoding"].strip(b" \t").lower() != b"chunked":
        raise HeadRefused(400, "the only supported Transfer-Encoding is chunked")
    if head.version != "1.1":
        raise HeadRefused(400, "HTTP/1.0 has no Transfer-Encoding")
    if b"upgrade" in head.fields:
        # We never upgrade, and the parser would read such a body as the next request.
        raise HeadRefused(400, "an upgrade with a chunked body is not accepted")


def expects_continue(head: RequestHead) -> bool:
    """Whether the client waits for `100 Continue` before its body. HTTP/1.0 has no interim responses."""
    if head.fields[b"expect"].strip(b" \t").lower() != b"100-continue":
        raise HeadRefused(417, "the only supported expectation is 100-continue")
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
