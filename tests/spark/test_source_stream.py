"""Streaming queries of a real Spark over a real broker: restarts, batches run again, progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from driftq.spark.progress import LagListener, with_lag
from tests.support.wait import until_now

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from driftq.client.api import DriftQ
    from tests.support.server import Server


@pytest.fixture
def read(spark: SparkSession, server: Server):
    def make(**options: str) -> DataFrame:
        reader = spark.readStream.format("driftq").options(url=server.url, startingOffsets="earliest", **options)
        return reader.load()

    return make


def fill(broker: DriftQ, topic: str, count: int) -> None:
    broker.topics.create(topic)
    with broker.producer(topic) as producer:
        for _ in range(count):
            producer.send(b"v")


def tasks_of(rows: DataFrame) -> list[tuple[int, list[int]]]:
    """Which task read which offsets, in order."""
    offsets: dict[int, list[int]] = {}
    for row in rows.select(f.spark_partition_id().alias("task"), "offset").collect():
        offsets.setdefault(row.task, []).append(row.offset)
    return sorted(offsets.items())


def run(rows: DataFrame, checkpoint: Path, seen: list[Any], fail_at: int | None = None) -> str:
    """Run to the end of now. Returns what went wrong, if anything."""

    def record_batch(batch: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, tasks_of(batch)))
        if batch_id == fail_at:
            raise RuntimeError("on purpose")

    query = (
        rows.writeStream.foreachBatch(record_batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    until_now(lambda: not query.isActive, 120)
    return str(query.exception() or "")


def test_a_batch_that_is_run_again_has_the_same_rows_in_the_same_tasks_whatever_the_options_are_by_then(
    read, broker, tmp_path
):
    fill(broker, "t", 100)
    checkpoint = tmp_path / "checkpoint"
    first: list[Any] = []
    assert "on purpose" in run(
        read(subscribe="t", maxOffsetsPerTrigger="40", minPartitions="4"), checkpoint, first, fail_at=1
    )
    fill(broker, "t", 50)
    second: list[Any] = []
    assert run(read(subscribe="t", minPartitions="2"), checkpoint, second) == ""

    assert [batch_id for batch_id, _ in first] == [0, 1]
    assert second[0] == first[1]
    assert [len(tasks) for _, tasks in first] == [4, 4]
    assert len(second[1][1]) == 2
    once = [offset for _, tasks in (first[0], *second) for _, offsets in tasks for offset in offsets]
    assert once == list(range(150))


def test_a_running_query_reports_its_lag_and_reads_new_rows(spark, read, broker, tmp_path):
    fill(broker, "t", 30)
    reported: list[dict[str, Any]] = []
    listener = LagListener(reported.append)
    spark.streams.addListener(listener)
    query = (
        read(subscribe="t", maxOffsetsPerTrigger="20")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def read_so_far() -> int:
        assert query.isActive, query.exception()
        return sum(progress.numInputRows for progress in query.recentProgress)

    try:
        until_now(lambda: read_so_far() == 30, 90)
        fill(broker, "t", 5)
        until_now(lambda: read_so_far() == 35, 90)
        assert spark.table("seen").select("offset").distinct().count() == 35
        sources = [progress.sources[0] for progress in query.recentProgress if progress.numInputRows]
        until_now(lambda: reported, 60)  # Spark calls listeners in a thread of their own
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    latest = [json.loads(source.latestOffset) for source in sources]
    assert [progress["lag"]["offsets"] for progress in latest][:2] == [10, 0]
    assert latest[0]["offsets"] == {"t": {"0": 30}}
    assert latest[0]["lag"]["seconds"] > 0
    metrics = with_lag(next(progress for progress in query.recentProgress if progress.numInputRows))["sources"][0][
        "metrics"
    ]
    assert (metrics["offsetsBehindLatest"], metrics["offsetsBehindLatest.t/0"]) == ("10", "10")
    assert reported[0]["sources"][0]["metrics"] == metrics


def test_a_query_with_a_group_has_a_lag_that_never_runs_ahead_of_its_finished_batches(read, broker, tmp_path):
    fill(broker, "t", 50)
    floors: list[tuple[int, int]] = []

    def floor() -> int:
        return broker.groups.describe("t", "warehouse").partitions[0].floor

    def record_batch(batch: DataFrame, batch_id: int) -> None:
        floors.append((batch.agg(f.min("offset")).first()[0], floor()))

    def run_to_the_end(rows: DataFrame) -> None:
        writer = rows.writeStream.foreachBatch(record_batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        until_now(lambda: not query.isActive, 120)
        assert query.exception() is None

    run_to_the_end(read(subscribe="t", group="warehouse", maxOffsetsPerTrigger="20"))
    assert floors == [(0, 0), (20, 20), (40, 40)]  # a batch that runs is not done
    assert broker.groups.describe("t", "warehouse").lag == 0
    fill(broker, "t", 5)
    assert broker.groups.describe("t", "warehouse").lag == 5
    run_to_the_end(read(subscribe="t", group="warehouse"))
    assert (floors[3:], floor()) == ([(50, 50)], 55)
