"""What one connection of `/v1/consume` holds: slow readers, stalled readers, prefetch, and turns, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.consumer import Consumption, handle_serially
from tests.support.server import Server, running
from tests.support.wait import until_now


@pytest.fixture
def server() -> Iterator[Server]:
    with running(None, "queue.heartbeat_ms=300") as running_server:
        yield running_server


def produce(server: Server, topic: str, count: int, **fields: object) -> None:
    messages = [{"value": str(number), **fields} for number in range(count)]
    reply = server.call("POST", "/v1/produce/batch", {"topic": topic, "messages": messages})
    assert reply.json()["failed"] == 0, reply


def in_flight(server: Server, topic: str, group: str) -> int:
    count: int = server.call("GET", f"/v1/topics/{topic}/groups/{group}").json()["in_flight"]
    return count


@pytest.mark.parametrize(
    ("count", "work_s", "more"),
    [(300, 0.02, {}), (12, 1.0, {}), (60, 0.1, {"lease_ms": 400})],
    ids=["20 ms of work", "1 s of work", "a quarter of a short lease"],
)
def test_a_slow_serial_reader_handles_every_message_once(server, count, work_s, more):
    server.call("POST", "/v1/topics", {"name": "t"})
    retry = {"retry_policy": {"max_attempts": 3, "backoff_ms": 10}}
    produce(server, "t", count, envelope=retry)
    stream = Consumption(server, "t", "g", "slow", **more)
    handled = handle_serially(stream, count, work_s)
    stream.close()
    assert handled == dict.fromkeys(map(str, range(count)), 1)
    assert server.call("GET", "/v1/topics/t").json()["dead_letters"] == 0


def test_a_connection_holds_at_most_prefetch_messages(server):
    server.call("POST", "/v1/topics", {"name": "t"})
    produce(server, "t", 100)
    stream = Consumption(server, "t", "g", "few", prefetch=3, lease_ms=60_000)
    messages = stream.until_idle()
    assert [message["offset"] for message in messages] == [0, 1, 2]
    assert stream.settle("nack", messages[1]) == 204
    assert stream.settle("ack", messages[2]) == 204
    assert [message["offset"] for message in stream.until_idle()] == [3, 4]
    default = Consumption(server, "t", "other", "default", lease_ms=60_000)
    assert len(default.until_idle()) == 32, "at first, and as long as nothing is settled"
    for connection in (stream, default):
        connection.close()


@pytest.mark.parametrize("prefetch", ["0", "-1", "1.5", "many", "1000001"])
def test_an_invalid_prefetch_is_refused_and_creates_no_group(server, prefetch):
    server.call("POST", "/v1/topics", {"name": "t"})
    query = server.call("GET", f"/v1/consume?topic=t&group=g&owner=o&prefetch={prefetch}")
    body = server.call("GET", "/v1/consume", {"topic": "t", "group": "g", "owner": "o", "prefetch": prefetch})
    assert (query.status, body.status) == (400, 400)
    assert "prefetch" in query.json()["message"]
    assert server.call("GET", "/v1/topics/t/groups/g").status == 404


def test_a_reader_that_settles_quickly_is_given_more(server):
    server.call("POST", "/v1/topics", {"name": "t"})
    produce(server, "t", 1_000)
    stream = Consumption(server, "t", "g", "quick", lease_ms=60_000)
    for _ in range(300):
        message = stream.next()
        assert message is not None
        assert stream.settle("ack", message) == 204
    until_now(lambda: in_flight(server, "t", "g") > 100, 10)
    assert in_flight(server, "t", "g") <= 300, "no more than it settled during the last lease"
    stream.close()


def test_a_batch_is_shared_by_the_consumers_that_have_room(server):
    server.call("POST", "/v1/topics", {"name": "t"})
    streams = [Consumption(server, "t", "g", f"o{number}", lease_ms=60_000) for number in range(4)]
    assert [stream.next() for stream in streams] == [None] * 4, "all of them are idle"
    produce(server, "t", 40)
    with ThreadPoolExecutor(4) as pool:
        received = list(pool.map(Consumption.until_idle, streams))
    assert sorted(message["offset"] for some in received for message in some) == list(range(40))
    assert all(8 <= len(some) <= 12 for some in received), [len(some) for some in received]
    for stream in streams:
        stream.close()


def test_the_first_connection_does_not_take_the_whole_backlog(server):
    server.call("POST", "/v1/topics", {"name": "t"})
    produce(server, "t", 100)
    streams = [Consumption(server, "t", "g", f"o{number}", lease_ms=60_000) for number in range(3)]
    received = [stream.until_idle() for stream in streams]
    assert [len(some) for some in received] == [32, 32, 32]
    for stream in streams:
        stream.close()


def test_a_connection_that_settles_nothing_for_a_lease_loses_what_it_holds(server):
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 1}})
    produce(server, "t", 10)
    stalled = Consumption(server, "t", "g", "stalled", lease_ms=600)
    held = [stalled.next() for _ in range(10)]
    assert stalled.settle("ack", held[0] or {}) == 204
    other = Consumption(server, "t", "g", "other", lease_ms=60_000, prefetch=100)
    handled = {}
    while len(handled) < 9:
        message = other.next()
        if message is not None:
            handled[message["offset"]] = message["attempts"], message["last_error"]
    assert set(handled) == set(range(1, 10))
    assert all(attempts >= 2 and error == "ack_timeout" for attempts, error in handled.values()), handled
    for connection in (stalled, other):
        connection.close()


def test_only_the_oldest_message_of_a_busy_connection_loses_its_lease(server):
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 1}})
    produce(server, "t", 12)
    busy = Consumption(server, "t", "g", "busy", lease_ms=600)
    held = [busy.next() or {} for _ in range(12)]
    other = Consumption(server, "t", "g", "other", lease_ms=60_000)
    pause = threading.Event()
    for message in held[1:]:
        pause.wait(0.2)
        assert busy.settle("ack", message) == 204
    lines = [stream.next() for stream in (other, busy) for _ in range(9)]  # it comes back to one of the two
    lost = [message for message in lines if message is not None]
    assert {message["offset"] for message in lost} == {0}
    assert lost[0]["attempts"] == 2
    for connection in (busy, other):
        connection.close()


def test_kept_leases_are_still_held_after_a_kill(tmp_path: Path):
    server = Server(str(tmp_path), "queue.heartbeat_ms=300")
    server.call("POST", "/v1/topics", {"name": "t"})
    produce(server, "t", 20)
    slow = Consumption(server, "t", "g", "slow", lease_ms=3_000)
    held = [slow.next() or {} for _ in range(20)]
    working = threading.Event()
    for message in held[:9]:
        working.wait(0.4)
        assert slow.settle("ack", message) == 204
    server.kill()
    slow.close()
    with running(str(tmp_path), "queue.heartbeat_ms=300") as again:
        assert in_flight(again, "t", "g") == 11, "the first leases ended before the kill, the kept ones did not"
        for message in held[9:]:
            body = {name: message[name] for name in ("partition", "offset", "token")}
            ack = again.call("POST", "/v1/ack", {"topic": "t", "group": "g", **body})
            assert ack.status == 204, ack
        assert again.call("GET", "/v1/topics/t/groups/g").json()["lag"] == 0


def test_heartbeats_do_not_carry_an_attempt_past_its_time_limit(server):
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 1}})
    produce(server, "t", 1, timeout_ms=700)
    claim = {"topic": "t", "group": "g", "owner": "w", "max": 1, "lease_ms": 300, "wait_ms": 5_000}
    first = server.call("POST", "/v1/claim", claim).json()["messages"][0]
    held = [{name: first[name] for name in ("partition", "offset", "token")}]
    heartbeat = {"topic": "t", "group": "g", "owner": "w", "messages": held, "lease_ms": 300}

    def is_lost() -> bool:
        reply = server.call("POST", "/v1/extend", heartbeat).json()
        return bool(reply["refused"])

    until_now(is_lost, 10, pause_s=0.05)
    second = server.call("POST", "/v1/claim", claim | {"lease_ms": 60_000}).json()["messages"][0]
    assert (second["attempts"], second["last_error"]) == (2, "timeout")
    assert second["lease_until_ms"] - first["lease_until_ms"] < 10_000, "the lease is cut to the time limit"
    states = server.call("GET", "/v1/topics/t/groups/g").json()
    assert states["in_flight"] == 1


def test_a_slow_reader_does_not_keep_an_attempt_past_its_time_limit(server):
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 60_000}})
    produce(server, "t", 10)
    produce(server, "t", 1, timeout_ms=900)
    stream = Consumption(server, "t", "g", "slow", lease_ms=600)
    held = [stream.next() or {} for _ in range(11)]
    working = threading.Event()
    for message in held[:10]:
        working.wait(0.15)
        assert stream.settle("ack", message) == 204
    group = server.call("GET", "/v1/topics/t/groups/g").json()
    assert (group["in_flight"], group["lag"]) == (0, 1), "the last one waited for longer than its attempt may take"
    stream.close()
