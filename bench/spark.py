"""The Spark source beside Spark's own: rows from a topic, the same rows from Parquet, and Spark's rate source.

    python -m bench.spark
    python -m bench.spark --rows 200000 --runs 1 --only "100 B"

One session on two cores, one broker process on real files, cases in turns, the median of the runs. `ratio` is the rate
beside Parquet's in the same run: that says more than a rate on a shared machine. `cpu_us_per_op` is the CPU of all that
took part for one row, and `java_us`, `python_us` and `broker_us` are its parts. The peak memory of a Python worker is
measured with a range that is read by one task.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.queue import ROOMY
from bench.report import emit, median
from bench.spark_cpu import JobCost, descendants, fields_of, measured, median_job, spent
from driftq.client.calls.queue import send_packed
from driftq.spark import driftq_session
from driftq.spark.source.fetch import transport_of
from driftq.spark.source.options import BrokerOptions
from driftq.wire.records import pack_columns
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
BATCH = 5_000


class Size(NamedTuple):
    name: str
    value_bytes: int
    share: float  # of --rows


SIZES = (Size("100 B", 100, 1.0), Size("1 KB", 1_000, 0.25))


def worker_peak_bytes() -> int:
    """The most memory that any Python worker has held."""
    peak_bytes = 0
    for pid in descendants(os.getpid()):
        try:
            if b"pyspark" not in Path(f"/proc/{pid}/cmdline").read_bytes() or pid == os.getpid():
                continue
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            continue
        if Path(f"/proc/{pid}/exe").resolve().name.startswith("python"):
            peak_bytes = max([peak_bytes, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))])
    return peak_bytes


class Bench:
    """A broker with a topic for each size, the same rows as Parquet, and a session."""

    def __init__(self, folder: str, rows: int, sizes: list[Size]) -> None:
        self.folder = folder
        self.server = Server(f"{folder}/broker", *ROOMY)
        self.rows = {size.name: max(BATCH * PARTITIONS, int(rows * size.share)) for size in sizes}
        for size in sizes:
            self.fill(size)
        self.spark: SparkSession = driftq_session("local[2]", name="bench")
        self.spark.sparkContext.setLogLevel("ERROR")
        for size in sizes:
            self.source(size).write.mode("overwrite").parquet(self.parquet_path(size))

    def close(self) -> None:
        self.spark.stop()
        self.server.stop()

    def topic(self, size: Size) -> str:
        return f"rows-{size.value_bytes}"

    def parquet_path(self, size: Size) -> str:
        return f"{self.folder}/{self.topic(size)}.parquet"

    def fill(self, size: Size) -> None:
        """Values are random text, so that compression gives no advantage."""
        self.server.call("POST", "/v1/topics", {"name": self.topic(size), "partitions": PARTITIONS})
        transport = transport_of(BrokerOptions(self.server.url))
        chance = random.Random(1)
        for number in range(self.rows[size.name] // BATCH):
            text = chance.randbytes(size.value_bytes * BATCH)
            values = [text[at : at + size.value_bytes] for at in range(0, len(text), size.value_bytes)]
            keys = [b"key-%06d" % (number * BATCH + index) for index in range(BATCH)]
            batch = pack_columns(values, keys)
            transport.execute(send_packed(self.topic(size), number % PARTITIONS, batch, has_producer=False))

    def source(self, size: Size, **options: str) -> DataFrame:
        reader = self.spark.read.format("driftq").option("url", self.server.url)
        return reader.options(**options).load(self.topic(size))

    def parquet(self, size: Size) -> DataFrame:
        return self.spark.read.parquet(self.parquet_path(size))


def to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def to_parquet(folder: str) -> Callable[[DataFrame], None]:
    def write(rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(f"{folder}/out.parquet")
        shutil.rmtree(f"{folder}/out.parquet")

    return write


def compare(bench: Bench, size: Size, runs: int, warm: int) -> None:
    """The topic beside Parquet, into nothing and into Parquet."""
    for target, write in (("noop", to_noop), ("Parquet", to_parquet(bench.folder))):
        costs: dict[str, list[JobCost]] = {"topic": [], "Parquet": []}
        for run in range(warm + runs):
            recorded = costs if run >= warm else {"topic": [], "Parquet": []}
            with measured(recorded["topic"], bench.server):
                write(bench.source(size))
            with measured(recorded["Parquet"], bench.server):
                write(bench.parquet(size))
        rows = bench.rows[size.name]
        cost_of = {name: median_job(jobs) for name, jobs in costs.items()}
        for name, cost in cost_of.items():
            ratio = cost_of["Parquet"].wall_s / cost.wall_s
            emit("spark", f"{size.name} {name} to {target}", rows / cost.wall_s, "rows/s", ratio=ratio,
                 **fields_of(cost, rows))  # fmt: skip


def progress_of(query: Any, enough: int, deadline_s: float = 120.0) -> list[Any]:
    """Progress of micro-batches with rows, once there are enough."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s and query.isActive:
        with_rows = [progress for progress in query.recentProgress if progress.numInputRows]
        if len(with_rows) >= enough:
            return with_rows
        time.sleep(0.05)
    raise SystemExit(f"the query ended too early: {query.exception()}")


def streaming(bench: Bench, size: Size) -> None:
    """A query in micro-batches of a quarter of the rows, beside Spark's rate source, which makes them from nothing."""
    count = bench.rows[size.name] // 4
    read = bench.spark.readStream
    topic = read.format("driftq").options(url=bench.server.url, subscribe=bench.topic(size), startingOffsets="earliest")
    sources = {
        "topic": topic.option("maxOffsetsPerTrigger", count),
        "rate": read.format("rate-micro-batch").options(rowsPerBatch=count, numPartitions=2),
    }
    results: dict[str, tuple[float, float]] = {}
    for name, source in sources.items():
        checkpoint = tempfile.mkdtemp(dir=bench.folder)
        before = spent(bench.server)
        query = source.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            batches = progress_of(query, 4)
        finally:
            query.stop()
        cpu_s = spent(bench.server).cpu_s - before.cpu_s
        # The first batch starts the workers.
        rates = [1_000 * progress.numInputRows / progress.durationMs["addBatch"] for progress in batches[1:]]
        results[name] = median(rates), 1e6 * cpu_s / sum(progress.numInputRows for progress in batches)
    for name, (rate, cpu_us) in results.items():
        emit("spark", f"{size.name} {name} in micro-batches", rate, "rows/s", cpu_us_per_op=cpu_us,
             ratio=rate / results["rate"][0])  # fmt: skip


def memory(bench: Bench, size: Size) -> None:
    """Everything in as few tasks as there are partitions: the worker's peak must not follow the range."""
    to_noop(bench.source(size, maxPartitionBytes="100g"))
    emit("spark", f"{size.name} peak memory of a worker", worker_peak_bytes(), "bytes",
         range_bytes=bench.rows[size.name] * size.value_bytes // PARTITIONS)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of 100 bytes; of 1 KB a quarter of that")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=8, help="rounds before, until Java has compiled what it will")
    parser.add_argument("--only", default="", help="one size: '100 B' or '1 KB'")
    parser.add_argument("--folder", default=None, help="where files go (default: a temporary folder)")
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if arguments.only in ("", size.name)]
    folder = tempfile.mkdtemp(prefix="bench-spark-", dir=arguments.folder)
    bench = Bench(folder, arguments.rows, sizes)
    try:
        for size in sizes:
            memory(bench, size)
            compare(bench, size, arguments.runs, arguments.warm)
            streaming(bench, size)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
