"""Very many dead letters, topics, partitions and streams: no call about them holds the event loop.

The sizes are a tenth of those that the benchmarks and the documents name. Times are CPU times of the server's loop.
"""

from __future__ import annotations

import asyncio

import pytest

from bench.load_client import LoadClient, post
from driftq.wire.records import Record, pack
from tests.support.measured_server import MeasuredServer, measured_server

LETTERS = 10_000
TOPICS = 1_000
PARTITIONS = 1_000  # in full: one request describes all of them
STREAMS = 10_000
DELAYED = 50_000
TURN_S = 0.02
SETTINGS = ("queue.in_flight_max=1000000", "limits.streams_max=1000000")


async def send_all(port: int, requests: list[bytes]) -> None:
    """Several connections, many requests on each. Every one must succeed."""
    clients = [await LoadClient.connect(port) for _ in range(4)]
    waiting = iter(requests)

    async def caller(client: LoadClient) -> None:
        for request in waiting:
            status, body = await client.send(request)
            assert status < 300, body

    await asyncio.gather(*(caller(client) for client in clients for _ in range(32)))
    for client in clients:
        client.close()


def reject_all(server: MeasuredServer) -> None:
    """Make `LETTERS` dead letters of fifty kinds."""
    assert server.call("POST", "/v1/topics", {"name": "t"}).status == 201
    batch = pack([Record(b"v" * 100)] * LETTERS)
    assert server.call("POST", "/v1/produce/packed?topic=t&partition=0", batch).status == 200
    for number in range(0, LETTERS, 200):
        claimed = server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "w", "max": 200}).json()
        offsets = [message["offset"] for message in claimed["messages"]]
        held = {"partition": 0, "offset": offsets[0], "end": offsets[-1] + 1, "token": claimed["token"]}
        body = {"topic": "t", "group": "g", "messages": [held], "reason": f"kind {number % 10_000} failed"}
        assert server.call("POST", "/v1/reject", body).json() == {"refused": []}


def test_many_dead_letters_are_listed_counted_and_redriven_without_a_stall(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        reject_all(server)
        server.reset()
        assert server.call("GET", "/v1/dlq/t/errors?limit=1000").status == 200
        assert len(server.call("GET", "/v1/dlq/t?error=failed&limit=100").json()["messages"]) == 100
        assert server.call("GET", "/v1/dlq/t?error=nothing-like-it").json()["messages"] == []
        dry_run = server.call("POST", "/v1/dlq/t/redrive", {"dry_run": True, "limit": LETTERS})
        assert dry_run.json()["matched"] == LETTERS
        assert server.call("POST", "/v1/dlq/t/redrive", {"limit": LETTERS}).json()["redriven"] == LETTERS
        server.assert_no_turn_above(TURN_S)
        server.reset()
        assert server.call("GET", "/v1/dlq/t").json()["messages"] == []
        assert server.call("GET", "/v1/dlq/t/errors").status == 200
        total_s = server.on_loop(lambda: server.total_s)
        assert total_s < 0.02, "what was redriven is passed over as one range"


@pytest.fixture(scope="module")
def many_topics(tmp_path_factory):
    with measured_server(str(tmp_path_factory.mktemp("topics") / "data"), *SETTINGS) as server:
        creations = [post(f"/v1/topics?name=t{number}", b"") for number in range(TOPICS)]
        asyncio.run(send_all(server.port, creations))
        assert server.call("POST", "/v1/topics", {"name": "wide", "partitions": PARTITIONS}).status == 201
        for number in range(20):
            assert (
                server.call("POST", "/v1/claim", {"topic": "wide", "group": f"g{number}", "owner": "w"}).status == 200
            )
        yield server


@pytest.mark.parametrize(
    "path",
    [
        "/v1/metrics",
        "/v1/overview",
        "/v1/series?window_ms=86400000&points=2880",
        "/v1/topics",
        "/v1/topics?details=true&sort=lag&limit=1000",
        "/v1/topics?details=true&sort=name",
        "/v1/groups?details=true&sort=lag",
        "/v1/dlq",
        "/v1/producers",
        "/v1/topics/wide",
        "/v1/groups",
        "/v1/groups?topic=wide",
        "/v1/topics/wide/groups/g0",
    ],
)
def test_many_topics_and_partitions_are_described_without_a_stall(many_topics, path):
    many_topics.reset()
    assert many_topics.call("GET", path).status == 200
    many_topics.assert_no_turn_above(TURN_S)


def test_a_group_starts_and_seeks_among_many_delayed_messages_without_a_stall(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        assert server.call("POST", "/v1/topics", {"name": "t"}).status == 201
        delays_ms = [3_600_000 + number * 7_919 % 1_000_003 for number in range(DELAYED)]  # not in order of time
        for first in range(0, DELAYED, 10_000):
            messages = [{"value": "v", "delay_ms": delay_ms} for delay_ms in delays_ms[first : first + 10_000]]
            assert server.call("POST", "/v1/produce/batch", {"topic": "t", "messages": messages}).status == 200
        server.reset()
        for group in ("g", "h"):
            claim = {"topic": "t", "group": group, "owner": "w", "max": 100}
            assert server.call("POST", "/v1/claim", claim).json()["messages"] == []
        for target in ({"to": 100, "partition": 0}, {"to": "earliest"}, {"to": "latest"}):
            assert server.call("POST", "/v1/topics/t/groups/g/seek", target).status < 300
        server.assert_no_turn_above(TURN_S)


def test_many_streams_are_created_and_listed_without_a_stall(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\none"
        creations = [f"PUT /v1/stream/s/{number:06} {head}".encode() for number in range(STREAMS)]
        server.reset()
        asyncio.run(send_all(server.port, creations))
        listed = server.call("GET", "/v1/streams?prefix=s/&limit=1000")
        assert len(listed.json()["streams"]) == 1_000
        detailed = server.call("GET", "/v1/streams?prefix=s/&limit=1000&details=true")
        assert len(detailed.json()["figures"]) == 1_000
        server.assert_no_turn_above(TURN_S)
