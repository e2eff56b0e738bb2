"""HTTP/1.1 as bytes: where a broker is, requests as they are written, and the reply as a value.

Pure; sockets belong to the transports, and replies are parsed by `reply_reader`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from driftq.client.errors import InvalidCall
from driftq.client.transport.credential import ClientToken, TokenFile, header_line, token_from
from driftq.client.transport.tls import ClientTls, TlsContext, tls_from

USER_AGENT = "driftq-python/1"


class Address(NamedTuple):
    """Where a broker is, and the headers that every request to it carries."""

    host: str
    port: int
    secure: bool
    base_path: str
    header_bytes: bytes
    tls_files: ClientTls = ClientTls()
    token_file: TokenFile | None = None  # its header is not in `header_bytes`

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.host}:{self.port}{self.base_path}"

    def tls(self) -> TlsContext | None:
        """The TLS of connections to this address. Raises `InvalidCall` for files that cannot be used."""
        return TlsContext(self.tls_files) if self.secure else None


def parse_address(
    url: str, token: str | ClientToken = "", tls_files: ClientTls | None = None, *, from_environment: bool = True
) -> Address:
    """Parse a URL. A token is sent as a bearer token; `http://:token@host` works, too. A token and files that are not
    named come from the environment."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidCall(f"{url!r} is not the address of a broker; use one like http://localhost:8080")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8080)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    chosen = ClientToken(token) if isinstance(token, str) else token
    chosen = chosen.or_else(ClientToken(unquote(parts.password or "")))
    if from_environment:
        chosen = chosen.or_else(token_from())
    headers = f"Host: {host}:{port}\r\nUser-Agent: {USER_AGENT}\r\n"
    token_file = TokenFile(chosen.file) if chosen.file and not chosen.text else None
    files = (tls_files or ClientTls()).or_else(tls_from())
    header_bytes = headers.encode() + header_line(chosen.text)
    return Address(parts.hostname, port, secure, parts.path.rstrip("/"), header_bytes, files, token_file)


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
    return request_head(address, call) + call.body


def request_head(address: Address, call: RequestParts) -> bytes:
    """A request up to its body."""
    head = f"{call.method} {address.base_path}{call.path} HTTP/1.1\r\n"
    if call.body or call.method in ("POST", "PUT", "PATCH"):
        head += f"Content-Length: {len(call.body)}\r\n"
    if call.body or call.content_type:
        head += f"Content-Type: {call.content_type or 'application/json'}\r\n"
    for name, value in call.headers:
        head += f"{name}: {value}\r\n"
    token_file = address.token_file
    token_line = token_file.header_line() if token_file is not None else b""
    return b"".join((head.encode(), address.header_bytes, token_line, b"\r\n"))


class HttpReply(NamedTuple):
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray
