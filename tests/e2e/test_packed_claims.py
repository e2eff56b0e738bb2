"""Claims in packed runs and claims that ack, from a real server through the real client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import driftq
from driftq.client.claim_result import ACCEPTED, read_claim
from driftq.client.claims import RENEW_S
from driftq.client.transport.http import HttpReply
from driftq.wire.claims import ClaimReply, Delivered
from driftq.wire.message import RetryPolicy
from tests.support.server import Server, running
from tests.support.wait import until_now


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(str(tmp_path / "data")) as running_server:
        yield running_server


@pytest.fixture
def broker(server: Server) -> Iterator[driftq.DriftQ]:
    with driftq.connect(f"http://127.0.0.1:{server.port}") as client:
        client.topics.create("t", partitions=2)
        yield client


def claim(server: Server, *, packed: bool = False, **fields: object) -> Any:
    body = {"topic": "t", "group": "g", "owner": "w", **fields}
    reply = server.call("POST", "/v1/claim", body, headers=dict(ACCEPTED) if packed else {})
    assert reply.status == 200, reply
    return reply


def delivered(reply: Any) -> list[Delivered]:
    result = read_claim(HttpReply(reply.status, {"content-type": reply.headers["content-type"]}, reply.body))
    assert result.is_packed
    return [run.delivered(index) for run in result.runs for index in range(run.count)]


def test_a_packed_claim_is_the_claim_in_json(server: Server, broker: driftq.DriftQ) -> None:
    broker.send("t", b"\xff\x00 not text", key="k")
    broker.send("t", {"job": 1}, task="email", priority=3, labels={"a": "b"}, retry=RetryPolicy(max_attempts=9))
    with broker.producer("t") as producer:
        for number in range(300):
            producer.send(f"plain {number}", f"key {number % 7}")
    failed = claim(server, group="other", max=7).body
    for message in json.loads(failed)["messages"]:
        held = {key: message[key] for key in ("partition", "offset", "token")}
        body = {"topic": "t", "group": "other", "messages": [held], "reason": "boom", "delay_ms": 0}
        assert server.call("POST", "/v1/nack/batch", body).status == 200
    for group, count in (("a", 1), ("b", 33), ("c", 400), ("other", 400)):
        pages: list[list[Delivered]] = [[], []]
        for packed, page in enumerate(pages):
            group_name = group if group == "other" else f"{group}{packed}"
            while True:
                reply = claim(server, packed=bool(packed), group=group_name, max=count, lease_ms=60_000)
                messages = delivered(reply) if packed else driftq_json(reply.body).messages
                if not messages:
                    break
                page += messages
                if group == "other":
                    held = [{"partition": m.partition, "offset": m.offset, "token": m.token} for m in messages]
                    release = {"topic": "t", "group": group, "messages": held}
                    assert server.call("POST", "/v1/release", release).status == 200
                    break
        assert [same(message) for message in pages[0]] == [same(message) for message in pages[1]]
        assert len(pages[0]) == 302
        assert len({message.token for message in pages[1]}) == (1 if count == 400 else -(-302 // count))


def driftq_json(body: bytes) -> ClaimReply:
    return msgspec.json.decode(body, type=ClaimReply)


def same(message: Delivered) -> tuple[object, ...]:
    """What does not depend on the delivery."""
    return (
        message.partition, message.offset, message.last_error, message.timestamp_ms, message.key, message.value,
        message.value_base64, message.envelope, message.routing, message.job, message.dlq, message.error,
    )  # fmt: skip


@pytest.mark.parametrize("size", [10, 100, 20_000])
def test_a_large_batch_is_claimed_in_parts(broker: driftq.DriftQ, size: int) -> None:
    values = [f"{number:04}".encode() * (size // 4) for number in range(500)]
    broker.topics.create("one")
    with broker.producer("one") as producer:
        producer.send_many(values)
    messages = [message for batch in broker.claims("one", "g", max=70, drain=True) for message in batch]
    assert [message.value for message in messages] == values
    assert {message.attempts for message in messages} == {1}


def test_a_claim_acks_what_is_done_and_reports_what_it_refuses(server: Server, broker: driftq.DriftQ) -> None:
    broker.topics.create("one")
    broker.send_many("one", [f"v{number}" for number in range(6)])
    first = claim(server, topic="one", max=2).json()
    done = [{"partition": 0, "offset": 0, "end": 2, "token": first["token"]}]
    second = claim(server, topic="one", max=2, acks=done).json()
    assert [message["offset"] for message in second["messages"]] == [2, 3]
    assert "refused" not in second
    stale = [
        {"partition": 0, "offset": 2, "token": first["token"]},
        {"partition": 0, "offset": 3, "token": second["token"]},
    ]
    third = claim(server, topic="one", max=1, acks=stale).json()
    assert [message["offset"] for message in third["messages"]] == [4]
    assert [(item["offset"], item["error"]) for item in third["refused"]] == [(2, "FAILED_PRECONDITION")]
    (partition,) = broker.groups.describe("one", "g").partitions
    assert (partition.floor, partition.in_flight) == (2, 2)
    bad = server.call("POST", "/v1/claim", {"topic": "one", "group": "g", "owner": "w", "acks": [{"partition": 0}]})
    assert bad.status == 400
    many = [{"partition": 0, "offset": 0, "end": 10_001}]
    bad = server.call("POST", "/v1/claim", {"topic": "one", "group": "g", "owner": "w", "acks": many})
    assert (bad.status, "10000 messages" in bad.json()["message"]) == (400, True)


def test_a_claim_with_acks_does_not_wait(server: Server, broker: driftq.DriftQ) -> None:
    broker.topics.create("one")
    broker.send("one", "a")
    token = claim(server, topic="one").json()["token"]
    reply = claim(server, topic="one", wait_ms=60_000, acks=[{"partition": 0, "offset": 0, "token": token}])
    assert reply.json()["messages"] == []


def test_batches_are_acked_when_the_next_one_is_asked_for(broker: driftq.DriftQ) -> None:
    broker.send_many("t", [f"v{number}" for number in range(250)])
    sizes, values = [], []
    for batch in broker.claims("t", "g", max=100, drain=True):
        assert not batch[0].settled
        if not sizes:
            batch[7].nack("boom", delay_ms=0)
        sizes.append(len(batch))
        values += [message.text for message in batch]
        last = batch
    assert sizes[:2] == [100, 100]
    assert sorted(values) == sorted([*(f"v{number}" for number in range(250)), values[7]]), "one was delivered again"
    assert all(message.settled for message in last)
    assert sum(partition.in_flight for partition in broker.groups.describe("t", "g").partitions) == 0
    assert broker.groups.describe("t", "g").lag == 0


def test_a_batch_that_is_left_early_is_not_acked(broker: driftq.DriftQ) -> None:
    broker.send_many("t", ["a", "b", "c"])
    for batch in broker.claims("t", "g", max=2):
        left = batch
        break
    assert broker.groups.describe("t", "g").lag == 3
    assert broker.ack(left).refused == []
    assert broker.groups.describe("t", "g").lag == 1


def test_async_batches_are_acked_like_blocking_ones(broker: driftq.DriftQ) -> None:
    broker.send_many("t", [f"v{number}" for number in range(250)])
    values: list[bytes] = []

    async def consume() -> None:
        async with broker.asynchronous() as client:
            async for batch in client.claims("t", "g", max=100, drain=True):
                values.extend(message.value for message in batch)

    asyncio.run(consume())
    assert sorted(values) == sorted(f"v{number}".encode() for number in range(250))
    assert broker.groups.describe("t", "g").lag == 0


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_that_are_claimed_ahead_come_in_order_and_are_acked_once(broker: driftq.DriftQ, ahead: int) -> None:
    broker.topics.create("one")
    broker.send_many("one", [str(number) for number in range(730)])
    offsets: list[int] = []
    held: list[int] = []
    for batch in broker.claims("one", "g", max=50, drain=True, ahead=ahead):
        if offsets == list(range(300)):
            batch[7].nack("boom", delay_ms=0)
        offsets += [message.offset for message in batch]
        held.append(broker.groups.describe("one", "g").partitions[0].in_flight)
        last = batch
    again = offsets.index(307, 308)
    assert offsets[:again] + offsets[again + 1 :] == list(range(730)), "in order, but for the one that failed"
    assert max(held) == 50 * (ahead + 1), "so many batches are held, and no more"
    assert all(message.settled for message in last)
    assert broker.groups.describe("one", "g").lag == 0


def test_batches_that_were_claimed_ahead_are_released_when_the_caller_leaves(broker: driftq.DriftQ) -> None:
    broker.topics.create("one")
    broker.send_many("one", [str(number) for number in range(100)])
    for number, batch in enumerate(broker.claims("one", "g", max=10, ahead=3)):
        if number:
            left = batch
            break
    group = broker.groups.describe("one", "g")
    assert (group.lag, group.partitions[0].in_flight) == (90, 10)
    assert [message.offset for message in left] == list(range(10, 20))
    assert broker.ack(left).refused == []
    messages = broker.claim("one", "g", max=100)
    assert sorted(message.offset for message in messages) == list(range(20, 100))
    assert {message.attempts for message in messages} == {1}, "a released message has lost no attempt"


def wait_for_renewal() -> None:
    """So long that the leases of waiting batches are extended."""
    due_s = time.monotonic() + RENEW_S
    until_now(lambda: time.monotonic() > due_s, 30)


def test_a_batch_that_waited_for_a_while_is_extended_before_it_is_handed_out(
    server: Server, broker: driftq.DriftQ
) -> None:
    broker.topics.create("one")
    broker.send_many("one", [str(number) for number in range(30)])
    batches = broker.claims("one", "g", max=10, drain=True, ahead=2, lease_ms=60_000)
    next(batches)
    wait_for_renewal()
    second = next(batches)
    pending = server.call("GET", "/v1/topics/one/groups/g/states?partition=0").json()["pending"]
    until = dict(zip(pending["offset"], pending["lease_until"], strict=True))[second[0].offset]
    assert 1_000 * datetime.fromisoformat(until).timestamp() - second[0].lease_until_ms > 900
    batches.close()


def test_messages_that_were_lost_while_they_waited_are_not_handed_out(broker: driftq.DriftQ) -> None:
    broker.topics.create("one")
    broker.send_many("one", [str(number) for number in range(40)])
    seen: list[int] = []
    for batch in broker.claims("one", "g", max=10, drain=True, ahead=2):
        seen += [message.offset for message in batch]
        if len(seen) == 10:
            broker.groups.seek("one", "g", "latest")
            broker.send("one", "40")
            wait_for_renewal()
    assert seen == [*range(10), 40]


def test_async_batches_are_claimed_ahead_in_order(broker: driftq.DriftQ) -> None:
    broker.topics.create("one")
    broker.send_many("one", [str(number) for number in range(430)])
    offsets: list[int] = []

    async def consume() -> None:
        async with broker.asynchronous() as client:
            async for batch in client.claims("one", "g", max=50, drain=True, ahead=2):
                offsets.extend(message.offset for message in batch)
            broker.send_many("one", [str(number) for number in range(40)])
            async with contextlib.aclosing(client.claims("one", "g", max=10, ahead=2)) as batches:
                async for batch in batches:
                    await client.ack(batch)
                    break

    asyncio.run(consume())
    assert offsets == list(range(430))
    group = broker.groups.describe("one", "g")
    assert (group.lag, group.partitions[0].in_flight) == (30, 0)


def test_a_wrong_number_of_batches_ahead_is_refused(broker: driftq.DriftQ) -> None:
    for ahead in (-1, 17):
        with pytest.raises(ValueError, match="ahead must be 0 to 16"):
            broker.claims("t", "g", ahead=ahead)
