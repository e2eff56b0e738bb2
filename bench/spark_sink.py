"""The Spark sink against a real broker process on real files, on local[2]: rates, fixed cost, freshness.

    python -m bench.spark_sink
    python -m bench.spark_sink --rows 2000000 --only rate

`rate` writes rows of random bytes that lie in Spark's cache, so that the figure is the sink's and not the generator's,
in turns with the same frame written as Parquet files: `ratio` is the rate beside Parquet's. The two do not promise the
same: a broker has synced every row when the write returns, Parquet files are only in the page cache. `fixed` is a
micro-batch with next to no rows at processing-time 0.
`freshness` is from the return of a produce to the row being visible in the topic that a query copies to.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import driftq
from bench.queue import ROOMY
from bench.report import cost_of, emit
from bench.spark_cpu import JobCost, fields_of, measured, median_job
from driftq.spark import driftq_session
from driftq.spark.sink.chunker import Chunker
from driftq.spark.sink.options import write_options
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKED_ROWS = 50_000


@contextlib.contextmanager
def broker_process() -> Iterator[Server]:
    folder = tempfile.mkdtemp(prefix="bench-spark-sink-")
    server = Server(folder, *ROOMY)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def cached(spark: SparkSession, rows: int, size_bytes: int) -> DataFrame:
    """Rows with values that cannot be compressed."""
    digests = ", ".join(f"unhex(sha2(concat(id, '/{part}'), 256))" for part in range(-(-size_bytes // 32)))
    frame = spark.range(0, rows, 1, 2).selectExpr(
        f"substring(concat({digests}), 1, {size_bytes}) value", "concat('user:', id % 1000) key"
    )
    frame = frame.cache()
    frame.count()
    return frame


def save(frame: DataFrame, server: Server, topic: str, mode: str) -> None:
    writer = frame.write.format("driftq").mode("append").option("url", server.url)
    writer.option("topic", topic).option("mode", mode).save()


def rate(spark: SparkSession, rows: int, runs: int, warm: int, sizes: list[int]) -> None:
    """Rows a second, durable and visible when the write returns."""
    cases = [(mode, keyed) for mode in ("Parquet", "staged", "direct") for keyed in (False, True)]
    for size_bytes in sizes:
        count = rows * 100 // max(100, size_bytes // 2)
        frame = cached(spark, count, size_bytes)
        costs: dict[tuple[str, bool], list[JobCost]] = {case: [] for case in cases}
        with broker_process() as server, driftq.connect(server.url) as broker, tempfile.TemporaryDirectory() as folder:
            for run in range(warm + runs):
                recorded = costs if run >= warm else {case: [] for case in cases}
                for mode, keyed in cases:
                    topic, selected = f"{mode}-{keyed}-{run}", frame if keyed else frame.select("value")
                    if mode == "Parquet":
                        with measured(recorded[mode, keyed], server):
                            selected.write.parquet(f"{folder}/{topic}")
                        shutil.rmtree(f"{folder}/{topic}")
                        continue
                    broker.topics.create(topic, partitions=4)
                    with measured(recorded[mode, keyed], server):
                        save(selected, server, topic, mode)
                    broker.topics.delete(topic)
        for (mode, keyed), jobs in costs.items():
            cost, parquet = median_job(jobs), median_job(costs["Parquet", keyed])
            emit("spark_sink", f"{mode} {size_bytes} B{' keyed' if keyed else ''}", count / cost.wall_s, "rows/s",
                 rows=count, ratio=parquet.wall_s / cost.wall_s, **fields_of(cost, count))  # fmt: skip
        frame.unpersist()


def packing(rows: int) -> None:
    """The part of it that is ours and runs in a task: rows that are Arrow already into bytes for the broker."""
    import pyarrow as pa

    values = pa.array(["x" * 100] * PACKED_ROWS)
    names = [f"user:{number % 1000}" for number in range(PACKED_ROWS)]
    for case, columns in (("plain", {}), ("keyed", {"key": names}), ("envelope", {"run_id": names})):
        batch = pa.record_batch({"value": values, **columns})

        def run(batch: pa.RecordBatch = batch) -> int:
            chunker = Chunker(write_options({"topic": "out"}, streaming=True), lambda _: 4, 0)
            for _ in range(max(1, rows // PACKED_ROWS)):
                for chunk in chunker.add(batch):
                    chunk.pack()
            for chunk in chunker.finish():
                chunk.pack()
            return chunker.rows

        cost = cost_of(run)
        emit("spark_sink", f"packing 100 B {case}", cost.per_s, "rows/cpu-s", cpu_us_per_op=cost.cpu_us)


def fixed(spark: SparkSession, seconds: float) -> None:
    """What a micro-batch costs that has next to nothing to do."""
    with broker_process() as server, driftq.connect(server.url) as broker, tempfile.TemporaryDirectory() as folder:
        broker.topics.create("out", partitions=4)
        for mode in ("staged", "direct"):
            source = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 2).load()
            query = (
                source.selectExpr("cast(value as string) value").writeStream.format("driftq").option("url", server.url)
                .option("topic", "out").option("mode", mode).option("checkpointLocation", f"{folder}/{mode}")
                .trigger(processingTime="0 seconds").start()
            )  # fmt: skip
            end_s = time.monotonic() + 10 * seconds
            while len(query.recentProgress) < 3 + 2 * seconds and query.isActive and time.monotonic() < end_s:
                time.sleep(0.2)
            batches = [batch for batch in query.recentProgress[3:] if batch.numInputRows]
            query.stop()
            parts = {
                name: statistics.median(batch.durationMs.get(name, 0) for batch in batches)
                for name in ("addBatch", "walCommit", "commitOffsets", "queryPlanning", "latestOffset")
            }
            total = statistics.median(batch.durationMs["triggerExecution"] for batch in batches)
            emit("spark_sink", f"micro-batch {mode}", total, "ms p50", batches=len(batches), **parts)


def freshness(spark: SparkSession, count: int) -> None:
    """Topic to topic: from a message that is on disk to its copy that can be read."""
    with broker_process() as server, driftq.connect(server.url) as broker, tempfile.TemporaryDirectory() as folder:
        broker.topics.create("in", partitions=1)
        broker.topics.create("out", partitions=1)
        query = (
            spark.readStream.format("driftq").option("url", server.url).option("subscribe", "in")
            .option("startingOffsets", "earliest").load().select("value")
            .writeStream.format("driftq").option("url", server.url).option("topic", "out")
            .option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        )  # fmt: skip
        ages_ms = []
        for number in range(count + 3):
            broker.send("in", f"{number}")
            sent_s = time.perf_counter()
            while broker.topics.offsets("out").partitions[0].end <= number:
                assert query.isActive, query.exception()
                time.sleep(0.002)
            ages_ms.append(1e3 * (time.perf_counter() - sent_s))
        query.stop()
        ages_ms = sorted(ages_ms[3:])
        p95 = ages_ms[int(0.95 * len(ages_ms))]
        emit("spark_sink", "produce to visible copy", statistics.median(ages_ms), "ms p50", p95_ms=p95, samples=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=3, help="rounds before, until Java has compiled what it will")
    parser.add_argument("--sizes", default="100,1000", help="bytes of a value, for `rate`")
    parser.add_argument("--seconds", type=float, default=20.0, help="about, for `fixed` and `freshness`")
    parser.add_argument("--only", default="packing,rate,fixed,freshness")
    options = parser.parse_args()
    selected = options.only.split(",")
    if "packing" in selected:
        packing(options.rows)
    if selected == ["packing"]:
        return
    spark = driftq_session("local[2]", name="bench")
    spark.sparkContext.setLogLevel("ERROR")
    if "rate" in selected:
        rate(spark, options.rows, options.runs, options.warm, list(map(int, options.sizes.split(","))))
    if "fixed" in selected:
        fixed(spark, options.seconds)
    if "freshness" in selected:
        freshness(spark, max(5, int(2 * options.seconds)))
    spark.stop()


if __name__ == "__main__":
    main()
