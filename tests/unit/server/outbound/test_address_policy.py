"""Which addresses the broker may call by itself, in every form in which an address can be written."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest

from driftq.server.outbound.address_policy import AddressPolicy, AddressRefused, is_of_this_machine
from driftq.server.outbound.client import OutboundClient, target_of
from driftq.server.settings import Settings, load
from driftq.settings.loader import SettingsError

PRIVATE = [
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "192.0.2.1", "240.0.0.1",
    "255.255.255.255", "224.0.0.1", "239.1.1.1", "0.1.2.3",
    "fe80::1", "fc00::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "100::1",
    "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "2002:a00:1::", "2002:a9fe:a9fe::1",
    "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::101:101", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2002:7f00:1::", "64:ff9b::7f00:1", "::127.0.0.1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "2002:101:101::", "64:ff9b::101:101"]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]


def policy(*settings: str) -> AddressPolicy:
    return AddressPolicy(load(None, {}, settings).settings)


def check(policy: AddressPolicy, address: str, port: int = 443) -> None:
    policy.check(ipaddress.ip_address(address), port)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    check(policy("listen.host=10.1.1.1"), address)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_may_not_be_called(address: str) -> None:
    public = policy("listen.host=10.1.1.1")
    with pytest.raises(AddressRefused):
        check(public, address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_may_be_called_while_the_broker_itself_is_there(address: str) -> None:
    check(policy(), address)
    with pytest.raises(AddressRefused):
        check(policy("listen.host=10.1.1.1"), address)
    check(policy("listen.host=10.1.1.1", "outbound.allow=127.0.0.0/8,::1"), address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_the_unspecified_address_is_never_called(address: str) -> None:
    with pytest.raises(AddressRefused):
        check(policy("outbound.allow=0.0.0.0/0,::/0"), address)


def test_a_listed_network_may_be_called_in_every_form() -> None:
    listed = policy("listen.host=10.1.1.1", "outbound.allow=10.0.0.0/24,169.254.1.1")
    for address in ("10.0.0.7", "::ffff:10.0.0.7", "64:ff9b::a00:7", "169.254.1.1"):
        check(listed, address)
    for address in ("10.0.1.1", "169.254.1.2", "192.168.0.1"):
        with pytest.raises(AddressRefused):
            check(listed, address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_the_brokers_own_port_is_never_called_on_this_machine(address: str) -> None:
    listed = policy("listen.port=7001", "outbound.allow=0.0.0.0/0,::/0")
    with pytest.raises(AddressRefused, match="itself"):
        check(listed, address, 7001)
    check(listed, address, 7002)
    check(listed, "10.255.255.1", 7001)


def test_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine(ipaddress.ip_address("127.0.0.1"))
    assert not is_of_this_machine(ipaddress.ip_address("192.0.2.77"))


def test_an_invalid_network_or_origin_is_refused_at_the_start() -> None:
    for setting in (
        "outbound.allow=internal",
        "listen.allowed_origins=*",
        "listen.allowed_origins=null",
        "listen.allowed_origins=https://a.example/",
        "streams.cors_origins=a.example",
    ):
        with pytest.raises(SettingsError, match=setting.partition("=")[0]):
            load(None, {}, [setting])


def test_a_name_is_checked_by_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        resolved.append(host)
        return [(None, None, None, "", (address, port)) for address in ("64:ff9b::a00:1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    outbound = OutboundClient(Settings())
    with pytest.raises(AddressRefused, match="not a public address"):
        asyncio.run(outbound.connect(target_of("https://rebound.example/")))
    assert resolved == ["rebound.example"], "resolved once"
    outbound.close()


def test_the_address_that_is_connected_is_the_one_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to an allowed address first and to a private one later."""
    answers = iter(["127.0.0.1", "10.0.0.1", "169.254.169.254"])
    asked: list[str] = []
    getaddrinfo = socket.getaddrinfo

    def resolve(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        if host != "rebound.example":
            return getaddrinfo(host, port, **options)  # type: ignore[arg-type, return-value]
        asked.append(host)
        return [(None, None, None, "", (next(answers), port))]

    async def run() -> tuple[str, int]:
        peers: list[str] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peers.append(writer.get_extra_info("sockname")[0])
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = target_of(f"http://rebound.example:{port}/")
        outbound = OutboundClient(load(None, {}, ["outbound.allow=127.0.0.1"]).settings)
        monkeypatch.setattr(outbound, "check", lambda target: None)  # of the name alone, which has to be https
        try:
            _, writer = await outbound.connect(target)
            connected = writer.get_extra_info("peername")[0]
            writer.close()
            for _ in range(2):
                with pytest.raises(AddressRefused):
                    await outbound.connect(target)
        finally:
            outbound.close()
            server.close()
        return connected, len(asked)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert asyncio.run(run()) == ("127.0.0.1", 3), "resolved once for each connection"


def test_localhost_by_name_is_checked_like_its_address() -> None:
    OutboundClient(Settings()).check(target_of("http://localhost:9/"))
    for settings, url in [((), "http://localhost:8080/"), (("listen.host=10.1.1.1",), "http://localhost:9/")]:
        with pytest.raises(AddressRefused):
            OutboundClient(load(None, {}, settings).settings).check(target_of(url))
