"""The HTTP client of the server: requests to webhooks, to a router and to an issuer of tokens. Nothing else opens
connections.

    target_of(url) ──> check ──> resolve ──> check each address ──> connect ──> request ──> response
                         │                        │
                         └── AddressRefused <─────┘      (a name may resolve to an address that must not be called)

A connection goes to the address that was checked, so a name that resolves differently the next time cannot get around
the policy. Redirects are not followed. A response is bounded in size. The time limit is the caller's: a call that is
cancelled closes its connection. With `keep_alive`, a few idle connections per target are kept for the next call.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from driftq.server.outbound.address_policy import AddressPolicy, AddressRefused, ip_literal

if TYPE_CHECKING:
    from driftq.server.outbound.address_policy import Address
    from driftq.server.settings import Settings

RESPONSE_BYTES_MAX = 64 << 10
HEAD_BYTES_MAX = 16 << 10
READ_BYTES = 64 << 10
RESOLVERS = 64
IDLE_MAX = 16  # connections per target
_LOCALHOST = ipaddress.IPv4Address("127.0.0.1")

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OutboundFailed(Exception):
    """The other side did not send a usable response."""


class _StaleConnection(Exception):
    """The connection was closed before the first byte of the response."""


class OutboundTarget(NamedTuple):
    """A URL that can be called."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str


class OutboundResponse(NamedTuple):
    """The status and the body of a response."""

    status: int
    body: bytes


