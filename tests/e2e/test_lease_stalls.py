"""Very many leases that end together, in one batch, in one call or during a stop: no turn of the loop is long.

The sizes are a tenth of those in the benchmarks. Times are CPU times of the server's loop.
"""

from __future__ import annotations

import pytest

from driftq.wire.records import Record, pack
from tests.support.measured_server import MeasuredServer, measured_server
from tests.support.wait import until_now

COUNT = 10_000
TURN_S = 0.05
SETTINGS = ("queue.in_flight_max=1000000",)


def produce(server: MeasuredServer, count: int, value: bytes = b"v" * 100, *, compress: bool = False) -> None:
    """One packed batch."""
    assert server.call("POST", "/v1/topics", {"name": "t"}).status < 300
    batch = pack([Record(value)] * count, compress=compress)
    reply = server.call("POST", "/v1/produce/packed?topic=t&partition=0", batch)
    assert reply.status == 200, reply


def claim(server: MeasuredServer, count: int, size: int = 500) -> list[dict[str, object]]:
    """Claims of `size` until there are `count`; what each holds, as an item of a settle call."""
    held: list[dict[str, object]] = []
    for _ in range(0, count, size):
        body = {"topic": "t", "group": "g", "owner": "w", "max": size, "lease_ms": 600_000}
        reply = server.call("POST", "/v1/claim", body).json()
        offsets = [message["offset"] for message in reply["messages"]]
        assert offsets == list(range(offsets[0], offsets[0] + size))
        held.append({"partition": 0, "offset": offsets[0], "end": offsets[-1] + 1, "token": reply["token"]})
    return held


def end_together(server: MeasuredServer, messages: list[dict[str, object]]) -> None:
    """All these leases run out a tenth of a second from now."""
    reply = server.call("POST", "/v1/extend", {"topic": "t", "group": "g", "messages": messages, "lease_ms": 100})
    assert reply.json()["refused"] == []


def group(server: MeasuredServer) -> dict[str, int]:
    described: dict[str, int] = server.call("GET", "/v1/topics/t/groups/g").json()
    return described


@pytest.mark.parametrize("history", [False, True])
def test_leases_that_expire_together_do_not_stall_the_loop(tmp_path, history):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        server.call("POST", "/v1/topics", {"name": "t.history"} if history else {"name": "other"})
        assert server.call("POST", "/v1/topics", {"name": "t", "history": history}).status < 300
        produce(server, COUNT)
        messages = claim(server, COUNT)
        assert group(server)["in_flight"] == COUNT
        server.reset()
        end_together(server, messages)
        until_now(lambda: group(server)["in_flight"] == 0, 60, pause_s=0.05)
        server.assert_no_turn_above(TURN_S)
        assert group(server)["resting"] == COUNT


@pytest.mark.parametrize("call", ["nack", "release"])
def test_one_call_about_very_many_messages_does_not_stall_the_loop(tmp_path, call):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        produce(server, COUNT)
        messages = claim(server, COUNT)
        server.reset()
        path = "/v1/nack/batch" if call == "nack" else "/v1/release"
        reply = server.call("POST", path, {"topic": "t", "group": "g", "messages": messages, "delay_ms": 600_000})
        assert reply.json() == {"refused": []}
        server.assert_no_turn_above(TURN_S)
        assert group(server)["resting"] == COUNT


def test_a_rejection_of_large_messages_does_not_stall_the_loop(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        produce(server, 200, b"v" * 80_000)
        messages = claim(server, 200, 50)
        server.reset()
        reply = server.call("POST", "/v1/reject", {"topic": "t", "group": "g", "messages": messages, "reason": "no"})
        assert reply.json() == {"refused": []}
        server.assert_no_turn_above(0.008)  # 16 MB in one frame take longer
        assert server.call("GET", "/v1/topics/dlq.t").json()["partitions"][0]["end_offset"] == 200


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("call", ["reject", "nack/batch", "expiry"])
def test_single_messages_of_a_large_batch_cost_little(tmp_path, call, compress):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        produce(server, 100_000, compress=compress)
        messages = claim(server, 300, 10)
        server.reset()
        if call == "expiry":
            end_together(server, messages)
            until_now(lambda: group(server)["in_flight"] == 0, 60, pause_s=0.05)
        else:
            for held in messages:
                reply = server.call("POST", f"/v1/{call}", {"topic": "t", "group": "g", "messages": [held]})
                assert reply.json() == {"refused": []}
        total_s = server.on_loop(lambda: server.total_s)
        assert total_s < 0.3, "when each of these 300 messages is found by unpacking its batch, it takes a second"
        assert group(server)["in_flight"] == 0


def test_a_stop_does_not_wait_for_leases_to_expire(tmp_path):
    server = MeasuredServer(str(tmp_path / "data"), *SETTINGS)
    server.start()
    try:
        produce(server, 3 * COUNT)
        end_together(server, claim(server, 3 * COUNT))
        until_now(lambda: 0 < group(server)["in_flight"] < 3 * COUNT, 60)
        server.reset()
    finally:
        server.stop()
    assert server.total_s < 0.3
    assert max(server.longest_s.values()) < TURN_S
    with measured_server(str(tmp_path / "data"), *SETTINGS) as restarted:
        until_now(lambda: group(restarted)["in_flight"] == 0, 60, pause_s=0.05)
        assert group(restarted)["resting"] == 3 * COUNT
