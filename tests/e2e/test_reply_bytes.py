"""Replies are limited by bytes: a claim, a look at messages, a read of a stream. The rest comes with the next call."""

from __future__ import annotations

import json

import pytest

from driftq.wire.records import Record, pack
from tests.support.measured_server import MeasuredServer, measured_server

REPLY_BYTES = 1 << 20
TURN_S = 0.025
SETTINGS = (f"limits.reply_bytes={REPLY_BYTES}", f"streams.read_bytes_max={REPLY_BYTES}")


@pytest.fixture
def server(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        yield server


def produce(server: MeasuredServer, records: list[Record], compress: bool = False) -> None:
    batch = pack(records, compress=compress)
    assert server.call("POST", "/v1/produce/packed?topic=t", batch).status == 200


def claim_all(server: MeasuredServer, count: int, bytes_max: int = REPLY_BYTES) -> tuple[list[int], int]:
    """Claim and ack until everything was delivered; returns the offsets, and how many claims it took."""
    offsets: list[int] = []
    claims = 0
    while len(offsets) < count:
        reply = server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "w", "max": 10_000})
        assert reply.status == 200
        messages = reply.json()["messages"]
        assert messages, "nothing was delivered, although messages are left"
        assert len(reply.body) <= bytes_max + 200 or len(messages) == 1
        assert all(message["attempts"] == 1 for message in messages)
        offsets += [message["offset"] for message in messages]
        claims += 1
        acks = {"topic": "t", "group": "g", "owner": "w", "messages": []}
        acks["messages"] = [{"partition": 0, "offset": m["offset"], "token": m["token"]} for m in messages]
        assert server.call("POST", "/v1/ack/batch", acks).json()["refused"] == []
    return offsets, claims


@pytest.mark.parametrize("compress", [False, True])
def test_a_claim_is_limited_by_bytes(server, compress):
    produce(server, [Record(b"x" * 100_000)] * 50, compress)
    offsets, claims = claim_all(server, 50)
    assert offsets == list(range(50))
    assert claims == 5


def test_messages_that_become_larger_as_json_are_given_back_and_count_no_attempt(server):
    produce(server, [Record(b"\x01" * 100_000)] * 20)  # six bytes each in JSON
    offsets, _ = claim_all(server, 20)
    assert sorted(offsets) == list(range(20))


def test_one_message_may_be_larger_than_a_reply(server):
    produce(server, [Record(b"\x01" * 1_000_000), Record(b"y")])
    assert claim_all(server, 2) == ([0, 1], 2)


def test_a_large_claim_does_not_hold_the_loop(tmp_path):
    with measured_server(str(tmp_path / "data"), "queue.in_flight_max=20000") as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        envelope = b'{"envelope":{"run_id":"r","labels":{"a":"1","b":"2"}}}'
        produce(server, [Record(b"x" * 400, b"k", envelope)] * 10_000)
        server.reset()
        reply = server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "w", "max": 10_000})
        assert len(reply.json()["messages"]) > 9_000
        server.assert_no_turn_above(TURN_S)


def test_a_claim_of_single_messages_of_large_batches_does_not_hold_the_loop(server):
    """The ends of all records of a batch are read for one message of it."""
    labelled = Record(b"a", b"", b'{"routing":{"label":"a"}}')
    batch = [labelled, *[Record(b"x")] * 99_999]
    for _ in range(30):
        produce(server, batch)
    server.reset()
    claim = {"topic": "t", "group": "g", "owner": "w", "max": 1_000, "label": "a"}
    assert len(server.call("POST", "/v1/claim", claim).json()["messages"]) == 30
    server.assert_no_turn_above(TURN_S)


@pytest.mark.parametrize("compress", [False, True])
def test_a_look_at_messages_is_limited_by_bytes(server, compress):
    produce(server, [Record(b"x" * 100_000)] * 50, compress)
    path = "/v1/topics/t/partitions/0/messages?limit=1000&offset="
    offset = 0
    while offset < 50:
        reply = server.call("GET", f"{path}{offset}")
        messages = reply.json()["messages"]
        assert [message["offset"] for message in messages] == list(range(offset, offset + len(messages)))
        assert messages
        assert len(reply.body) <= REPLY_BYTES + 200
        offset += len(messages)


def test_a_read_of_a_stream_is_limited_by_bytes_inside_of_an_append(server):
    json_type = {"Content-Type": "application/json"}
    server.call("PUT", "/v1/stream/s", None, json_type)
    values = [{"n": number, "text": "x" * 100_000} for number in range(50)]
    assert server.call("POST", "/v1/stream/s", values, json_type).status in (200, 204)
    read: list[int] = []
    offset = "-1"
    while len(read) < 50:
        reply = server.call("GET", f"/v1/stream/s?offset={offset}")
        assert len(reply.body) <= REPLY_BYTES + 200
        read += [value["n"] for value in json.loads(reply.body)]
        offset = reply.headers["stream-next-offset"]
    assert read == list(range(50))


def test_a_partition_read_as_a_stream_is_limited_by_bytes(server):
    produce(server, [Record(b"x" * 100_000)] * 50, compress=True)
    read: list[int] = []
    offset = "-1"
    while len(read) < 50:
        reply = server.call("GET", f"/v1/stream/__topics/t/0?offset={offset}")
        assert reply.status == 200
        assert len(reply.body) <= REPLY_BYTES + 200
        read += [value["offset"] for value in json.loads(reply.body)]
        offset = reply.headers["stream-next-offset"]
    assert read == list(range(50))
