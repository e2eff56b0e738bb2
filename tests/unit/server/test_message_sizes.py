"""What a message may contain, and what counts towards its size: key, value and envelope, in every form of producing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from driftq.core.model.limits import BrokerLimits
from driftq.server.packed_batch import read_packed
from driftq.wire.errors import Code
from driftq.wire.message import Envelope, Head, encode_head
from driftq.wire.records import Record, pack
from tests.support.handler_fixture import HandlerFixture, HandlerReply, handler_fixture

LONG = "x" * 257
ENVELOPES: list[tuple[str, dict[str, Any]]] = [
    *((name, {name: LONG}) for name in ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key")),
    ("target_topic", {"target_topic": LONG}),
    ("traceparent", {"traceparent": LONG}),
    ("deadline", {"deadline": "2030-01-01T00:00:00." + LONG}),
    ("labels", {"labels": {str(number): "" for number in range(65)}}),
    ("labels", {"labels": {"x" * 1_025: ""}}),
    ("labels", {"labels": {"a": "é" * 513}}),
    ("as JSON", {"labels": {str(number): "\x01" * 1_024 for number in range(64)}}),
]


def calls(*requests: tuple[str, str, object], limits: BrokerLimits | None = None) -> list[HandlerReply]:
    async def main() -> list[HandlerReply]:
        async with handler_fixture(limits=limits) as at:
            await at.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
            return [await at.call(*request) for request in requests]

    return asyncio.run(main())


@pytest.mark.parametrize(("field", "envelope"), ENVELOPES)
def test_a_long_field_of_an_envelope_is_refused_and_named(field, envelope):
    message = {"value": "v", "envelope": envelope}
    head = json.dumps({"envelope": envelope}).encode()
    single, batch, packed = calls(
        ("POST", "/v1/produce", {"topic": "t", **message}),
        ("POST", "/v1/produce/batch", {"topic": "t", "messages": [message, {"value": "good"}]}),
        ("POST", "/v1/produce/packed?topic=t", pack([Record(b"v", b"", head)])),
    )
    assert (single.status, single.body["error"]) == (400, "INVALID_ARGUMENT")
    assert [result.get("status") for result in batch.body["results"]] == [400, 200]
    assert packed.status == 400
    for text in (single.body["message"], batch.body["results"][0]["message"]):
        assert field in text
        assert len(text) < 500, text
    assert field in packed.body["message"] or "as JSON" in packed.body["message"]


def test_an_envelope_at_the_limits_is_accepted():
    envelope = {"tenant_id": "x" * 256, "run_id": "é" * 128, "labels": {f"{number:01024}": "v" for number in range(50)}}
    message = {"value": "v", "envelope": envelope}
    head = json.dumps({"envelope": envelope}).encode()
    replies = calls(
        ("POST", "/v1/produce", {"topic": "t", **message}),
        ("POST", "/v1/produce/packed?topic=t", pack([Record(b"v", b"", head)])),
    )
    assert [reply.status for reply in replies] == [200, 200]


def test_a_long_key_of_a_packed_batch_is_refused():
    good, long = (
        read_packed(pack([Record(b"v", b"k" * size), Record(b"v")]), 1 << 20, 1 << 20) for size in (1024, 1025)
    )
    assert good.header.count == 2
    assert long.code is Code.INVALID_ARGUMENT
    assert "1025 bytes" in long.message


def test_a_packed_batch_holds_at_most_10000_records_that_are_not_plain():
    head = b'{"job":{"task":"a"}}'
    refused = read_packed(pack([Record(b"v", b"", head)] * 10_001), 1 << 20, 16 << 20)
    assert refused.code is Code.TOO_LARGE
    assert "10000 at a time" in refused.message
    assert len(read_packed(pack([Record(b"v", b"", head)] * 10_000), 1 << 20, 16 << 20).schedules) == 10_000


@pytest.mark.parametrize("size", [99, 100])
def test_key_value_and_envelope_count_towards_the_largest_message(size):
    envelope = {"run_id": "r" * 20}
    head_bytes = len(encode_head(Head(envelope=Envelope(**envelope))))
    message = {"key": "k" * 10, "value": "v" * (size - head_bytes - 9), "envelope": envelope}
    single, batch = calls(
        ("POST", "/v1/produce", {"topic": "t", **message}),
        ("POST", "/v1/produce/batch", {"topic": "t", "messages": [message]}),
        limits=BrokerLimits(message_bytes=100),
    )
    expected = 200 if size < 100 else 413
    assert [single.status, batch.body["results"][0]["status"]] == [expected, expected]


def test_envelopes_count_towards_the_backlog_and_the_size_of_a_topic():
    envelope = {"run_id": "r" * 200}

    async def main(at: HandlerFixture) -> None:
        await at.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "backlog_bytes_max": 1_000})
        await at.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o"})
        statuses = []
        for _ in range(5):
            message = {"topic": "t", "value": "v", "envelope": envelope}
            statuses.append((await at.call("POST", "/v1/produce", message)).status)
        assert statuses == [200, 200, 200, 200, 429]
        partition = (await at.call("GET", "/v1/topics/t")).body["partitions"][0]
        head_bytes = len(encode_head(Head(envelope=Envelope(**envelope))))
        assert partition["payload_bytes"] == 4 * (1 + head_bytes)

    async def run() -> None:
        async with handler_fixture() as at:
            await main(at)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/claim", {"topic": "t", "group": "g", "owner": "o", "task": "x" * 250}),
        ("/v1/claim", {"topic": "t", "group": "g", "owner": "o", "label": "x" * 250}),
        ("/v1/claim", {"topic": "t", "group": "g", "owner": "x" * 257}),
        ("/v1/idempotency/begin", {"topic": "t", "group": "g", "key": "k", "owner": "o", "tenant_id": "x" * 257}),
    ],
)
def test_long_names_of_consumers_are_refused(path, body):
    (reply,) = calls(("POST", path, body))
    assert reply.status == 400
