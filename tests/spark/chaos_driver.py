"""The driver under chaos: copies a topic in both modes of the sink, and archives it, until everything is copied.

    python -m tests.spark.chaos_driver URL FOLDER MASTER ZIP ROWS_PER_BATCH

`staged` shuffles its rows before it writes them, so that two attempts may have different rows; `direct` keeps their
order. Tasks check that they run the shipped package. Some tasks fail on the first attempt, after rows were sent, and
some are slow, so that Spark starts a speculative attempt. After a kill the driver resumes from its checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from driftq.spark import driftq_session
from driftq.spark.pipelines import archive
from driftq.spark.pipelines.settings import from_tree
from driftq.spark.session import LOCAL_CHECKPOINTS

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.sql.shuffle.partitions": "3",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "4s",
    "spark.task.maxFailures": "8",
    **LOCAL_CHECKPOINTS,  # a cluster, but on one machine
}
NOT_SHIPPED = "the shipped package is not used"


def with_faults(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows; some first attempts fail or are slow."""
    from pyspark import TaskContext

    import driftq

    assert ".zip" in driftq.__file__, f"{NOT_SHIPPED}, but {driftq.__file__}"
    context = TaskContext.get()
    number = int(context.getLocalProperty("streaming.sql.batchId")) * 3 + context.partitionId()
    first = context.attemptNumber() == 0
    yield from batches
    if first and number % 11 == 4:
        raise RuntimeError("a task that fails the first time")
    if first and number % 11 == 8:
        threading.Event().wait(8.0)


def main(url: str, folder: str, master: str, package: str, rows: str) -> None:
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--py-files {package} pyspark-shell"
    spark = driftq_session(master, name="chaos", conf=SETTINGS if master.startswith("spark") else None)
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("driftq").option("url", url).option("subscribe", "in")
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows)
    )  # fmt: skip
    queries = []
    for mode in ("staged", "direct"):
        frame = source.load().select("key", "value", "partition")
        if mode == "staged":
            frame = frame.repartition(3).drop("partition")
        frame = frame.mapInArrow(with_faults, frame.schema)
        writer = frame.writeStream.format("driftq").option("url", url).option("topic", mode).option("mode", mode)
        writer = writer.option("chunkRows", "150").option("checkpointLocation", f"{folder}/{mode}")
        queries.append(writer.trigger(availableNow=True).start())
    tree = {
        "pipeline": {"name": "archive", "once": True, "checkpoint": f"{folder}/archive"},
        "source": {"url": url, "topics": ["in"], "max_offsets": int(rows)},
        "sink": {"table": f"{folder}/table"},
        "archive": {"compact_files": 8},
    }
    dated = archive.dated
    archive.dated = lambda rows: dated(rows).mapInArrow(with_faults, dated(rows).schema)
    queries.append(archive.start_archive(spark, from_tree(tree)))
    for query in queries:
        query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
