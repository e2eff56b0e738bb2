"""Batch reads of a real broker by a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from driftq.client.calls.queue import item
from driftq.spark.source.columns import BASE, ENVELOPE, spark_schema
from driftq.wire.message import Envelope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from driftq.client.api import DriftQ
    from tests.support.server import Server


@pytest.fixture
def read(spark: SparkSession, server: Server):
    def make(**options: str) -> DataFrame:
        return spark.read.format("driftq").options(url=server.url, **options).load()

    return make


def fill(broker: DriftQ, topic: str, count: int, partitions: int = 1, first: int = 0) -> None:
    broker.topics.create(topic, partitions=partitions)
    for partition in range(partitions):
        with broker.producer(topic) as producer:
            for number in range(first, first + count):
                producer.send(f"{topic}-{partition}-{number}", partition=partition)


def places(rows: DataFrame) -> list[tuple[str, int, int]]:
    return sorted(
        (row.topic, row.partition, row.offset) for row in rows.select("topic", "partition", "offset").collect()
    )


def expected(topic: str, partitions: int, first: int, end: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for partition in range(partitions) for offset in range(first, end)]


def test_a_topic_is_a_table(read, broker):
    broker.topics.create("orders")
    broker.send_many("orders", [item("a", key="k", run_id="r", labels={"tier": "gold"}, task="mail"), b"\xff\x00"])

    rows = read(subscribe="orders", includeEnvelope="true")
    assert rows.schema == spark_schema((*BASE, *ENVELOPE))
    first, second = rows.orderBy("offset").collect()

    assert (bytes(first.key), bytes(first.value), first.run_id, first.task) == (b"k", b"a", "r", "mail")
    assert first.labels == {"tier": "gold"}
    assert first.priority == 0
    assert (second.key, bytes(second.value), second.labels, second.priority) == (None, b"\xff\x00", None, None)


def test_large_ranges_are_split_over_tasks_and_every_row_comes_once(read, broker):
    fill(broker, "orders", 5_000, partitions=2)

    rows = read(subscribe="orders", minPartitions="7", fetchBytes="16k")

    assert rows.rdd.getNumPartitions() == 8  # each of the two logs gets a whole number
    assert places(rows) == expected("orders", 2, 0, 5_000)


def test_where_to_begin_and_to_end_can_be_said_in_offsets_and_in_times(read, broker):
    fill(broker, "orders", 10, partitions=2)
    ends = broker.topics.offsets("orders").partitions
    assert [partition.end for partition in ends] == [10, 10]
    at = broker.topics.peek("orders", 1, offset=9, limit=1)[0].timestamp_ms + 1
    while True:  # a record that is a millisecond younger
        broker.send("orders", "late", envelope=Envelope(partition_override=0))
        if (
            broker.topics.peek("orders", 0, offset=broker.topics.offsets("orders").partitions[0].end - 1)[
                0
            ].timestamp_ms
            >= at
        ):
            break

    some = read(
        subscribe="orders", startingOffsets='{"orders":{"0":8,"1":-2}}', endingOffsets='{"orders":{"0":10,"1":3}}'
    )
    assert places(some) == [("orders", 0, 8), ("orders", 0, 9), *expected("orders", 2, 0, 3)[3:]]
    early = places(read(subscribe="orders", endingTimestamp=str(at)))
    late = places(read(subscribe="orders", startingTimestamp=str(at)))
    assert early[:10] == expected("orders", 1, 0, 10)
    assert late
    assert sorted(early + late) == places(read(subscribe="orders"))


def test_many_topics_by_name_by_pattern_and_by_partition(read, broker):
    fill(broker, "orders.eu", 3)
    fill(broker, "orders.us", 2, partitions=2)
    broker.topics.create("orders.empty")
    broker.topics.create("other")
    europe, america = expected("orders.eu", 1, 0, 3), expected("orders.us", 2, 0, 2)

    assert places(read(subscribe="orders.us, orders.eu")) == europe + america
    assert places(read(subscribePattern=r"orders\..*")) == europe + america
    assert places(read(assign='{"orders.us":[1]}')) == america[2:]
    assert places(read(subscribe="orders.empty")) == []


def test_streams_are_tables_too(read, broker):
    broker.stream("runs/1", "application/json").create(data=[{"n": 1}, {"n": 2}])
    broker.stream("runs/2", "text/plain").create(data=["text"])

    rows = read(stream="runs/*").orderBy("topic", "offset").collect()

    records = [(row.topic, row.offset, bytes(row.value)) for row in rows]
    assert records == [("runs/1", 0, b'{"n":1}'), ("runs/1", 1, b'{"n":2}'), ("runs/2", 0, b"text")]


def test_a_query_that_names_its_columns_reads_only_those(spark, server, broker):
    fill(broker, "orders", 3)
    reader = spark.read.format("driftq").options(url=server.url, subscribe="orders")

    rows = reader.schema("value binary, offset long").load()

    assert [(bytes(row.value), row.offset) for row in rows.orderBy("offset").collect()][2] == (b"orders-0-2", 2)


def test_filters_narrow_what_is_read(spark, read, broker):
    fill(broker, "orders", 20, partitions=2)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = read(subscribe="orders", pushFilters="true").where("partition = 1 and offset >= 5 and offset < 8")
        assert rows.rdd.getNumPartitions() == 1
        assert places(rows) == [("orders", 1, 5), ("orders", 1, 6), ("orders", 1, 7)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_queue_state_is_beside_each_message(read, broker):
    broker.topics.create("work")
    broker.send_many("work", [f"{n}" for n in range(6)])
    claimed = broker.claim("work", "g", max=4)
    claimed[0].ack()
    claimed[2].ack()
    claimed[1].nack("boom", delay_ms=600_000)

    rows = read(subscribe="work", queueState="g").orderBy("offset").collect()

    states = [(row.queue_state, row.attempts, row.last_error) for row in rows]
    assert states == [
        ("settled", None, None),
        ("retrying", 1, "boom"),
        ("settled", None, None),
        ("leased", 1, None),
        ("waiting", 0, None),
        ("waiting", 0, None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
        ({"subscribe": "orders", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "orders", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({"subscribe": "orders", "startingOffsets": '{"orders":{"0":99}}'}, "orders/0 ends at 3, before 99"),
        ({"subscribe": "orders", "queueState": "no-such-group"}, "no-such-group"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(read, broker, options, message):
    fill(broker, "orders", 3)
    with pytest.raises(PySparkException) as caught:
        read(**options).collect()
    assert message in str(caught.value)


def test_a_million_rows_come_once(read, server, broker):
    from driftq.client.calls.queue import send_packed
    from driftq.spark.source.fetch import transport_of
    from driftq.spark.source.options import BrokerOptions
    from driftq.wire.records import pack_columns

    broker.topics.create("million", partitions=2)
    for number in range(20):
        batch = pack_columns([b"%07d" % value for value in range(number * 50_000, number * 50_000 + 50_000)])
        transport_of(BrokerOptions(server.url)).execute(send_packed("million", number % 2, batch, has_producer=False))

    rows = read(subscribe="million", minPartitions="4", fetchBytes="1m")
    numbers = rows.selectExpr("cast(cast(value as string) as long) as n")
    totals = numbers.selectExpr("count(*)", "sum(n)", "sum(n * n)").first()

    every = range(1_000_000)
    assert tuple(totals) == (1_000_000, sum(every), sum(n * n for n in every))
