"""Messages of a producer with keys of their own: stored once for each key, whichever client sends them."""

from __future__ import annotations

import asyncio

import pytest

import driftq
from driftq.client.api import DriftQ
from tests.support.server import Server


@pytest.fixture
def topic(broker, request):
    name = request.node.name[:200].replace("[", ".").replace("]", "")
    broker.topics.create(name, 2)
    return name


def values(broker: DriftQ, topic: str) -> list[str]:
    """Everything in the topic, partition by partition."""
    return [message.value for partition in (0, 1) for message in broker.topics.fetch(topic, partition, 0).messages]


def test_a_key_is_shared_with_other_senders(broker, topic):
    first = broker.send(topic, "one", idempotency_key="k1")
    with broker.producer(topic) as orders:
        again = orders.send("one", idempotency_key="k1")
        fresh = orders.send("two", key="user:1", envelope=driftq.Envelope(idempotency_key="k2", run_id="r"))
        twice = orders.send("two", key="user:1", idempotency_key="k2")
        plain = orders.send("three")
    assert (again.duplicate, again.partition, again.offset) == (True, first.partition, first.offset)
    assert (fresh.duplicate, twice.duplicate, twice.offset) == (False, True, fresh.offset)
    assert plain.offset >= 0
    assert not plain.duplicate
    assert (orders.written_count, orders.failed_count, orders.pending_count) == (4, 0, 0)
    assert sorted(values(broker, topic)) == ["one", "three", "two"]
    assert broker.send(topic, "two", idempotency_key="k2").duplicate


def test_the_id_of_a_job_is_known_to_the_broker(broker, topic):
    with broker.producer(topic) as jobs:
        receipt = jobs.send({"to": "ann"}, task="email.v1", id="mail-1", delay_ms=60_000)
        jobs.send({"to": "ann"}, task="email.v1", id="mail-1", delay_ms=60_000)
    job = broker.jobs.find(topic, "mail-1")
    assert (job["state"], job["offset"], job["partition"]) == ("scheduled", receipt.offset, receipt.partition)
    assert len(values(broker, topic)) == 1


def test_keyed_messages_keep_their_order_and_their_partition(broker, topic):
    with broker.producer(topic, batch_bytes=4_000) as orders:
        for number in range(500):
            orders.send(str(number), partition=1, idempotency_key=f"o{number}")
    assert values(broker, topic) == [str(number) for number in range(500)]
    assert not broker.topics.fetch(topic, 0, 0).messages


def test_a_message_that_is_refused_fails_alone(broker, topic):
    orders = broker.producer(topic, linger_ms=200)
    good = orders.send("good", idempotency_key="a")
    late = orders.send("late", idempotency_key="b", deadline="2001-01-01T00:00:00Z")
    last = orders.send("last", idempotency_key="c")
    with pytest.raises(driftq.errors.NotWritten) as raised:
        orders.close()
    assert (raised.value.count, orders.written_count, orders.failed_count) == (1, 2, 1)
    assert good.result().offset >= 0
    assert last.result().offset >= 0
    with pytest.raises(driftq.errors.InvalidCall, match="deadline"):
        late.result()


def test_the_async_producer_takes_keys_too(broker, topic):
    async def steps() -> None:
        async with broker.asynchronous() as client, client.producer(topic) as orders:
            first = await orders.send("x", idempotency_key="k")
            again = await orders.send("x", idempotency_key="k")
            await orders.send("y")
            await orders.flush()
            assert (first.duplicate, again.duplicate) == (False, True)
            assert orders.written_count == 3
        assert sorted(values(broker, topic)) == ["x", "y"]

    asyncio.run(steps())


def test_each_key_is_stored_once_through_a_kill_of_the_broker(tmp_path):
    server = Server(str(tmp_path))
    with driftq.connect(server.url) as client:
        client.topics.create("t", 2)
        with client.producer("t", batch_bytes=3_000, linger_ms=1) as orders:
            for number in range(2_000):
                orders.send(str(number), partition=0, idempotency_key=f"o{number}")
                if number == 700:
                    server.kill()
                    server = Server(str(tmp_path), port=server.port)
        # A second process sends all of them again.
        with client.producer("t") as again:
            receipts = [again.send(str(number), partition=0, idempotency_key=f"o{number}") for number in range(2_000)]
        assert all(receipt.duplicate for receipt in receipts)
        assert values(client, "t") == [str(number) for number in range(2_000)]
    server.stop()
