"""The producer against a real broker that is killed, slow, full or gone: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from functools import partial

import pytest

import driftq
from driftq.client.transport.sansio import RetryOptions
from driftq.wire.records import read_header, split, unpack
from tests.support.server import Server, running
from tests.support.wait import until_now

KILLS = 10


def stored(server: Server, topic: str, partitions: int) -> list[list[bytes]]:
    """Every value of each partition, in order."""
    by_partition = []
    for partition in range(partitions):
        values: list[bytes] = []
        while True:
            path = f"/v1/topics/{topic}/partitions/{partition}/records?offset={len(values)}"
            reply = server.call("GET", path)
            assert reply.status == 200, reply
            for batch in split(reply.body):
                first = len(values) - read_header(batch).first_offset
                values += [record.value for record in unpack(batch)][first:]
            if len(values) == int(reply.headers["driftq-end-offset"]):
                break
        by_partition.append(values)
    return by_partition


def more_than(producer, count: int) -> bool:
    return producer.written_count > count


def test_a_broker_killed_ten_times_under_a_producer_gets_every_message_once_and_in_order(tmp_path):
    partitions = 3
    server = Server(str(tmp_path))
    port = server.port
    broker = driftq.connect(f"http://127.0.0.1:{port}")
    broker.topics.create("t", partitions=partitions)
    orders = broker.producer("t", linger_ms=1, batch_bytes=4_000, buffer_bytes=500_000, request_timeout_ms=3_000)
    sent: list[list[bytes]] = [[] for _ in range(partitions)]
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            partition = number % partitions
            value = b"%d:%d" % (partition, number)
            orders.send(value, partition=partition)
            sent[partition].append(value)
            number += 1
            if number % 500 == 0:
                stop.wait(0.002)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for _ in range(KILLS):
            goal = orders.written_count + 2_000
            until_now(partial(more_than, orders, goal), 60)
            server.kill()
            server = Server(str(tmp_path), port=port)
    finally:
        stop.set()
        thread.join()
    orders.close()
    assert orders.failed_count == 0
    assert stored(server, "t", partitions) == sent
    broker.close()
    server.stop()


def test_a_killed_broker_loses_no_append_of_a_stream_producer(tmp_path):
    server = Server(str(tmp_path))
    port = server.port
    broker = driftq.connect(f"http://127.0.0.1:{port}")
    stream = broker.stream("run/1", "application/json")
    stream.create()
    tokens = stream.producer(linger_ms=0, batch_bytes=200, request_timeout_ms=3_000)
    number = 0
    for _ in range(3):
        goal = number + 400
        while number < goal:
            tokens.append(number)
            number += 1
        until_now(lambda: tokens.written_count > 100, 30)
        server.kill()
        server = Server(str(tmp_path), port=port)
    tokens.close()
    assert stream.read_all().json() == list(range(number))
    broker.close()
    server.stop()


def test_a_full_partition_slows_a_producer_down_and_loses_nothing():
    with (
        running(None, "limits.partition_messages=500") as server,
        driftq.connect(f"http://127.0.0.1:{server.port}") as broker,
    ):
        broker.topics.create("t")
        broker.claim("t", "g")  # now there is a group that is behind
        with broker.producer("t", linger_ms=0, batch_bytes=10_000) as orders:
            receipts = [orders.send(b"%d" % number) for number in range(2_000)]
            seen: list[int] = []
            while len(seen) < 2_000:
                messages = broker.claim("t", "g", max=500, wait_ms=5_000)
                seen += [int(message.value) for message in messages]
                broker.ack(messages)
        assert seen == list(range(2_000))
        assert [receipt.offset for receipt in receipts] == list(range(2_000))


def test_one_message_that_never_fits_fails_alone_and_flush_raises():
    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t")
        orders = broker.producer("t", batch_bytes=1_000)
        before = [orders.send(f"before {number}") for number in range(20)]
        orders.flush()
        huge = orders.send(b"x" * 2_000_000)
        after = [orders.send(f"after {number}") for number in range(200)]
        with pytest.raises(driftq.errors.NotWritten) as caught:
            orders.flush()
        assert caught.value.count == 1
        assert isinstance(caught.value.failed[0], driftq.errors.TooLarge)
        with pytest.raises(driftq.errors.TooLarge):
            huge.result()
        assert [receipt.result().offset for receipt in before + after] == list(range(220))
        orders.flush()  # reported once
        orders.close()


def test_a_new_session_of_a_named_producer_fences_the_old_one():
    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t")
        first = broker.producer("t", "importer")
        first.send("a").result(10)
        second = broker.producer("t", "importer")
        second.send("b").result(10)
        with pytest.raises(driftq.errors.StaleEpoch):
            first.send("c").result(10)
        second.send("d").result(10)
        second.close()
        with pytest.raises(driftq.errors.NotWritten):
            first.close()
        assert stored(server, "t", 1) == [[b"a", b"b", b"d"]]


def test_a_producer_keeps_the_brokers_partitions_and_keys():
    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t", partitions=7)
        with broker.producer("t", compress=True) as orders:
            mine = {f"key-{number}": orders.send("x" * 100, f"key-{number}") for number in range(50)}
        for key, receipt in mine.items():
            assert broker.send("t", "y", key=key).partition == receipt.partition
        (message, *_) = broker.claim("t", "g", max=1)
        assert message.key in mine


def test_a_message_of_a_producer_can_be_a_job_with_an_envelope():
    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t")
        with broker.producer("t") as orders:
            orders.send({"n": 1}, task="a.v1", priority=3)
            orders.send({"n": 2}, task="b.v1")
            with pytest.raises(driftq.errors.InvalidCall):
                orders.send("x", colour="red")
        (message,) = broker.claim("t", "g", max=10, task="b.v1")
        assert (message.json(), message.task) == ({"n": 2}, "b.v1")


def test_a_full_buffer_blocks_or_raises_and_a_closed_producer_raises():
    server = Server(None)
    broker = driftq.connect(f"http://127.0.0.1:{server.port}")
    broker.topics.create("t")
    orders = broker.producer("t", buffer_bytes=5_000, when_full="raise", delivery_timeout_ms=500)
    server.kill()
    for _ in range(8):
        orders.send(b"x" * 500)
    with pytest.raises(driftq.errors.BufferFull):
        orders.send(b"x" * 500)
    with pytest.raises(driftq.errors.NotWritten):
        orders.close()
    with pytest.raises(driftq.errors.Closed):
        orders.send("late")
    broker.close()


def test_a_close_that_times_out_names_the_uncertain_messages(tmp_path):
    with running(str(tmp_path)) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t")
        orders = broker.producer("t", linger_ms=0)
        orders.send("stored").result()
        server.process.send_signal(signal.SIGSTOP)
        try:
            sent = orders.send("under way")
            until_now(lambda: orders.in_flight_count == 1, 30)
            waiting = orders.send("x" * 10, partition=0)
            with pytest.raises(driftq.errors.NotWritten) as caught:
                orders.close(timeout_s=0.2)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert isinstance(sent.error, driftq.errors.OutcomeUnknown)
        assert waiting.done
        assert caught.value.count == 2
        assert (orders.pending_count, orders.written_count, orders.failed_count) == (0, 1, 2)


def test_a_message_expires_on_time_during_a_long_reconnect_backoff():
    server = Server(None)
    broker = driftq.connect(f"http://127.0.0.1:{server.port}")
    broker.topics.create("t")
    orders = broker.producer("t", delivery_timeout_ms=100, linger_ms=0)
    server.kill()
    sender = orders._sender
    assert sender is not None
    sender._connect_at_s = time.monotonic() + 3_600
    assert orders.send("x").batch.wait(30)
    assert orders.failed_count == 1
    with pytest.raises(driftq.errors.NotWritten):
        orders.close()
    broker.close()


def test_callbacks_and_receipts_have_the_offset_of_each_message():
    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t")
        offsets: list[int] = []
        acked: list[int] = []
        with broker.producer("t", on_ack=lambda batch: acked.append(batch.count)) as orders:
            for number in range(10):
                orders.send(str(number), callback=lambda receipt: offsets.append(receipt.offset))
        assert offsets == list(range(10))
        assert sum(acked) == 10


def test_the_async_producer_has_the_same_methods():
    async def produce(port: int) -> None:
        async with driftq.connect_async(f"http://127.0.0.1:{port}") as broker:
            await broker.topics.create("t", partitions=2)
            async with broker.producer("t", buffer_bytes=100_000) as orders:
                receipts = [await orders.send(f"{number}" * 100, f"k{number}") for number in range(3_000)]
                await orders.flush()
                assert orders.pending_count == 0
                assert orders.written_count == 3_000
                assert all(receipt.done for receipt in receipts)
                last = await orders.send("last")
                assert (await last).offset >= 0
            described = await broker.topics.describe("t")
            assert sum(part.messages for part in described.partitions) == 3_001

    with running(None) as server:
        asyncio.run(produce(server.port))


def test_an_unreachable_broker_is_reported_soon_with_a_remedy():
    broker = driftq.connect("http://127.0.0.1:9", retry=RetryOptions(first_contact_ms=200))
    with pytest.raises(driftq.errors.NotConnected, match="driftq serve"):
        broker.topics.list()


def test_send_many_waits_for_room_in_the_buffer():
    values = [b"%d" % number for number in range(5_000)]

    async def produce(port: int) -> None:
        async with driftq.connect_async(f"http://127.0.0.1:{port}") as broker, broker.producer("t") as orders:
            receipts = await orders.send_many(values, partition=1)
            assert len(await receipts) == 5_000

    with running(None) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("t", partitions=2)
        with broker.producer("t", buffer_bytes=50_000, batch_bytes=10_000) as orders:
            receipts = orders.send_many(values, partition=0)
            assert [receipt.offset for receipt in receipts.result(60)] == list(range(5_000))
            keyed = orders.send_many(["x", {"y": 1}], "k").result(60)
            assert len({receipt.partition for receipt in keyed}) == 1
        asyncio.run(produce(server.port))
        by_partition = stored(server, "t", 2)
        assert [value for value in by_partition[0] if value.isdigit()] == values
        assert [value for value in by_partition[1] if value.isdigit()] == values
        assert sorted(value for part in by_partition for value in part if not value.isdigit()) == [b"x", b'{"y":1}']
