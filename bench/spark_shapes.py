"""The Spark source when the same rows lie in another shape: many partitions, many topics, very small batches.

    python -m bench.spark_shapes
    python -m bench.spark_shapes --only partitions --rows 200000

Each figure stands beside the same rows in the usual shape, in turns, as `ratio`: 64 partitions beside 4, batches of one
record beside batches of 5,000. `topics` is how long a micro-batch plans with a pattern that a thousand topics fit.
`start` is from the first line of a new process to the end of the first micro-batch of `driftq pipeline run archive`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import driftq
from bench.load_client import LoadClient, post
from bench.queue import ROOMY
from bench.report import emit, median
from bench.spark_cpu import JobCost, fields_of, measured, median_job, spent
from driftq.client.calls.queue import send_packed
from driftq.spark import driftq_session
from driftq.spark.source.fetch import transport_of
from driftq.spark.source.options import BrokerOptions
from driftq.wire.records import pack_columns, pack_one
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

VALUE = bytes(range(100))
BATCH = 5_000
FETCHED_ROWS = 50_000  # small batches of one produce


class Shapes:
    """A broker, and a session that reads it."""

    def __init__(self, folder: str, rows: int, runs: int) -> None:
        self.folder, self.rows, self.runs = folder, rows, runs
        self.server = Server(f"{folder}/broker", *ROOMY)
        self.broker = driftq.connect(self.server.url)
        self.transport = transport_of(BrokerOptions(self.server.url))
        self.spark: SparkSession = driftq_session("local[2]", name="bench")
        self.spark.sparkContext.setLogLevel("ERROR")

    def close(self) -> None:
        self.spark.stop()
        self.broker.close()
        self.server.stop()

    def fill(self, topic: str, partitions: int, rows: int, batch: int = BATCH) -> None:
        self.broker.topics.create(topic, partitions=partitions)
        packed = pack_columns([VALUE] * batch)
        for number in range(rows // batch):
            self.transport.execute(send_packed(topic, number % partitions, packed, has_producer=False))

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format("driftq").option("url", self.server.url).load(topic)

    def query(self, name: str, **options: str) -> StreamingQuery:
        """A query into nothing."""
        source = self.spark.readStream.format("driftq").options(
            url=self.server.url, startingOffsets="earliest", **options
        )
        return source.load().writeStream.format("noop").option("checkpointLocation", f"{self.folder}/{name}").start()

    def turns(self, cases: dict[str, Callable[[], None]], warm: int = 2) -> dict[str, JobCost]:
        costs: dict[str, list[JobCost]] = {name: [] for name in cases}
        for run in range(warm + self.runs):
            for name, case in cases.items():
                with measured(costs[name] if run >= warm else [], self.server):
                    case()
        return {name: median_job(jobs) for name, jobs in costs.items()}


def to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def partitions(shapes: Shapes) -> None:
    """All rows at once, and micro-batches in which every partition has some new rows."""
    counts = (4, 64)
    for count in counts:
        shapes.fill(f"bulk-{count}", count, shapes.rows, BATCH)
    bulk = shapes.turns({f"{count}": lambda count=count: to_noop(shapes.read(f"bulk-{count}")) for count in counts})  # type: ignore[misc]
    for name, cost in bulk.items():
        emit("spark_shapes", f"bulk, {name} partitions", shapes.rows / cost.wall_s, "rows/s",
             ratio=cost.wall_s / bulk["4"].wall_s, **fields_of(cost, shapes.rows))  # fmt: skip
    steps = {f"{count}": _micro_batches(shapes, count) for count in counts}
    for name, cost in steps.items():
        emit("spark_shapes", f"micro-batch, {name} partitions", 1e3 * cost.wall_s, "ms",
             ratio=cost.wall_s / steps["4"].wall_s, cpu_ratio=cost.cpu_s / steps["4"].cpu_s,
             **fields_of(cost, 1))  # fmt: skip


def _micro_batches(shapes: Shapes, count: int) -> JobCost:
    """One micro-batch of 6,400 rows that are spread over all partitions."""
    topic, rows, warm, steps = f"steps-{count}", 6_400, 10, 6 * shapes.runs
    shapes.fill(topic, count, rows * (warm + steps), rows // count)
    query = shapes.query(topic, subscribe=topic, maxOffsetsPerTrigger=f"{rows}")
    while len(query.recentProgress) < warm and query.isActive:
        time.sleep(0.01)
    before, first = spent(shapes.server), len(query.recentProgress)
    query.processAllAvailable()
    after, progress = spent(shapes.server), [step for step in query.recentProgress if step.numInputRows]
    query.stop()
    cpu_s = [(end - begin) / (len(progress) - first) for end, begin in zip(after[1:], before[1:], strict=True)]
    return JobCost(median([step.durationMs["triggerExecution"] for step in progress[first:]]) / 1e3, *cpu_s)


def topics(shapes: Shapes, count: int = 1_000) -> None:
    """The part of a micro-batch that depends on the number of topics: its offsets and its tasks."""
    for number in range(count):
        shapes.broker.topics.create(f"many.{number}")
    query = shapes.query("many", subscribePattern=r"many\..*")
    packed = pack_columns([VALUE] * 10)
    for number in range(4 + 2 * shapes.runs):
        shapes.transport.execute(send_packed(f"many.{number}", 0, packed, has_producer=False))
        query.processAllAvailable()
    steps = [step.durationMs for step in query.recentProgress if step.numInputRows][3:]
    query.stop()
    for part in ("latestOffset", "queryPlanning", "triggerExecution"):
        emit("spark_shapes", f"{count} topics by pattern: {part}", median([step.get(part, 0) for step in steps]), "ms")


def batches(shapes: Shapes) -> None:
    """As many batches as rows, beside few batches."""
    shapes.fill("large", 2, shapes.rows)
    shapes.broker.topics.create("small", partitions=2)
    value = pack_one(VALUE)
    for partition in range(2):
        for _ in range(shapes.rows // 2 // FETCHED_ROWS):
            _pipelined(shapes, "small", partition, value, FETCHED_ROWS)
    costs = shapes.turns({name: lambda name=name: to_noop(shapes.read(name)) for name in ("large", "small")})  # type: ignore[misc]
    for name, cost in costs.items():
        emit("spark_shapes", f"{name} batches", shapes.rows / cost.wall_s, "rows/s",
             ratio=costs["large"].wall_s / cost.wall_s, **fields_of(cost, shapes.rows))  # fmt: skip


def _pipelined(shapes: Shapes, topic: str, partition: int, batch: bytes, count: int) -> None:
    """Each batch in a request of its own, many of them in flight."""
    call = send_packed(topic, partition, batch, has_producer=False)
    request = post(call.path, call.body, call.content_type)

    async def send() -> None:
        client = await LoadClient.connect(shapes.server.port)
        for _ in range(count // 500):
            for status, body in await asyncio.gather(*(client.send(request) for _ in range(500))):
                assert status == 200, body
        client.close()

    asyncio.run(send())


def start(shapes: Shapes) -> None:
    shapes.fill("orders", 2, 2 * BATCH)
    times: list[float] = []
    for number in range(shapes.runs):
        table, began_s = f"{shapes.folder}/table-{number}", time.perf_counter()
        command = [sys.executable, "-m", "driftq.cli.main", "pipeline", "run", "archive", "--once", "--topic", "orders"]
        command += ["--url", shapes.server.url, "--table", table]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if ": batch 0," in line:
                times.append(time.perf_counter() - began_s)
        assert process.wait() == 0, "".join(lines)
    emit("spark_shapes", "first micro-batch of a pipeline", median(times), "s", slowest_s=max(times))


CASES: dict[str, Callable[[Shapes], None]] = {
    "partitions": partitions,
    "topics": topics,
    "batches": batches,
    "start": start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--folder", default=None, help="where files go (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="bench-spark-shapes-", dir=arguments.folder)
    shapes = Shapes(folder, arguments.rows, arguments.runs)
    try:
        for name in arguments.only.split(","):
            CASES[name](shapes)
    finally:
        shapes.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
