"""A standalone Spark cluster on this machine, from the pip-installed Spark: a master and two workers.

Workers have different names for the same address, because Spark runs a second attempt of a slow task only on another
host. Everything is killed at the end by the process groups that were started here.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import driftq
from driftq.spark.java import java_home
from driftq.spark.session import worker_python
from tests.support.java import JAVA_OPTIONS
from tests.support.wait import until_now

START_S = 90.0
LOOK_S = 0.1
HOSTS = ("127.0.0.1", "localhost")
_MASTER = re.compile(r"spark://[\w.]+:\d+")


@functools.cache
def _java() -> str:
    return java_home()


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": _java(),
        "PYSPARK_PYTHON": worker_python(),
        "DRIFTQ_SPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
    }


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Cluster:
    """`url` is the master's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        log = folder / "master.log"
        until_now(lambda: "elected leader" in log.read_text(), START_S, pause_s=LOOK_S)
        master_url = _MASTER.search(log.read_text())
        assert master_url is not None
        self.url = master_url[0]
        for host in HOSTS:
            self.add_worker(host)

    def add_worker(self, host: str) -> None:
        """Start one and wait until the master knows it."""
        name = f"worker-{self._count}"
        self._count += 1
        worker = self._start(
            name, "worker.Worker", "--host", host, "--cores", "2", "--memory", "1g",
            "--work-dir", str(self.folder / "work"), self.url,
        )  # fmt: skip
        self.workers.append(worker)
        log = self.folder / f"{name}.log"
        until_now(lambda: "Successfully registered" in log.read_text(), START_S, pause_s=LOOK_S)

    def kill_worker(self, index: int) -> None:
        """With its executors; another one takes its place."""
        kill_group(self.workers.pop(index))
        self.add_worker(HOSTS[index])

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in _descendants(worker.pid, "CoarseGrainedExecutorBackend")]

    def python_workers(self) -> list[int]:
        """Those that executors forked to run our code."""
        return [pid for executor in self.executors() for pid in _descendants(executor, "pyspark.daemon")[1:]]

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with open(self.folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [script, f"org.apache.spark.deploy.{kind}", *arguments, "--webui-port", "0"],
                stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        for process in (*self.workers, self._master):
            kill_group(process)


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def package_zip(folder: Path) -> Path:
    """The package as it is handed to `--py-files`."""
    root = Path(driftq.__file__).parent
    target = folder / "driftq.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("driftq") / path.relative_to(root))
    return target


def _descendants(pid: int, word: str) -> list[int]:
    """Processes below `pid` that have `word` in their command line, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    matching: list[int] = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(0), []):
            queue.append(child)
            try:
                if word.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    matching.append(child)
            except OSError:
                continue
    return matching
