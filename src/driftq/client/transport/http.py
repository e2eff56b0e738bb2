"""HTTP/1.1 as bytes: requests written, replies parsed. Pure; sockets belong to the transports.

The parser is httptools. A reply can be taken whole or piece by piece. The body of a large reply is received straight
into its final buffer: see `ReplyReader.body_buffer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import httptools

from driftq.client.errors import InvalidCall, OutcomeUnknown

if TYPE_CHECKING:
    import ssl

USER_AGENT = "driftq-python/1"
# A body of this length gets a buffer of its own and is received into it without a copy.
IN_PLACE_BYTES = range(256 * 1024, 64 * 1024 * 1024)


class Address(NamedTuple):
    """Where a broker is, and the headers that every request to it carries."""

    host: str
    port: int
    secure: bool
    base_path: str
    header_bytes: bytes

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.host}:{self.port}{self.base_path}"

    def tls(self) -> ssl.SSLContext | None:
        if not self.secure:
            return None
        import ssl  # noqa: PLC0415  # costs 25 ms: only for https

        return ssl.create_default_context()


def parse_address(url: str, token: str = "") -> Address:
    """Parse a URL. A token is sent as a bearer token; `http://:token@host` works, too."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidCall(f"{url!r} is not the address of a broker; use one like http://localhost:8080")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8080)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    token = token or unquote(parts.password or "")
    headers = f"Host: {host}:{port}\r\nUser-Agent: {USER_AGENT}\r\n"
    if token:
        headers += f"Authorization: Bearer {token}\r\n"
    if "\n" in token or "\r" in token:
        raise InvalidCall("a token must not contain line breaks")
    return Address(parts.hostname, port, secure, parts.path.rstrip("/"), headers.encode())


Headers = tuple[tuple[str, str], ...]


class RequestParts(Protocol):
    """The part of a `Call` that becomes bytes."""

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


def request_bytes(address: Address, call: RequestParts) -> bytes:
    head = f"{call.method} {address.base_path}{call.path} HTTP/1.1\r\n"
    if call.body or call.method in ("POST", "PUT", "PATCH"):
        head += f"Content-Length: {len(call.body)}\r\n"
    if call.body or call.content_type:
        head += f"Content-Type: {call.content_type or 'application/json'}\r\n"
    for name, value in call.headers:
        head += f"{name}: {value}\r\n"
    return b"".join((head.encode(), address.header_bytes, b"\r\n", call.body))


class HttpReply(NamedTuple):
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray


class ReplyReader:
    """Parses the replies of one connection, one after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self, *, bodiless: bool = False, in_place: bool = False) -> None:
        """Prepare for the next reply. `bodiless`: the reply to a HEAD, whose Content-Length announces no body.
        `in_place`: the caller reads the reply as a whole and receives a large body into `body_buffer`."""
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
            raise OutcomeUnknown(f"the reply is not HTTP: {error}") from None

    def body_buffer(self) -> memoryview | None:
        """Where to receive the rest of a large body; None if no large body is under way."""
        return memoryview(self._long)[self._filled :] if self._long is not None and not self.complete else None

    def body_received(self, count: int) -> None:
        """This many bytes were received into `body_buffer`."""
        assert self._long is not None
        self._filled += count
        if self._filled == len(self._long):
            self._parser = httptools.HttpResponseParser(self)  # the old one still waits for the body it did not see
            self.on_complete()

    def end(self) -> None:
        """The connection was closed, which completes a reply without a length."""
        self.keep_alive = False
        if self.has_head and not self.complete and not self._framed():
            self.on_complete()

    def _framed(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def reply(self) -> HttpReply:
        # A 304 has no body but may announce the length of one.
        long = self._long if self._filled else None
        return HttpReply(self._status, self._headers, b"".join(self._parts) if long is None else long)

    def take_body(self) -> bytes:
        """The part of the body that has arrived since the last call."""
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
            self.keep_alive = False  # the parser waits for a body that never comes and cannot be reused
            self.on_complete()
        elif self._in_place:
            length = int(self._headers.get("content-length", "0"))
            self._long = bytearray(length) if length in IN_PLACE_BYTES else None

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
        """A reply is complete. The next one may follow in the same bytes."""
        self.complete = True
