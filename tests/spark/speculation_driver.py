"""The driver of a query whose first task is slow, so that Spark runs a second attempt beside it, for every sink.

    python -m tests.spark.speculation_driver URL FOLDER MASTER ZIP

The first attempt has sent its rows and then waits until the second one has sent the same rows. Spark's event log, in
FOLDER/events, shows which attempts were speculative.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftq.spark import driftq_session
from driftq.spark.pipelines import archive
from driftq.spark.pipelines.settings import from_tree
from tests.spark.chaos_driver import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = ("staged", "direct", "archive")
SPECULATION = {
    **SETTINGS,
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def with_a_slow_task(rows: DataFrame, marker: str) -> DataFrame:
    """The same rows. The first attempt of task 0 ends after the second one has yielded its rows."""

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context.partitionId() == 0 and context.attemptNumber() > 0:
            Path(marker).touch()
        elif context.partitionId() == 0:
            give_up_s = time.monotonic() + 120
            while not Path(marker).exists():
                assert time.monotonic() < give_up_s, "there was no second attempt"
                threading.Event().wait(0.01)

    return rows.mapInArrow(slow, rows.schema)


def main(url: str, folder: str, master: str, package: str) -> None:
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--py-files {package} pyspark-shell"
    events = Path(folder, "events")
    events.mkdir()
    spark = driftq_session(master, name="speculation", conf={**SPECULATION, "spark.eventLog.dir": events.as_uri()})
    spark.sparkContext.setLogLevel("ERROR")
    for mode in ("staged", "direct"):
        source = spark.readStream.format("driftq").option("url", url).option("subscribe", "in")
        rows = source.option("startingOffsets", "earliest").load().select("key", "value")
        writer = with_a_slow_task(rows, f"{folder}/second-{mode}").writeStream.format("driftq").option("url", url)
        writer = writer.option("topic", mode).option("mode", mode).option("chunkRows", "30")
        writer.option("checkpointLocation", f"{folder}/{mode}").trigger(availableNow=True).start().awaitTermination()
    tree = {
        "pipeline": {"name": "archive", "once": True, "checkpoint": f"{folder}/archive"},
        "source": {"url": url, "topics": ["in"]},
        "sink": {"table": f"{folder}/table"},
    }
    dated = archive.dated
    archive.dated = lambda rows: with_a_slow_task(dated(rows), f"{folder}/second-archive")
    archive.start_archive(spark, from_tree(tree)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
