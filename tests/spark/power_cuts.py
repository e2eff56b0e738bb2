"""Cuts the power of the file system under a running archive, resumes it, and compares the table with the topic.

    python -m tests.spark.power_cuts 20          (or: make table-power-cuts N=20)

Table and checkpoint are on one ext4 image; the broker is elsewhere. A cut happens at a random moment after a random
number of versions. What was not synced is lost: Spark's checkpoint lacks its last files, or they are empty. The
comparison shares no code with the archive.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake

import driftq
from driftq.spark import driftq_session
from driftq.spark.pipelines.archive import start_archive
from driftq.spark.pipelines.settings import Configuration, from_tree
from tests.crash.mounts import PowerCut
from tests.spark.independent_reader import table_values, topic_values
from tests.support.server import Server, running
from tests.support.wait import until_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE_BYTES = 256 << 20
PARTITIONS = 2
ROWS_PER_CUT = 400
WAIT_S = 120.0
UNMOUNT_S = 30.0


class PowerCutRun:
    """An archive on a file system whose power is cut again and again."""

    def __init__(
        self, spark: SparkSession, server: Server, power: PowerCut, chance: random.Random, profile: str
    ) -> None:
        self.spark = spark
        self.server = server
        self.power = power
        self.chance = chance
        self.profile = profile
        self.table = power.at / "tables" / "orders"
        self.sent = 0
        self.empty: Counter[str] = Counter()

    def configured(self, *, once: bool) -> Configuration:
        return from_tree(
            {
                "pipeline": {"name": "archive", "once": once, "trigger": "1 millisecond"},
                "source": {"url": self.server.url, "topics": ["orders"], "max_offsets": 50},
                "sink": {"table": str(self.table)},
                "archive": {"compact_files": 4},
            }
        )

    def send(self) -> None:
        with driftq.connect(self.server.url) as broker:
            broker.topics.create("orders", partitions=PARTITIONS)
            with broker.producer("orders") as producer:
                for number in range(self.sent, self.sent + ROWS_PER_CUT):
                    producer.send(f"order {number}", partition=number % PARTITIONS)
        self.sent += ROWS_PER_CUT

    def cut(self) -> None:
        """Archive until some versions were made, and cut the power."""
        self.send()
        before = self.versions()
        query = start_archive(self.spark, self.configured(once=False))
        more = self.chance.randint(1, 5)
        until_now(lambda: self.versions() >= before + more or not query.isActive, WAIT_S)
        assert query.isActive, query.exception()
        threading.Event().wait(self.chance.uniform(0, 0.6))  # so that the cut hits any step
        self.power.cut(self.profile)
        query.stop()
        try:
            until_now(self.is_unmounted, UNMOUNT_S)
        except AssertionError:
            self.power.detach()
        self.power.mount_again()
        self.look()

    def versions(self) -> int:
        log = self.table / "_delta_log"
        return sum(path.suffix == ".json" for path in log.iterdir()) if log.exists() else 0

    def is_unmounted(self) -> bool:
        try:
            self.power.unmount()
        except OSError:
            return False
        return True

    def look(self) -> None:
        """What the cut has left. Every version is whole."""
        for path in self.power.at.rglob("*"):
            if path.is_file() and not path.stat().st_size:
                self.empty["checkpoint" if "checkpoints" in str(path) else "table"] += 1
        if self.versions():
            deltalake.DeltaTable(self.table).to_pyarrow_table(columns=["offset"])

    def resume(self) -> None:
        query = start_archive(self.spark, self.configured(once=True))
        assert query.awaitTermination(WAIT_S)

    def assert_exact(self) -> None:
        expected, archived = topic_values(self.server.url, "orders"), table_values(self.table)
        assert sum(map(len, expected.values())) == self.sent
        lost, doubled = (
            Counter(value for values in one.values() for value in values)
            - Counter(value for values in other.values() for value in values)
            for one, other in ((expected, archived), (archived, expected))
        )
        assert not lost, f"{lost.total()} lost, among them {list(lost)[:3]}"
        assert not doubled, f"{doubled.total()} doubled, among them {list(doubled)[:3]}"
        assert archived == expected, "rows are under other offsets"


def power_cuts(spark: SparkSession, folder: Path, cuts: int, seed: int, profile: str) -> Counter[str]:
    """Cut, resume and compare so many times. Returns how many empty files the cuts have left, by where they were."""
    chance = random.Random(seed)
    power = PowerCut(folder, SIZE_BYTES, profile)
    try:
        with running(str(folder / "broker")) as server:
            run = PowerCutRun(spark, server, power, chance, profile)
            for number in range(cuts):
                run.cut()
                run.resume()
                run.assert_exact()
                print(f"cut {number + 1}: {run.sent:,} rows, each once; empty files: {dict(run.empty)}", flush=True)
            return run.empty
    finally:
        power.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="cut the power under an archive, resume, and compare")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    spark = driftq_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="power-cuts-") as folder:
        power_cuts(spark, Path(folder), options.count, options.seed, "ci")
    spark.stop()


if __name__ == "__main__":
    main()
