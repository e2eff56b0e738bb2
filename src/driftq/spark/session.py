"""A Spark session that fits DriftQ: a Java that works, the same Python everywhere, the data source registered.

    spark = driftq_session("local[*]")

Any session will do as long as `register(spark)` was called on it; this one only spares the settings. Knows nothing of
topics, tables or pipelines.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from driftq.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Chosen for micro-batches on one machine: few shuffle tasks, Arrow in large batches, a state store that keeps its state
# off the heap, workers that live from batch to batch, and no web page that takes a port.
DEFAULTS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# For checkpoints on a disk of this machine. Spark's first choice of writing them starts processes to look at each file,
# which takes as long as the rest of a small micro-batch. Both rename into place.
LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# Nobody else has to reach a local session, and its workers are on this machine: rows come through a socket of the file
# system, which takes a tenth less CPU than the network's.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    **LOCAL_CHECKPOINTS,
}
WORKER_PYTHON = Path(__file__).with_name("worker-python")
_SUBMITTED = {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"}  # spark-submit or a Connect server says where to run


def driftq_session(
    master: str | None = None, *, name: str = "driftq", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Get or make a session. `master` None keeps what the surroundings say (spark-submit), else `local[*]`.
    Raises `NoJava` when there is none to run on."""
    local = master.startswith("local") if master is not None else not _SUBMITTED & os.environ.keys()
    if local:
        prepare_java()
    elif os.environ.get("PYSPARK_PYTHON") == str(WORKER_PYTHON):
        del os.environ["PYSPARK_PYTHON"]  # from a local session before this one
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = importlib.import_module("pyspark.sql").SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**DEFAULTS, **(LOCAL if local else {}), **(conf or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def prepare_java() -> None:
    """Before Spark starts Java on this machine, which keeps the surroundings it finds. Raises `NoJava`."""
    if importlib.import_module("pyspark").SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = java_home()
        os.environ["DRIFTQ_SPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", worker_python())


def worker_python() -> str:
    """What Spark runs as Python on this machine: this one, and in a way that it starts in half the time. Where Spark is
    not the installed package, or files of packages cannot be run, simply this one."""
    packaged = "SPARK_HOME" not in os.environ and os.access(WORKER_PYTHON, os.X_OK)
    return str(WORKER_PYTHON) if packaged else sys.executable


def register(spark: SparkSession) -> None:
    """Make `format("driftq")` known to a session."""
    spark.dataSource.register(importlib.import_module("driftq.spark.datasource").DriftqDataSource)
