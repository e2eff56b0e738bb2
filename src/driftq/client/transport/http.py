"""HTTP as bytes: a request written, a reply read. Pure; sockets are the transports' business.

The parser is httptools, fed with whatever arrives. A reply can be taken whole, or piece by piece while it lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import httptools

from driftq.client.errors import InvalidCall, OutcomeUnknown

if TYPE_CHECKING:
    import ssl

VERSION_TEXT = "driftq-python/1"
# A body of such a length is worth a place of its own, into which it is received without a copy.
LONG_BYTES = range(256 * 1024, 64 * 1024 * 1024)


class Address(NamedTuple):
    """Where a broker is, and what every request to it carries."""

    host: str
    port: int
    secure: bool
    base_path: str
    fields: bytes

    @property
    def text(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.host}:{self.port}{self.base_path}"

    def tls(self) -> ssl.SSLContext | None:
        if not self.secure:
            return None
        import ssl  # noqa: PLC0415  # 25 ms that only those pay who need it

        return ssl.create_default_context()


def address_of(url: str, token: str = "") -> Address:
    """Read a URL. A token goes out as a bearer token; `http://:token@host` works, too."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidCall(f"{url!r} is not the address of a broker; it looks like http://localhost:8080")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8080)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    token = token or unquote(parts.password or "")
    fields = f"Host: {host}:{port}\r\nUser-Agent: {VERSION_TEXT}\r\n"
    if token:
        fields += f"Authorization: Bearer {token}\r\n"
    if "\n" in token or "\r" in token:
        raise InvalidCall("a token has no line ends")
    return Address(parts.hostname, port, secure, parts.path.rstrip("/"), fields.encode())


Headers = tuple[tuple[str, str], ...]


class ReplyExpectation(Protocol):
    """The part of a call that becomes bytes."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def content_type(self) -> str: ...
    @property
    def headers(self) -> Headers: ...


def request_bytes(address: Address, call: ReplyExpectation) -> bytes:
    head = f"{call.method} {address.base_path}{call.path} HTTP/1.1\r\n"
    if call.body or call.method in ("POST", "PUT", "PATCH"):
        head += f"Content-Length: {len(call.body)}\r\n"
    if call.body or call.content_type:
        head += f"Content-Type: {call.content_type or 'application/json'}\r\n"
    for name, value in call.headers:
        head += f"{name}: {value}\r\n"
    return b"".join((head.encode(), address.fields, b"\r\n", call.body))


class HttpReply(NamedTuple):
    """Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray


class ReplyReader:
    """Reads the replies of one connection, one after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self, *, bodiless: bool = False, in_place: bool = False) -> None:
        """Ready for the next reply. A HEAD is answered without the body that its headers speak of. Who reads a reply as
        a whole may receive the rest of a long body `in_place`: see `room`."""
        self._bodiless = bodiless
        self._in_place = in_place
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._long: bytearray | None = None
        self._filled = 0
        self.began = False
        self.has_head = False
        self.complete = False
        self.keep_alive = True

    def feed(self, data: bytes) -> None:
        self.began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise OutcomeUnknown(f"the answer is not HTTP: {error}") from None

    def room(self) -> memoryview | None:
        """Where the rest of a long body belongs, as long as one is on its way."""
        return memoryview(self._long)[self._filled :] if self._long is not None and not self.complete else None

    def received(self, count: int) -> None:
        """So many bytes were put where `room` said."""
        assert self._long is not None
        self._filled += count
        if self._filled == len(self._long):
            self._parser = httptools.HttpResponseParser(self)  # the one before still waits for what it did not see
            self.on_complete()

    def end(self) -> None:
        """The connection ended: that completes a reply without a length."""
        self.keep_alive = False
        if self.has_head and not self.complete and not self._framed():
            self.on_complete()

    def _framed(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def reply(self) -> HttpReply:
        # A status without a body (304) may come with the length of one.
        long = self._long if self._filled else None
        return HttpReply(self._status, self._headers, b"".join(self._parts) if long is None else long)

    def take(self) -> bytes:
        """What has arrived of the body since the last look."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    # --- called by the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            self._headers = {}
            return
        self.has_head = True
        self.keep_alive = self._parser.should_keep_alive()
        if self._bodiless:
            self.keep_alive = False  # the parser waits for a body that never comes: it is of no further use
            self.on_complete()
        elif self._in_place:
            length = int(self._headers.get("content-length", "0"))
            self._long = bytearray(length) if length in LONG_BYTES else None

    def on_body(self, body: bytes) -> None:
        if self._long is None:
            self._parts.append(body)
        else:
            self._long[self._filled : self._filled + len(body)] = body
            self._filled += len(body)

    def on_message_complete(self) -> None:
        if self.has_head and not self.complete:
            self.on_complete()

    def on_complete(self) -> None:
        """A reply is whole. The next one may follow in the same bytes."""
        self.complete = True
