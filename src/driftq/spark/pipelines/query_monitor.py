"""Running queries: a session that Ctrl-C does not reach, a line for each micro-batch, and an orderly end.

A query is stopped between two micro-batches where that is possible; one that is cut off is done again, exactly once, at
the next start. Knows how a query is started, watched and ended, and not what it computes.
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

from driftq.spark.pipelines.configuration import checkpoint
from driftq.spark.session import driftq_session, prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from driftq.spark.pipelines.settings import Configuration

LOOK_S = 0.25
GRACE_S = 120.0
# A machine that is busy takes its time to start Python processes; Spark would give up on them after 15 seconds.
PATIENT = {"spark.python.authenticate.socketTimeout": "120s"}

# Spark gives a Python source ten seconds to come up, and no setting changes that. Nothing has happened yet then.
HICCUP = "failed to connect back"
STARTS_MAX = 10

Say = Callable[[str], None]
Start = Callable[[], "StreamingQuery"]


class QueryFailed(Exception):
    """A query ended by itself; the message is the cause in one line."""


class Stop:
    """Whether somebody wants the end. The second signal wants it at once."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self.urgent = False

    @property
    def wanted(self) -> bool:
        return self._wanted.is_set()

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.urgent = self.wanted
        self._wanted.set()

    def wait(self, seconds: float) -> bool:
        """True as soon as the end is wanted."""
        return self._wanted.wait(seconds)


@contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """SIGINT and SIGTERM ask for the end. Called when the session is there: Spark sets a handler of its own."""
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def session(configuration: Configuration, name: str) -> Iterator[SparkSession]:
    """A session for one pipeline, stopped at the end. Spark's own lines go to a file beside the checkpoint."""
    run = configuration.pipeline
    path = Path(checkpoint(configuration)).parent / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        spark = sheltered(run.master or None, name, run.spark, log)
        try:
            yield spark
        finally:
            spark.stop()


def sheltered(master: str | None, name: str, conf: Mapping[str, str], log: IO[bytes] | None = None) -> SparkSession:
    """A session whose Java and Python processes are in a process group of their own. Otherwise a Ctrl-C in a terminal
    would end them in the middle of the micro-batch that is to be finished."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    conf = {**PATIENT, **conf}
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


def watch(starts: Mapping[str, Start], stop: Stop, say: Say, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Start queries and tell of every micro-batch until all have ended or the end is wanted; then end them in order.
    Raises `QueryFailed` for one that ended by itself with an error; the others are ended too. `meanwhile` is called
    between two looks."""
    watched = [Watched(name, start, say) for name, start in starts.items()]
    try:
        while not stop.wait(LOOK_S):
            ended = [each.look() for each in watched]
            meanwhile()
            if all(ended) or any(end_ and each.error for end_, each in zip(ended, watched)):
                break
    finally:
        stopped = [end(each.query, stop) for each in watched]
    for each, was_stopped in zip(watched, stopped, strict=True):
        each.tell()
        if each.error and not was_stopped:  # a stop interrupts Spark, which may report that as an error
            raise QueryFailed(f"{each.name}: {each.error}")


class Watched:
    """A query, what was told of it, and how often it had to be started."""

    def __init__(self, name: str, start: Start, say: Say) -> None:
        self.name = name
        self.query = start()
        self._start = start
        self._say = say
        self._told = -1
        self._left = STARTS_MAX

    @property
    def error(self) -> str:
        """Why it failed; empty while it runs, and when it ended well."""
        failed = None if self.query.isActive else self.query.exception()
        return "" if failed is None else cause(str(failed))

    def look(self) -> bool:
        """Tell what is new. True when it has ended, for good or ill; one that could not begin is started again."""
        self.tell()
        if self.query.isActive:
            return False
        if HICCUP not in self.error or not self._left:
            return True
        self._left -= 1
        self._say(f"{self.name}: the machine was too busy to start a process in time; starting again")
        self.query = self._start()
        return False

    def tell(self) -> None:
        for progress in _fresh(self.query, self._told):
            self._told = progress["batchId"]
            if progress["numInputRows"] or progress.get("sink", {}).get("numOutputRows", 0) > 0:
                self._say(progress_line(self.name, progress))


def end(query: StreamingQuery, stop: Stop, grace_s: float = GRACE_S) -> bool:
    """Stop a query when its micro-batch is done, or when patience ends; what is cut off is done again at next start.
    False if it had ended by itself."""
    deadline_s = time.monotonic() + grace_s
    batch = _last(query)
    while query.isActive and not stop.urgent and time.monotonic() < deadline_s:
        if not query.status["isTriggerActive"] or _last(query) != batch:
            break
        time.sleep(0.02)
    if not query.isActive:
        return False
    query.stop()
    return True


def _last(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return int(progress["batchId"]) if progress is not None else -1


def _fresh(query: StreamingQuery, after: int) -> list[Any]:
    """Progress of micro-batches that were not told yet. The list of recent ones is read only when there are some."""
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
    behind = lag(progress)
    if behind is not None:
        parts.append(f"lag {behind:,}")
    late = sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in progress.get("stateOperators", []))
    if late:
        parts.append(f"{late:,} too late")
    return ", ".join(parts)


def lag(progress: Any) -> int | None:
    """Messages that are in the log and not in this micro-batch or an earlier one; None if the source does not say."""
    behind = 0
    for source in _sources(progress):
        latest, reached = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        if latest is None or reached is None:
            return None
        behind += sum(max(0, offset - reached.get(place, 0)) for place, offset in latest.items())
    return behind


def _sources(progress: Any) -> list[Any]:
    """The sources of a query. A plan that uses one frame several times reads it as often, and Spark counts each."""
    names = ("description", "startOffset", "endOffset", "latestOffset")
    return list({repr([source.get(name) for name in names]): source for source in progress["sources"]}.values())


def _offsets(text: Any) -> dict[tuple[str, str], int] | None:
    tree = json.loads(text) if isinstance(text, str) else text
    if not isinstance(tree, dict) or not isinstance(tree.get("offsets"), dict):
        return None
    return {(topic, number): int(offset) for topic, some in tree["offsets"].items() for number, offset in some.items()}


_CAUSE = re.compile(r"^(?:[\w.]*\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_FRONT = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_BACK = re.compile(r"\s*SQLSTATE: \w+\s*$")


def cause(text: str) -> str:
    """The sentence in a long Spark error that says what happened: the last one that a Python error left, else the
    first line. What follows in such a text is about the query, not about the error."""
    said = text.partition("\n=== ")[0]
    found = [match for match in _CAUSE.finditer(said) if match[1] not in ("Caused", "SQLSTATE", "JVM")]
    if found:
        return _BACK.sub("", f"{found[-1][1]}: {found[-1][2].strip()}")
    first = said.strip().partition("\n")[0]
    return _BACK.sub("", _FRONT.sub("", first)).strip() or first
