"""HTTP/1.1 as bytes: where a broker is, requests as they are written, and the reply as a value.

Pure; sockets belong to the transports, and replies are parsed by `reply_reader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from driftq.client.errors import InvalidCall

if TYPE_CHECKING:
    import ssl

USER_AGENT = "driftq-python/1"


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
