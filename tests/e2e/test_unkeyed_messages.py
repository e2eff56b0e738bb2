"""Messages without a key: over plain HTTP they go to partition 0, as the v1 specification has it; a client that asks
for any partition, as our own does, gets them spread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from itertools import pairwise

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.main import main
from driftq.wire.message import Envelope
from driftq.wire.records import Record, pack
from tests.support.server import Server
from tests.support.wait import until_now

PARTITIONS = 4


@pytest.fixture
def topic(broker, request):
    name = request.node.name.removeprefix("test_")[:200].replace("[", ".").replace("]", "")
    broker.topics.create(name, partitions=PARTITIONS)
    return name


def counts(broker, topic: str) -> list[int]:
    return [partition.end_offset for partition in broker.topics.describe(topic).partitions]


def produce(server: Server, path: str, body: object, status: int = 200):
    reply = server.call("POST", path, body)
    assert reply.status == status, reply
    return reply.json()


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_single_produce_without_a_key_goes_to_partition_0_unless_it_asks_for_any(server, broker, topic):
    for _ in range(3):
        assert produce(server, "/v1/produce", {"topic": topic, "value": "v"})["partition"] == 0
    placed = [produce(server, "/v1/produce", {"topic": topic, "value": "v", "partition": "any"}) for _ in range(8)]
    assert Counter(result["partition"] for result in placed) == dict.fromkeys(range(PARTITIONS), 2)
    placed = [produce(server, f"/v1/produce?topic={topic}&value=v&partition=any", None) for _ in range(4)]
    assert {result["partition"] for result in placed} == set(range(PARTITIONS))


def test_a_key_and_an_envelope_win_over_any(server, broker, topic):
    keyed = {"topic": topic, "value": "v", "key": "user:1"}
    (home,) = {produce(server, "/v1/produce", keyed | {"partition": word})["partition"] for word in ("any", None)}
    assert produce(server, "/v1/produce", keyed)["partition"] == home
    named = {"topic": topic, "value": "v", "partition": "any", "envelope": {"partition_override": 2}}
    assert [produce(server, "/v1/produce", named)["partition"] for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("where", ["body", "query", "message", "ndjson"])
def test_a_batch_that_asks_for_any_goes_to_one_partition_and_the_next_to_another(server, broker, topic, where):
    seen = []
    for _ in range(PARTITIONS):
        messages = [{"value": f"{number}"} for number in range(10)]
        path, body, headers = "/v1/produce/batch", {"topic": topic, "messages": messages}, {}
        if where == "body":
            body["partition"] = "any"
        elif where == "query":
            path += "?partition=any"
        elif where == "message":
            body["messages"] = [message | {"partition": "any"} for message in messages]
        else:
            path += f"?topic={topic}&partition=any"
            body, headers = b'{"value": "v"}\n' * 10, {"Content-Type": "application/x-ndjson"}
        reply = server.call("POST", path, body, headers)
        (partition,) = {result["partition"] for result in reply.json()["results"]}
        seen.append(partition)
    assert sorted(seen) == list(range(PARTITIONS))
    assert counts(broker, topic) == [10] * PARTITIONS


def test_a_repeat_under_an_idempotency_key_is_a_duplicate_wherever_it_would_go_now(server, broker, topic):
    message = {"topic": topic, "value": "v", "partition": "any", "envelope": {"idempotency_key": "once"}}
    first, *more = [produce(server, "/v1/produce", message) for _ in range(5)]
    assert all(repeat["duplicate"] and repeat["partition"] == first["partition"] for repeat in more)
    assert sum(counts(broker, topic)) == 1


def test_a_packed_batch_may_ask_for_any_but_not_with_a_producer(server, broker, topic):
    batch = pack([Record(b"a"), Record(b"b")])
    path = f"/v1/produce/packed?topic={topic}&partition=any"
    assert sorted(produce(server, path, batch)["partition"] for _ in range(PARTITIONS)) == list(range(PARTITIONS))
    refused = produce(server, path, pack([Record(b"a")], producer="p", epoch=1, seq=0), 400)
    assert "same partition" in refused["message"]
    assert sum(counts(broker, topic)) == 2 * PARTITIONS


@pytest.mark.parametrize("wrong", ["some", 1, True, ""])
def test_any_other_partition_name_is_refused(server, broker, topic, wrong):
    produce(server, "/v1/produce", {"topic": topic, "value": "v", "partition": wrong}, 400)
    produce(server, f"/v1/produce?topic={topic}&value=v&partition={wrong}", None, 400)
    assert sum(counts(broker, topic)) == 0


def test_route_explains_the_partition_of_any(server, broker, topic):
    reply = produce(server, "/v1/route", {"topic": topic, "value": "v", "partition": "any"})
    assert any("any partition" in sentence for sentence in reply["explanation"])


# --- the client and the command line ----------------------------------------------------------------------------------


def test_a_producer_spreads_batch_by_batch(broker, topic):
    with broker.producer(topic, batch_bytes=2_000) as orders:
        receipts = [orders.send(b"x" * 100) for _ in range(400)]
    stored = counts(broker, topic)
    assert sum(stored) == 400
    assert min(stored) >= 80
    changes = sum(one.partition != two.partition for one, two in pairwise(receipts))
    assert changes < 100, "a batch stays together"


def test_send_many_of_a_producer_spreads(broker, topic):
    with broker.producer(topic, batch_bytes=2_000) as orders:
        orders.send_many([b"x" * 100] * 400)
    assert min(counts(broker, topic)) >= 80


def test_the_async_producer_spreads(server, broker, topic):
    async def produce() -> None:
        async with (
            driftq.connect_async(server.url) as client,
            client.producer(topic, batch_bytes=2_000) as orders,
        ):
            for _ in range(200):
                await orders.send(b"x" * 100)
            await orders.send_many([b"x" * 100] * 200)

    asyncio.run(produce())
    assert min(counts(broker, topic)) >= 80


def test_keys_keep_their_partition_in_a_producer_that_also_spreads(broker, topic):
    home = broker.send(topic, "v", key="user:1").partition
    with broker.producer(topic, batch_bytes=500) as orders:
        for _ in range(50):
            orders.send(b"x" * 100)
            assert orders.send(b"y" * 100, key="user:1").partition == home


def test_a_batch_meets_its_partition_again_after_every_kill(tmp_path):
    server = Server(str(tmp_path))
    port = server.port
    stop = threading.Event()
    sent: list[str] = []
    with driftq.connect(server.url) as broker:
        broker.topics.create("t", partitions=PARTITIONS)
        with broker.producer("t", linger_ms=1, batch_bytes=2_000, request_timeout_ms=3_000) as orders:

            def give() -> None:
                while not stop.is_set():
                    sent.append(f"{len(sent)}")
                    orders.send(sent[-1])
                    if len(sent) % 200 == 0:
                        orders.flush()

            giving = threading.Thread(target=give)
            giving.start()
            for _ in range(3):
                goal = orders.written_count + 1_000
                until_now(lambda goal=goal: orders.written_count > goal, 60)
                server.kill()
                server = Server(str(tmp_path), port=port)
            stop.set()
            giving.join()
    with driftq.connect(server.url) as broker:
        assert min(counts(broker, "t")) > 100
        batches = [
            message.value
            for partition, end in enumerate(counts(broker, "t"))
            for offset in range(0, end, 1_000)
            for message in broker.topics.peek("t", partition, offset=offset, limit=1_000)
        ]
    server.stop()
    assert sorted(batches) == sorted(sent)


def test_single_sends_jobs_and_send_many_of_the_client_spread(broker, topic):
    assert {broker.send(topic, "v").partition for _ in range(PARTITIONS)} == set(range(PARTITIONS))
    batches = [broker.send_many(topic, ["a", "b"]).results for _ in range(PARTITIONS)]
    assert sorted(batch[0].partition for batch in batches) == list(range(PARTITIONS))
    assert all(one.partition == two.partition for one, two in batches)
    assert broker.send(topic, "v", envelope=Envelope(partition_override=3)).partition == 3


@pytest.mark.parametrize("way", [(), ("--packed",)], ids=["batches", "packed"])
def test_the_command_line_spreads_lines(server, broker, topic, way):
    text = "".join(f"{'x' * 3_000} {number}\n" for number in range(2_000))
    result = CliRunner().invoke(main, ["--url", server.url, "produce", topic, *way], input=text)
    assert result.exit_code == 0, result.output
    spread = counts(broker, topic)
    assert sum(spread) == 2_000
    # Whole batches take turns: how large they are, and so how even it is, depends on how busy the machine is.
    assert min(spread) > 0
    assert max(spread) < 1_000
