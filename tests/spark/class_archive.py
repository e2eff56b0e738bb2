"""Writes Java's archive (CDS) of the classes of Spark that queries load: `make classes`.

    python -m tests.spark.class_archive

With the archive Java starts Spark with half the work, and the tests start about thirty sessions.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import driftq
from driftq.spark import driftq_session
from driftq.spark.java import java_home
from driftq.spark.pipelines.query_monitor import Stop, watch
from driftq.spark.pipelines.registry import STREAMING_PIPELINES
from driftq.spark.pipelines.settings import load
from tests.support.java import CLASSES, SHORT_LIVED
from tests.support.server import running

END_S = 180.0


def write_archive(target: Path) -> None:
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    unfinished = target.with_suffix(".unfinished")
    java_options = [f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:disable", *_base(target)]
    spark = driftq_session("local[2]", conf={"spark.driver.extraJavaOptions": " ".join(java_options)})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        _queries(spark, Path(folder))
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java exits then, and writes the archive
    gateway.proc.wait(END_S)
    unfinished.replace(target)


def _base(target: Path) -> list[str]:
    """The packaged Java has no archive of its own classes, which ours needs as its base."""
    java = Path(java_home(), "bin", "java")
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False).returncode == 0:
        return []
    base = target.with_suffix(".base")
    command = [java, *SHORT_LIVED.split(), "-Xshare:dump", f"-XX:SharedArchiveFile={base}"]
    subprocess.run(command, capture_output=True, check=True)
    return [f"-XX:SharedArchiveFile={base}"]


def _queries(spark: SparkSession, folder: Path) -> None:
    with running(str(folder / "broker")) as server, driftq.connect(server.url) as broker:
        broker.topics.create("in", partitions=2)
        broker.topics.create("out", partitions=2)
        with broker.producer("in") as producer:
            for number in range(10):
                producer.send(f"row {number}", key=f"k{number}")
        table = {"sink.table": str(folder / "table")}
        for name, sink in {"archive": table, "dedupe": {"sink.topic": "out"}}.items():
            settings = {"source.url": server.url, "source.topics": ("in",), "pipeline.once": True, **sink}
            configuration = load(name, values={**settings, "pipeline.checkpoint": str(folder / name)})
            start = functools.partial(STREAMING_PIPELINES[name], spark, configuration)
            watch({name: start}, Stop(), print)
        rows = spark.read.format("driftq").options(url=server.url, subscribe="out").load().repartition(2)
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("partition").count().collect()


if __name__ == "__main__":
    write_archive(CLASSES)
