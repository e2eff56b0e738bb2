"""One of two drivers that run the same micro-batch from the same checkpoint at the same time, for every sink.

    python -m tests.spark.race_driver URL FOLDER NAME

Each driver stops in the middle of the batch until the other one is there too, so that both write it. Spark ends the one
whose checkpoint is written second; what it has sent to the sink by then must have no effect.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftq.spark import driftq_session
from driftq.spark.pipelines import archive
from driftq.spark.pipelines.settings import from_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KINDS = ("staged", "direct", "archive")
DRIVERS = ("one", "other")
MEET_S = 120.0


def race(spark: SparkSession, url: str, folder: str, name: str) -> dict[str, str]:
    """Run each kind of query after the other; returns the errors of those that Spark ended."""
    errors = {}
    for kind in KINDS:
        meet = meeting(f"{folder}/met-{kind}", name)
        try:
            if kind == "archive":
                run_archive(spark, url, folder, meet)
            else:
                start(spark, url, folder, kind, meet).awaitTermination()
        except Exception as error:
            errors[kind] = str(error)
    return errors


def meeting(prefix: str, name: str) -> Callable[[], None]:
    """A function that waits until both drivers have called theirs."""
    paths = [f"{prefix}-{driver}" for driver in DRIVERS]
    deadline_s = MEET_S

    def meet() -> None:
        Path(f"{prefix}-{name}").touch()
        give_up_s = time.monotonic() + deadline_s
        while not all(Path(path).exists() for path in paths):
            assert time.monotonic() < give_up_s, f"{prefix}: the other driver did not come"
            threading.Event().wait(0.01)

    return meet


def start(spark: SparkSession, url: str, folder: str, kind: str, meet: Callable[[], None]) -> StreamingQuery:
    def meeting_rows(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        meet()

    source = spark.readStream.format("driftq").option("url", url).option("subscribe", "in")
    rows = source.option("startingOffsets", "earliest").load().select("key", "value")
    return (
        rows.mapInArrow(meeting_rows, rows.schema)
        .writeStream.format("driftq").option("url", url).option("topic", kind).option("mode", kind)
        .option("checkpointLocation", f"{folder}/{kind}").trigger(availableNow=True).start()
    )  # fmt: skip


def run_archive(spark: SparkSession, url: str, folder: str, meet: Callable[[], None]) -> None:
    tree = {
        "pipeline": {"name": "archive", "once": True, "checkpoint": f"{folder}/archive"},
        "source": {"url": url, "topics": ["in"]},
        "sink": {"table": f"{folder}/table"},
    }
    commit_batch = archive.commit_batch

    def meet_and_commit(*arguments: Any) -> None:
        meet()
        commit_batch(*arguments)

    archive.commit_batch = meet_and_commit
    try:
        archive.start_archive(spark, from_tree(tree)).awaitTermination()
    finally:
        archive.commit_batch = commit_batch


def main(url: str, folder: str, name: str) -> None:
    spark = driftq_session("local[2]", name=name, conf={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    errors = race(spark, url, folder, name)
    print("raced", *sorted(errors), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