def target_of(url: str) -> OutboundTarget:
    """Parse an http(s) URL. Raises `AddressRefused`."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise AddressRefused(f"{url!r} is not a URL: write other characters as %XX, and a name in its xn-- form")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(f"{url!r} is not a URL: {error}") from None
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or not host:
        raise AddressRefused(f"{url!r} is not an http(s) URL")
    if parts.username is not None or parts.fragment:
        raise AddressRefused("a URL with a user name or a fragment is not accepted")
    if any(not 0 < len(label) < 64 for label in host.rstrip(".").split(".")) and ip_literal(host) is None:
        raise AddressRefused(f"{host!r} is not a host name")
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return OutboundTarget(host, port if port is not None else (443 if tls else 80), tls, parts.netloc, path)


class OutboundClient:
    """Calls targets that the policy allows."""

    def __init__(self, settings: Settings) -> None:
        self.policy = AddressPolicy(settings)
        self._resolvers = ThreadPoolExecutor(RESOLVERS, "resolver")
        self._tls: ssl.SSLContext | None = None  # made for the first https call
        self._idle: defaultdict[OutboundTarget, list[_Streams]] = defaultdict(list)

    def check(self, target: OutboundTarget) -> None:
        """Check what can be checked without resolving a name. Raises `AddressRefused`."""
        address = ip_literal(target.host)
        local = target.host == "localhost" or target.host.endswith(".localhost")
        if address is not None:
            self.policy.check(address, target.port)
            local = self.policy.is_local_or_allowed(address)
        elif local:
            self.policy.check(_LOCALHOST, target.port)
        if not target.tls and not local:
            raise AddressRefused("plain http is only for this machine and for addresses in outbound.allow; use https")

    async def post(
        self,
        target: OutboundTarget,
        body: bytes,
        agent: str,
        headers: Sequence[tuple[str, str]] = (),
        *,
        keep_alive: bool = False,
        truncate: bool = False,
    ) -> OutboundResponse:
        """POST a JSON body. A response that is too large is an error, or truncated. Raises `AddressRefused`, `OSError`
        or `OutboundFailed`."""
        request = _post_request(target, body, agent, headers, keep_alive)
        idle = self._idle[target] if keep_alive else []
        while idle:
            try:
                return await self._exchange(idle.pop(), target, request, keep_alive, truncate)
            except _StaleConnection:
                continue
        try:
            return await self._exchange(await self.connect(target), target, request, keep_alive, truncate)
        except _StaleConnection:
            raise OutboundFailed("the connection was closed without a response") from None

    async def get(self, target: OutboundTarget, agent: str) -> OutboundResponse:
        """GET a JSON document. Raises as `post` does; a response that is too large is an error."""
        request = _head("GET", target, agent) + "Connection: close\r\n\r\n"
        try:
            return await self._exchange(await self.connect(target), target, request.encode(), False, False)
        except _StaleConnection:
            raise OutboundFailed("the connection was closed without a response") from None

    async def _exchange(
        self, streams: _Streams, target: OutboundTarget, request: bytes, keep_alive: bool, truncate: bool
    ) -> OutboundResponse:
        reader, writer = streams
        response = _ResponseReader()
        reusable = False
        try:
            writer.write(request)
            try:
                await writer.drain()
            except ConnectionError:
                raise _StaleConnection from None
            await response.read_from(reader, truncate=truncate)
            reusable = keep_alive and response.reusable and len(self._idle[target]) < IDLE_MAX
            return OutboundResponse(response.status, response.body)
        finally:
            if reusable:
                self._idle[target].append(streams)
            else:
                writer.transport.abort()

    async def connect(self, target: OutboundTarget) -> _Streams:
        """Connect to the first address that is allowed and accepts. Raises `AddressRefused` or `OSError`."""
        self.check(target)
        refused: AddressRefused | None = None
        failed: OSError | None = None
        for address in await self._addresses(target):
            try:
                self.policy.check(address, target.port)
                if not target.tls and not self.policy.is_local_or_allowed(address):
                    raise AddressRefused(f"{target.host} is {address}: plain http is only for this machine")
            except AddressRefused as error:
                refused = refused or error
                continue
            tls = self._tls_context() if target.tls else None
            name = target.host if target.tls else None
            try:
                return await asyncio.open_connection(
                    str(address), target.port, ssl=tls, server_hostname=name, limit=READ_BYTES
                )
            except OSError as error:
                failed = failed or error
        raise failed or refused or OutboundFailed(f"{target.host} has no address")

    async def _addresses(self, target: OutboundTarget) -> list[Address]:
        address = ip_literal(target.host)
        if address is not None:
            return [address]
        loop = asyncio.get_running_loop()
        try:
            resolved = await loop.run_in_executor(self._resolvers, _resolve, target.host, target.port)
        except UnicodeError as error:
            raise AddressRefused(f"{target.host!r} is not a host name: {error}") from None
        return [ipaddress.ip_address(text) for text in dict.fromkeys(resolved)]

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def close(self) -> None:
        for connections in self._idle.values():
            for _, writer in connections:
                writer.close()
        self._idle.clear()
        self._resolvers.shutdown(wait=False, cancel_futures=True)


def _head(method: str, target: OutboundTarget, agent: str) -> str:
    return (
        f"{method} {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nUser-Agent: {agent}\r\n"
        "Accept: application/json\r\n"
    )


def _post_request(
    target: OutboundTarget, body: bytes, agent: str, headers: Sequence[tuple[str, str]], keep_alive: bool
) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    connection = "" if keep_alive else "Connection: close\r\n"
    head = (
        f"{_head('POST', target, agent)}Content-Type: application/json\r\n{lines}{connection}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _resolve(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class _ResponseReader:
    """Reads one response. The `on_…` methods are called by httptools."""

    def __init__(self) -> None:
        self._parser: Any = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._has_length = False  # Content-Length or chunked; otherwise the body ends with the connection
        self._done = False
        self.reusable = False  # the connection can carry another request
        self.status = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length = self._has_length or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes <= RESPONSE_BYTES_MAX:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.status < 200:
            return  # an interim response
        self._done = True
        self.reusable = self._parser.should_keep_alive()  # the parser knows it only now

    async def read_from(self, reader: asyncio.StreamReader, *, truncate: bool) -> None:
        """Read until the response is complete; with `truncate`, a response that is too large ends early."""
        received = 0
        while not self._done:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                if not received:
                    raise _StaleConnection
                if self.status >= 200 and not self._has_length:
                    return
                raise OutboundFailed("the response ended early")
            received += len(data)
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                raise OutboundFailed(f"the other side does not speak HTTP: {error}") from None
            if self._body_bytes > RESPONSE_BYTES_MAX or received > RESPONSE_BYTES_MAX + HEAD_BYTES_MAX:
                if truncate and self.status >= 200:
                    return
                raise OutboundFailed(f"the response is larger than {RESPONSE_BYTES_MAX} bytes")
