"""Clients that flood the server or do not read what they asked for: their memory is bounded, and another client is
served nearly as if they were not there."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driftq.wire.records import Record, pack
from tests.support.light_client import connect, highest_mib, light_waits, raw_request, resident_mib
from tests.support.server import Server, running
from tests.support.wait import until_now

UNREAD = 60
FILLED_BYTES = 20_000_000
VALUE_BYTES = 100_000
RESIDENT_MIB_MAX = 300
HIGHEST_MIB_MAX = 400  # also for a moment
MIB = 1 << 20
COUNT = 150  # requests of the light client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(str(tmp_path / "data")) as started:
        for topic in ("light", "heavy"):
            assert started.call("POST", "/v1/topics", {"name": topic}).status == 201
        yield started


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def check_light_client(server: Server, attack: Callable[[], None], quantile_bytes: int | None = None) -> None:
    """The attack ends when it has sent what it wants to send. `quantile_bytes` is for attacks whose requests are large:
    how much CPU time their bytes take depends on how busy the machine is, how many bytes come first does not."""
    quiet = light_waits(server, "light", COUNT)
    waits = light_waits(server, "light", COUNT, attack)
    if quantile_bytes is None:
        assert waits.quantile_ms < 2 * quiet.quantile_ms + 20, (quiet, waits)
    else:
        assert waits.quantile_bytes < quantile_bytes, (quiet, waits)
    assert waits.longest_ms < 2 * quiet.longest_ms + 200, (quiet, waits)
    assert resident_mib(server) < RESIDENT_MIB_MAX


def send_and_never_read(server: Server, sockets: contextlib.ExitStack, requests: list[bytes]) -> None:
    for request in requests:
        sockets.enter_context(connect(server.port)).sendall(request)


def fill_topic(server: Server) -> None:
    value = "z" * VALUE_BYTES
    for _ in range(FILLED_BYTES // VALUE_BYTES):
        assert server.call("POST", "/v1/produce", {"topic": "heavy", "value": value}).status == 200


@pytest.mark.timeout(120)
def test_claims_whose_replies_are_not_read_hold_little_memory_and_delay_no_other_client(server, sockets):
    fill_topic(server)
    requests = [
        raw_request("POST", "/v1/claim", {"topic": "heavy", "group": f"g{number}", "owner": "o", "max": 200})
        for number in range(UNREAD)
    ]
    check_light_client(server, lambda: send_and_never_read(server, sockets, requests))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("append_bytes", [100_000, 5_000_000])
def test_event_streams_that_are_not_read_hold_little_memory_and_delay_no_other_client(server, sockets, append_bytes):
    headers = {"Content-Type": "application/octet-stream"}
    assert server.call("PUT", "/v1/stream/s", b"", headers).status == 201
    for _ in range(FILLED_BYTES // append_bytes):
        assert server.call("POST", "/v1/stream/s", os.urandom(append_bytes), headers).status == 204
    requests = [raw_request("GET", "/v1/stream/s?offset=-1&live=sse")] * UNREAD
    check_light_client(server, lambda: send_and_never_read(server, sockets, requests))


@pytest.mark.timeout(120)
def test_consumers_that_do_not_read_hold_little_memory_and_delay_no_other_client(server, sockets):
    fill_topic(server)
    path = "/v1/consume?topic=heavy&owner=o&group=g"
    requests = [raw_request("GET", f"{path}{number}") for number in range(UNREAD)]
    check_light_client(server, lambda: send_and_never_read(server, sockets, requests))


@pytest.mark.parametrize(
    ("head_bytes", "count", "status"),
    [(64 * MIB - 100, 1, b"413"), (7 * MIB, 2, b"400")],
    ids=["one head", "two heads"],
)
def test_small_batches_that_unpack_to_much_hold_little_memory(server, sockets, head_bytes, count, status):
    batch = pack([Record(b"x", b"", b" " * head_bytes)] * count, compress=True)
    assert len(batch) < 10_000
    attackers = [sockets.enter_context(connect(server.port)) for _ in range(16)]
    for sock in attackers:
        sock.sendall(raw_request("POST", "/v1/produce/packed?topic=heavy", batch))
    for sock in attackers:
        assert sock.recv(12) == b"HTTP/1.1 " + status
    assert highest_mib(server) < HIGHEST_MIB_MAX


@pytest.mark.timeout(120)
def test_claims_of_messages_with_large_envelopes_hold_little_memory(server, sockets):
    """As JSON each has 60 kB, and none of it is in the value."""
    labels = {f"label {number}": "\u0001" * 160 for number in range(60)}
    body = {"topic": "heavy", "value": "v", "envelope": {"labels": labels}}
    for _ in range(200):
        assert server.call("POST", "/v1/produce", body).status == 200
    requests = [
        raw_request("POST", "/v1/claim", {"topic": "heavy", "group": f"g{number}", "owner": "o", "max": 200})
        for number in range(UNREAD)
    ]
    light_waits(server, "light", COUNT, lambda: send_and_never_read(server, sockets, requests))  # it is served
    assert highest_mib(server) < HIGHEST_MIB_MAX


def flood(server: Server, connections: int, request: bytes, count: int) -> None:
    """Pipeline `count` requests, spread over connections, and read the responses. Each must succeed."""
    ready = selectors.DefaultSelector()
    data = memoryview(request * max(1, min(count // connections, 65_536 // len(request))))
    sent: dict[socket.socket, int] = {}
    for _ in range(connections):
        sock = connect(server.port)
        sock.setblocking(False)
        ready.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        sent[sock] = 0
    answered = 0
    while answered < count:
        for key, events in ready.select(60):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            with contextlib.suppress(BlockingIOError):
                if events & selectors.EVENT_READ:
                    answered += sock.recv(1 << 20).count(b"HTTP/1.1 200 ")
                if events & selectors.EVENT_WRITE:
                    sent[sock] += sock.send(data[sent[sock] % len(data) :])
    for sock in sent:
        sock.close()
    ready.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("connections", [8, 100])
def test_a_client_that_pipelines_from_many_connections_delays_no_other_client(server, connections):
    request = raw_request("POST", "/v1/produce", {"topic": "heavy", "value": "x" * 100})
    check_light_client(server, lambda: flood(server, connections, request, 60_000))


@pytest.mark.timeout(120)
def test_a_flood_of_large_messages_takes_little_memory_and_the_other_client_is_not_refused(server):
    request = raw_request("POST", "/v1/produce", {"topic": "heavy", "value": "x" * 1_000_000})
    # `started_bytes` allows two such messages in the commit under way and two in the next; usually, four of them are
    # written before the reply, to the journal and to a log. Without a limit it would be all sixteen, or more.
    check_light_client(server, lambda: flood(server, 16, request, 150), 16_000_000)


def test_a_large_claim_arrives_whole_and_what_a_lost_client_did_not_get_is_free_again(server, sockets):
    fill_topic(server)
    body = {"topic": "heavy", "group": "g", "owner": "o", "max": 200, "lease_ms": 600_000}
    lost = connect(server.port)
    lost.sendall(raw_request("POST", "/v1/claim", body))
    assert lost.recv(12) == b"HTTP/1.1 200"
    lost.close()
    messages: list[dict[str, object]] = []

    def claim() -> bool:
        messages.extend(server.call("POST", "/v1/claim", body).json()["messages"])
        return len(messages) >= 150

    until_now(claim, 20)
    assert {len(str(message["value"])) for message in messages} == {VALUE_BYTES}
    offsets = [message["offset"] for message in messages]
    assert len(set(offsets)) == len(offsets), "none twice: the lost client holds what it may have got"
    assert {message["attempts"] for message in messages} == {1}, "a message that was not sent counts no attempt"
