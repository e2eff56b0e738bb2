"""A Spark session with the settings that suit DriftQ: Java, Python, the data source, and defaults."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from driftq.extras import require
from driftq.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Chosen for micro-batches on one machine: few shuffle tasks, Arrow in large batches, a state store that keeps its state
# off the heap, Python workers that are reused from batch to batch, and no web UI that takes a port.
DEFAULTS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",  # larger ones leave the processor's cache, and nothing overlaps
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.python.worker.reuse": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no statistics
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# For checkpoints on a local disk. Spark's default way to write them starts processes to inspect each file, which takes
# as long as the rest of a small micro-batch. Both ways rename files into place.
LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# A local session need not be reachable from other machines. Its workers pass rows through a Unix socket, which takes a
# tenth less CPU than TCP.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    **LOCAL_CHECKPOINTS,
}
WORKER_PYTHON = Path(__file__).with_name("worker-python")
PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # the second starts the process that finds data sources
_SUBMIT_VARIABLES = {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"}  # set by spark-submit or by a Connect server


def driftq_session(
    master: str | None = None, *, name: str = "driftq", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Get or create a session. Without `master` it is the one that spark-submit sets, else `local[*]`. Raises `NoJava`
    if there is no Java to run on."""
    require("driftq.spark", "spark")
    local = master.startswith("local") if master is not None else not _SUBMIT_VARIABLES & os.environ.keys()
    if local:
        prepare_java()
    for variable in PYTHON_VARIABLES:
        if not local and os.environ.get(variable) == str(WORKER_PYTHON):
            del os.environ[variable]  # left over from an earlier local session
        os.environ.setdefault(variable, sys.executable)
    builder = importlib.import_module("pyspark.sql").SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**DEFAULTS, **(LOCAL if local else {}), **(conf or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def prepare_java() -> None:
    """Set the environment of Spark's Java process. Must run before Spark starts it. Raises `NoJava`."""
    if importlib.import_module("pyspark").SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = java_home()
        os.environ["DRIFTQ_SPARK_PYTHON"] = sys.executable
        for variable in PYTHON_VARIABLES:
            os.environ.setdefault(variable, worker_python())


def worker_python() -> str:
    """The Python that Spark runs on this machine: a script that starts this interpreter in half the time. The
    interpreter itself if Spark is not the installed package, or if the script is not executable."""
    usable = "SPARK_HOME" not in os.environ and os.access(WORKER_PYTHON, os.X_OK)
    return str(WORKER_PYTHON) if usable else sys.executable


def register(spark: SparkSession) -> None:
    """Register `format("driftq")` with a session."""
    spark.dataSource.register(importlib.import_module("driftq.spark.datasource").DriftqDataSource)


# --- in a Python worker ---


@functools.cache
def freeze_gc() -> None:
    """Called at the start of every task, works once in a worker. Spark collects garbage after every task and scans all
    of pandas and pyarrow each time: about 50 ms, much more than a small task takes. What is imported by now stays
    loaded anyway, so it is excluded from collection."""
    gc.freeze()
