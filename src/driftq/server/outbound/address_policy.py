"""Which addresses outbound calls may reach (protection against server-side request forgery).

A public address may be called. A private, link-local, shared or multicast address only if it is in `outbound.allow`;
loopback also while the broker itself listens on loopback only. An IPv6 address that embeds an IPv4 address (mapped,
compatible, 6to4, NAT64) counts as that address. The unspecified address and the broker's own listener are never called.
Pure, except that the kernel is asked whether an address belongs to this machine.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from driftq.server.settings import LOOPBACK_HOSTS

if TYPE_CHECKING:
    from driftq.server.settings import Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Local NAT64 prefixes and Teredo tunnels: the address at their other end is unknown.
_UNKNOWN_TARGETS = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("2001::/32"))


class AddressRefused(Exception):
    """An address or URL that must not be called; the message gives the reason."""


def embedded_ipv4(address: Address) -> Address:
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
        address.is_site_local or any(address in network for network in _UNKNOWN_TARGETS)
    ):
        return False
    inner = embedded_ipv4(address)
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
    """Checks one address and port. `own_ports` is set when the listener is open."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = [ipaddress.ip_network(text, strict=False) for text in settings.outbound.allow]
        self._loopback = settings.listen.host in LOOPBACK_HOSTS
        self.own_ports = frozenset({settings.listen.port})

    def is_local_or_allowed(self, address: Address) -> bool:
        """Whether plain http is allowed: the bytes stay on this machine, or the operator has listed the network."""
        inner = embedded_ipv4(address)
        return (self._loopback and inner.is_loopback) or self._is_allowed(address, inner)

    def check(self, address: Address, port: int) -> None:
        """Raises `AddressRefused`."""
        inner = embedded_ipv4(address)
        if inner.is_unspecified:
            raise AddressRefused(f"{address} cannot be called")
        if port in self.own_ports and is_of_this_machine(inner):
            raise AddressRefused("the broker does not call itself")
        if is_public(address) or self.is_local_or_allowed(address):
            return
        if inner.is_loopback:
            raise AddressRefused(
                f"{address} is this machine; the broker calls it only while it listens on loopback itself"
            )
        raise AddressRefused(f"{address} is not a public address; outbound.allow can list its network")

    def _is_allowed(self, address: Address, inner: Address) -> bool:
        return any(
            candidate.version == network.version and candidate in network
            for network in self._allowed
            for candidate in (address, inner)
        )


def ip_literal(host: str) -> Address | None:
    """The address, if a host is written as one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
