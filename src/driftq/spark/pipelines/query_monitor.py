"""Watches running queries: a session that Ctrl-C does not reach, a line for each micro-batch, and a graceful stop.

A query is stopped between two micro-batches if possible. A micro-batch that is interrupted is run again at the next
start, and still written once. Knows how a query is started, watched and stopped, and not what it computes.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from driftq.spark.pipelines.settings import Configuration, checkpoint
from driftq.spark.session import driftq_session, prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


POLL_S = 0.25
GRACE_S = 120.0
# A busy machine is slow to start Python processes; Spark would give up after 15 seconds.
SESSION_CONF = {"spark.python.authenticate.socketTimeout": "120s"}

# Spark gives a Python source ten seconds to start, and no setting changes that. It is safe to start the query again.
START_TIMEOUT = "failed to connect back"
STARTS_MAX = 10

Echo = Callable[[str], None]  # prints a line
Start = Callable[[], "StreamingQuery"]


class QueryFailed(Exception):
    """A query failed; the message is the cause in one line."""


class Stop:
    """A request to stop. The second request does not wait for the running micro-batch."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.urgent = False

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.urgent = self.requested
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a request; True as soon as there is one."""
        return self._event.wait(seconds)


@contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """SIGINT and SIGTERM request a stop. Use after the session has started: Spark sets a handler of its own."""
    before = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spark_log(configuration: Configuration) -> Path:
    """Where the session of a pipeline writes its log: beside the checkpoint."""
    return Path(checkpoint(configuration)).parent / "spark.log"


@contextmanager
def session(configuration: Configuration, name: str) -> Iterator[SparkSession]:
    """A session for one pipeline, stopped at the end."""
    run = configuration.pipeline
    path = spark_log(configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        spark = isolated_session(run.master or None, name, run.spark, log)
        try:
            yield spark
        finally:
            spark.stop()


def isolated_session(
    master: str | None, name: str, conf: Mapping[str, str], log: IO[bytes] | None = None
) -> SparkSession:
    """A session whose Java and Python processes are in a process group of their own. Otherwise Ctrl-C in a terminal
    would kill them in the middle of the micro-batch that should finish."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    conf = {**SESSION_CONF, **conf}
    context = importlib.import_module("pyspark").SparkContext
    local = master is None or master.startswith("local")
    if context._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ and local:
        prepare_java()
        settings = importlib.import_module("pyspark").SparkConf(loadDefaults=False)
        settings.setAll([*conf.items()])
        kwargs: dict[str, Any] = {"start_new_session": True}
        if log is not None:
            kwargs |= {"stdout": log, "stderr": log}
        gateway = importlib.import_module("pyspark.java_gateway").launch_gateway(settings, kwargs)
        context._ensure_initialized(gateway=gateway)
    spark = driftq_session(master, name=name, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def quiet_session(master: str, name: str) -> Iterator[SparkSession]:
    """A session for one command, without Spark's log."""
    with Path(os.devnull).open("wb") as devnull:
        spark = isolated_session(master, name, {"spark.sql.shuffle.partitions": "1"}, devnull)
    try:
        yield spark
    finally:
        spark.stop()


def watch(
    starts: Mapping[str, Start],
    stop: Stop,
    echo: Echo,
    on_poll: Callable[[], None] = lambda: None,
    on_progress: Callable[[Any], None] = lambda progress: None,
) -> None:
    """Start queries and print a line for every micro-batch, until all have ended or a stop is requested; then stop the
    rest. Raises `QueryFailed` if a query failed. `on_poll` is called after each look at the queries,
    `on_progress` with each micro-batch."""
    watched = [WatchedQuery(name, start, echo, on_progress) for name, start in starts.items()]
    try:
        while not stop.wait(POLL_S):
            ended = [query.poll() for query in watched]
            on_poll()
            if all(ended) or any(over and query.error for over, query in zip(ended, watched)):
                break
    finally:
        stopped = [stop_query(query.query, stop) for query in watched]
    for query, was_stopped in zip(watched, stopped, strict=True):
        query.report()
        if query.error and not was_stopped:  # a stop interrupts Spark, which may report that as an error
            raise QueryFailed(f"{query.name}: {query.error}")


class WatchedQuery:
    """A query, the last micro-batch that was reported, and how often it may still be started again."""

    def __init__(
        self, name: str, start: Start, echo: Echo, on_progress: Callable[[Any], None] = lambda progress: None
    ) -> None:
        self.name = name
        self.query = start()
        self._start = start
        self._echo = echo
        self._on_progress = on_progress
        self._reported_batch = -1
        self._starts_left = STARTS_MAX

    @property
    def error(self) -> str:
        """Why it failed; empty while it runs, and if it ended well."""
        failed = None if self.query.isActive else self.query.exception()
        return "" if failed is None else cause(str(failed))

    def poll(self) -> bool:
        """Report new micro-batches. True if the query has ended. A query that could not start is started again."""
        self.report()
        if self.query.isActive:
            return False
        if START_TIMEOUT not in self.error or not self._starts_left:
            return True
        self._starts_left -= 1
        self._echo(f"{self.name}: the machine was too busy to start a process in time; starting again")
        self.query = self._start()
        return False

    def report(self) -> None:
        for progress in _new_progress(self.query, self._reported_batch):
            self._reported_batch = progress["batchId"]
            if progress["numInputRows"] or progress.get("sink", {}).get("numOutputRows", 0) > 0:
                self._echo(progress_line(self.name, progress))
                self._on_progress(progress)


def stop_query(query: StreamingQuery, stop: Stop, grace_s: float = GRACE_S) -> bool:
    """Stop a query when its micro-batch is done, or after `grace_s`. A micro-batch that is interrupted is run again at
    the next start. False if the query had already ended."""
    deadline_s = time.monotonic() + grace_s
    batch = _last_batch(query)
    while query.isActive and not stop.urgent and time.monotonic() < deadline_s:
        if not query.status["isTriggerActive"] or _last_batch(query) != batch:
            break
        time.sleep(0.02)
    if not query.isActive:
        return False
    query.stop()
    return True


def _last_batch(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return int(progress["batchId"]) if progress is not None else -1


def _new_progress(query: StreamingQuery, after: int) -> list[Any]:
    """The progress of micro-batches after one. The list of recent ones is read only if there is more than one."""
    last: Any = query.lastProgress
    if last is None or last["batchId"] <= after:
        return []
    if last["batchId"] == after + 1:
        return [last]
    newest = {progress["batchId"]: progress for progress in query.recentProgress if progress["batchId"] > after}
    return [newest[number] for number in sorted(newest)]


def progress_line(name: str, progress: Any) -> str:
    """One micro-batch in one line."""
    rows = sum(int(source.get("numInputRows", 0)) for source in _sources(progress))
    took_ms = int(progress["durationMs"].get("triggerExecution", 0))
    parts = [
        f"{name}: batch {progress['batchId']}",
        f"{rows:,} row{'' if rows == 1 else 's'}",
        f"{1_000 * rows / max(took_ms, 1):,.0f} rows/s",
        f"{took_ms / 1_000:.1f} s",
    ]
    unread = lag(progress)
    if unread is not None:
        parts.append(f"lag {unread:,}")
    late = sum(int(operator.get("numRowsDroppedByWatermark", 0)) for operator in progress.get("stateOperators", []))
    if late:
        parts.append(f"{late:,} too late")
    return ", ".join(parts)


def lag(progress: Any) -> int | None:
    """Messages in the log after the end of this micro-batch; None if the source does not report it."""
    unread = 0
    for source in _sources(progress):
        latest, read = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or read is None:
            return None
        unread += sum(max(0, offset - read.get(log, 0)) for log, offset in latest.items())
    return unread


def _sources(progress: Any) -> list[Any]:
    """The sources of a query. A plan that uses a frame several times reads it several times, and Spark lists each."""
    names = ("description", "startOffset", "endOffset", "latestOffset")
    return list({repr([source.get(name) for name in names]): source for source in progress["sources"]}.values())


def _offsets(text: Any) -> dict[tuple[str, str], int] | None:
    tree = json.loads(text) if isinstance(text, str) else text
    if not isinstance(tree, dict) or not isinstance(tree.get("offsets"), dict):
        return None
    return {(topic, number): int(offset) for topic, logs in tree["offsets"].items() for number, offset in logs.items()}


_CAUSE = re.compile(r"^(?:[\w.]*\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_PREFIX = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_SUFFIX = re.compile(r"\s*SQLSTATE: \w+\s*$")


def cause(text: str) -> str:
    """The line of a long Spark error that says what happened: that of the last Python error, else the first line. What
    follows in such a text describes the query, not the error."""
    error = text.partition("\n=== ")[0]
    causes = [match for match in _CAUSE.finditer(error) if match[1] not in ("Caused", "SQLSTATE", "JVM")]
    if causes:
        return _SUFFIX.sub("", f"{causes[-1][1]}: {causes[-1][2].strip()}")
    first = error.strip().partition("\n")[0]
    return _SUFFIX.sub("", _PREFIX.sub("", first)).strip() or first
