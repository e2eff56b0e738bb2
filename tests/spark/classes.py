"""Write down the classes of Spark that queries load, checked and laid out: `make classes`.

    python -m tests.spark.classes

A Java that is given the file starts Spark with half the work, and the tests start some thirty.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import driftq
from driftq.spark import driftq_session
from driftq.spark.java import java_home
from driftq.spark.pipelines.configuration import load
from driftq.spark.pipelines.query_monitor import Stop, watch
from driftq.spark.pipelines.registry import STREAMING_PIPELINES
from tests.support.java import CLASSES, SHORT_LIVED
from tests.support.server import running

END_S = 180.0


def make_classes(target: Path) -> None:
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    unfinished = target.with_suffix(".unfinished")
    asked = [f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:disable", *_base(target)]
    spark = driftq_session("local[2]", conf={"spark.driver.extraJavaOptions": " ".join(asked)})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        _queries(spark, Path(folder))
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends with it, and writes
    gateway.proc.wait(END_S)
    unfinished.replace(target)


def _base(target: Path) -> list[str]:
    """A packaged Java comes without the classes of Java itself, which are what others are laid upon."""
    java = Path(java_home(), "bin", "java")
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False).returncode == 0:
        return []
    base = target.with_suffix(".base")
    written = [java, *SHORT_LIVED.split(), "-Xshare:dump", f"-XX:SharedArchiveFile={base}"]
    subprocess.run(written, capture_output=True, check=True)
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
            given = {"source.url": server.url, "source.topics": ("in",), "pipeline.once": True, **sink}
            configuration = load(name, values={**given, "pipeline.checkpoint": str(folder / name)})
            watch({name: lambda name=name, it=configuration: STREAMING_PIPELINES[name](spark, it)}, Stop(), print)
        rows = spark.read.format("driftq").options(url=server.url, subscribe="out").load().repartition(2)
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("partition").count().collect()


if __name__ == "__main__":
    make_classes(CLASSES)
