"""Which addresses outbound calls may reach. Pure but for one question to the kernel: is this address ours.

A public address may be called. A private, link-local, shared or multicast one only if it lies in `outbound.allow`;
loopback also while the broker itself listens on loopback only. An IPv6 address that carries an IPv4 address (mapped,
compatible, 6to4, NAT64) counts as that address. The unspecified address and the broker's own listener are never called.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from driftq.server.settings import LOOPBACK_HOSTS, Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Translators of a site and tunnels through strangers: what is at their other end cannot be known.
_OPAQUE = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("2001::/32"))


class Refused(Exception):
    """An address that must not be called; the message says why."""


def carried(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is not None:
        return inner
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (
        address.is_site_local or any(address in network for network in _OPAQUE)
    ):
        return False
    inner = carried(address)
    return inner.is_global and not inner.is_multicast and not inner.is_reserved


def is_of_this_machine(address: Address) -> bool:
    """Whether a socket can be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


class AddressPolicy:
    """Judges one address and port. `own_ports` is certain when the listener is open."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = [ipaddress.ip_network(text, strict=False) for text in settings.outbound.allow]
        self._loopback = settings.listen.host in LOOPBACK_HOSTS
        self.own_ports = frozenset({settings.listen.port})

    def is_local_or_allowed(self, address: Address) -> bool:
        """Whether plain http is good enough: the bytes stay on this machine, or somebody vouched for the network."""
        inner = carried(address)
        return (self._loopback and inner.is_loopback) or self._is_allowed(address, inner)

    def check(self, address: Address, port: int) -> None:
        """Raises `Refused`."""
        inner = carried(address)
        if inner.is_unspecified:
            raise Refused(f"{address} is no address to call")
        if port in self.own_ports and is_of_this_machine(inner):
            raise Refused("the broker does not call itself")
        if is_public(address) or self.is_local_or_allowed(address):
            return
        if inner.is_loopback:
            raise Refused(f"{address} is this machine; the broker calls it only while it listens on loopback itself")
        raise Refused(f"{address} is not a public address; outbound.allow can list its network")

    def _is_allowed(self, address: Address, inner: Address) -> bool:
        return any(
            candidate.version == network.version and candidate in network
            for network in self._allowed
            for candidate in (address, inner)
        )


# --- The one way out: HTTP calls that the broker makes by itself, for webhooks and for a router ---


ANSWER_BYTES_MAX = 64 << 10
HEAD_BYTES_MAX = 16 << 10
READ_BYTES = 64 << 10
RESOLVERS = 64
_LOCALHOST = ipaddress.IPv4Address("127.0.0.1")

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class OutboundFailed(Exception):
    """The other side did not give an answer that can be used."""


class Stale(Exception):
    """The connection was closed before a byte of the answer came."""


class Target(NamedTuple):
    """A URL that can be called."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str

    def head(self, agent: str, *lines: str) -> bytes:
        """A POST up to its length."""
        further = "".join(f"{line}\r\n" for line in lines)
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.authority}\r\nUser-Agent: {agent}\r\n"
            f"Content-Type: application/json\r\nAccept: application/json\r\n{further}"
        ).encode()


def target_of(url: str) -> Target:
    """Raises `Refused` for what is not an http(s) URL in its written form."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Refused(f"{url!r} is not a URL: write other characters as %XX, and a name in its xn-- form")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(f"{url!r} is not a URL: {error}") from None
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or not host:
        raise Refused(f"{url!r} is not an http(s) URL")
    if parts.username is not None or parts.fragment:
        raise Refused("a URL with a user name or a fragment is not accepted")
    if any(not 0 < len(label) < 64 for label in host.rstrip(".").split(".")) and literal(host) is None:
        raise Refused(f"{host!r} is not a host name")
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host, port if port is not None else (443 if tls else 80), tls, parts.netloc, path)


def literal(host: str) -> Address | None:
    """The address that a host is written as, if it is one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Outbound:
    """Opens connections to where the policy lets them go."""

    def __init__(self, settings: Settings) -> None:
        self.policy = AddressPolicy(settings)
        self._resolvers = ThreadPoolExecutor(RESOLVERS, "resolver")

    def check(self, target: Target) -> None:
        """What can be judged without resolving a name. Raises `Refused`."""
        address = literal(target.host)
        local = target.host == "localhost" or target.host.endswith(".localhost")
        if address is not None:
            self.policy.check(address, target.port)
            local = self.policy.is_local_or_allowed(address)
        elif local:
            self.policy.check(_LOCALHOST, target.port)
        if not target.tls and not local:
            raise Refused("plain http is only for this machine and for addresses in outbound.allow; use https")

    async def connect(self, target: Target, tls: ssl.SSLContext | None) -> Connection:
        """A connection to an address that was judged. Raises `Refused` or `OSError`."""
        self.check(target)
        refused: Refused | None = None
        failed: OSError | None = None
        for address in await self._addresses(target):
            try:
                self.policy.check(address, target.port)
                if not target.tls and not self.policy.is_local_or_allowed(address):
                    raise Refused(f"{target.host} is {address}: plain http is only for this machine")
            except Refused as error:
                refused = refused or error
                continue
            name = target.host if tls is not None else None
            try:
                return await asyncio.open_connection(
                    str(address), target.port, ssl=tls, server_hostname=name, limit=READ_BYTES
                )
            except OSError as error:
                failed = failed or error
        raise failed or refused or OutboundFailed(f"{target.host} has no address")

    async def _addresses(self, target: Target) -> list[Address]:
        known = literal(target.host)
        if known is not None:
            return [known]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._resolvers, _resolve, target.host, target.port)
        except UnicodeError as error:
            raise Refused(f"{target.host!r} is not a host name: {error}") from None
        return [ipaddress.ip_address(text) for text in dict.fromkeys(found)]

    async def post(self, target: Target, tls: ssl.SSLContext | None, request: bytes) -> tuple[int, bytes]:
        """One request on a connection of its own: status and body. What is too long of an answer is cut off."""
        reader, writer = await self.connect(target, tls)
        answer = Answer()
        try:
            writer.write(request)
            await writer.drain()
            await answer.read_from(reader, cut=True)
            return answer.status, answer.body
        except (Stale, ConnectionError):
            raise OutboundFailed("the connection was closed without an answer") from None
        finally:
            writer.transport.abort()

    def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)


def _resolve(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Answer:
    """One response, as it comes in."""

    def __init__(self) -> None:
        self._parser: Any = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._is_framed = False
        self._done = False
        self.reusable = False
        self.status = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._is_framed = self._is_framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes <= ANSWER_BYTES_MAX:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.status < 200:
            return  # an interim answer
        self._done = True
        self.reusable = self._parser.should_keep_alive()  # the parser knows only now

    async def read_from(self, reader: asyncio.StreamReader, *, cut: bool = False) -> None:
        """Until it is whole; with `cut` an answer that is too long ends where it is."""
        received = 0
        while not self._done:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                if not received:
                    raise Stale
                if self.status >= 200 and not self._is_framed:
                    return  # the end of the connection is the end of the body
                raise OutboundFailed("the answer ended early")
            received += len(data)
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                raise OutboundFailed(f"the other side does not speak HTTP: {error}") from None
            if self._size_bytes > ANSWER_BYTES_MAX or received > ANSWER_BYTES_MAX + HEAD_BYTES_MAX:
                if cut and self.status >= 200:
                    return
                raise OutboundFailed(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
