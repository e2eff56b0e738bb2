"""The sink against a real broker: where rows go, what they carry, and that a batch is written once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driftq.client.api import DriftQ
from driftq.wire.message import Envelope, decode_head
from driftq.wire.partitions import partition_of
from tests.spark.topic_reader import logs_of, topic_records
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def written(frame: DataFrame, server: Server, **options: object) -> None:
    writer = frame.write.format("driftq").mode("append").option("url", server.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def values_of(server: Server, topic: str) -> list[str]:
    return [record.value.decode() for record in topic_records(server.url, topic)]


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_rows_go_where_their_key_says_and_keep_their_order(
    spark: SparkSession, server: Server, broker: DriftQ, mode: str
) -> None:
    broker.topics.create("orders", partitions=4)
    frame = spark.range(0, 1_000, 1, 2).selectExpr("concat('user:', id % 17) key", "cast(id as string) value")

    written(frame, server, topic="orders", mode=mode, chunkRows=100)

    seen: dict[tuple[bytes, bool], int] = {}
    logs = logs_of(server.url, "orders")
    for partition, records in logs.items():
        for record in records:
            number = int(record.value)
            assert partition_of(record.key, 4) == partition
            assert record.key == f"user:{number % 17}".encode()
            task = (record.key, number < 500)  # the two tasks have a half each
            assert seen.get(task, -1) < number, "a key's rows of one task changed their order"
            seen[task] = number
    assert Counter(int(r.value) for records in logs.values() for r in records) == Counter(range(1_000))


def test_rows_name_their_topic_their_partition_and_their_envelope(
    spark: SparkSession, server: Server, broker: DriftQ
) -> None:
    broker.topics.create("a", partitions=1)
    broker.topics.create("b", partitions=3)
    frame = spark.createDataFrame(
        [("a", None, "x", "r1", {"k": "v"}), ("b", 2, "y", None, None), ("b", 0, "z", "r2", None)],
        "topic string, partition int, value string, run_id string, labels map<string,string>",
    )

    written(frame.coalesce(1), server)

    a, b = logs_of(server.url, "a"), logs_of(server.url, "b")
    assert {n: [r.value for r in records] for n, records in b.items()} == {0: [b"z"], 1: [], 2: [b"y"]}
    assert decode_head(a[0][0].head).envelope == Envelope(run_id="r1", labels={"k": "v"})
    assert b[2][0].head == b""


def test_a_task_s_heads_reach_a_consumer(spark: SparkSession, server: Server, broker: DriftQ) -> None:
    broker.topics.create("jobs")
    frame = spark.createDataFrame([("v", "send", 5)], "value string, task string, priority int")

    written(frame, server, topic="jobs", mode="direct")

    (message,) = broker.claim("jobs", "workers", max=10, task="send")
    assert message.value == b"v" or message.value == "v"


def test_a_numbered_batch_is_written_once_however_often_the_job_runs(
    spark: SparkSession, server: Server, broker: DriftQ
) -> None:
    broker.topics.create("orders", partitions=2)
    frame = spark.range(0, 50, 1, 2).selectExpr("cast(id as string) value")

    for number in (3, 3, 4):
        written(frame, server, topic="orders", writer="nightly", batchId=number)

    assert Counter(values_of(server, "orders")) == Counter({str(n): 2 for n in range(50)})


def test_of_a_failed_batch_nothing_is_seen(spark: SparkSession, server: Server, broker: DriftQ) -> None:
    broker.topics.create("orders")
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "if(id = 900, raise_error('the row is bad'), cast(id as string)) value"
    )

    with pytest.raises(Exception, match="the row is bad"):
        written(frame, server, topic="orders", chunkRows=50)

    assert values_of(server, "orders") == []


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("select 1 value", {"topic": "orders"}, "column value is int"),
        ("select cast(null as string) value", {"topic": "orders"}, "column value, row 0 of task 0: it is null"),
        ("select 'a' value", {"topic": "orders", "mod": "direct"}, "did you mean mode"),
    ],
)
def test_rows_that_cannot_be_written_are_reported(
    spark: SparkSession, shared_server: Server, sql: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        written(spark.sql(sql), shared_server, **options)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """For tests that write nothing."""
    from tests.support.server import running

    with running(str(tmp_path_factory.mktemp("broker"))) as started:
        started.call("POST", "/v1/topics", {"name": "orders"})
        yield started


def test_overwriting_is_refused(spark: SparkSession, shared_server: Server) -> None:
    with pytest.raises(Exception, match="can only be appended to"):
        spark.sql("select 'a' value").write.format("driftq").mode("overwrite").option("topic", "orders").save()


def test_a_query_that_finds_an_older_checkpoint_is_refused(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    broker.topics.create("orders")
    rows = tmp_path / "rows"
    rows.mkdir()

    def run(checkpoint: str) -> None:
        query = (
            spark.readStream.format("text").schema("value string").load(str(rows))
            .writeStream.format("driftq").option("url", server.url).option("topic", "orders")
            .option("writer", "copy").option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.processAllAvailable()
        query.stop()

    for n in range(2):
        (rows / f"{n}.txt").write_text(f"row {n}\n")
        run("first")
    assert sorted(values_of(server, "orders")) == ["row 0", "row 1"]

    with pytest.raises(Exception, match="has published batch 1 and now publishes batch 0"):
        run("second")
    assert sorted(values_of(server, "orders")) == ["row 0", "row 1"]
