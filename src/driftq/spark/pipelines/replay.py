"""The pipeline `replay`: writes a table, or a range of a topic, to a topic again. Run twice, it writes once.

`chosen` and `replayed` are functions from frame to frame; `survey` counts what would be written, for a dry run. The
sink publishes everything as one batch of a writer whose name is a hash of the request, so that a repeat is recognised.
The broker assigns new offsets and times; deadlines and routing are not carried over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from driftq.client.errors import NotFound
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines.audit_report import Extent, LogName
from driftq.spark.pipelines.io import broker_of, broker_options, source_options
from driftq.spark.tables import read_table
from driftq.spark.tables.storage import files_at
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Echo, Stop
    from driftq.spark.pipelines.settings import Configuration
    from driftq.wire.topics import TopicInfo

OFFSET_MAX = (1 << 62) - 1
CARRIED = (
    "key",
    "value",
    "run_id",
    "step_id",
    "parent_step_id",
    "tenant_id",
    "idempotency_key",
    "labels",
    "task",
    "priority",
)
JOBS = ("task", "priority")


class ReplayRequest(NamedTuple):
    """What to replay, and where to. Offsets apply to every partition; ends are exclusive; times are in milliseconds."""

    target: str
    topics: tuple[str, ...] = ()
    table: str = ""
    from_offset: int = 0
    to_offset: int = 0
    from_ms: int | None = None
    to_ms: int | None = None
    created_at: str = ""  # of the target: a topic that was deleted and created again has none of the rows

    def writer(self) -> str:
        """Deterministic id of this replay; makes it idempotent."""
        # "parquet" was the format of the table; a replay keeps the id that it had when there was a choice.
        text = json.dumps([*self[:3], "parquet", *self[3:]], separators=(",", ":"))
        return f"replay-{self.target[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class ReplayPart(NamedTuple):
    """What a replay reads from one partition."""

    topic: str
    partition: int
    rows: int
    first: int
    last: int
    first_at: datetime
    last_at: datetime
    jobs: int

    def line(self) -> str:
        return (
            f"{self.topic}/{self.partition}: {self.rows:,} rows, offsets {self.first}–{self.last}, "
            f"{self.first_at:%Y-%m-%d %H:%M:%S} to {self.last_at:%Y-%m-%d %H:%M:%S}"
        )


# --- functions from frame to frame ------------------------------------------------------------------------------------


def chosen(rows: DataFrame, request: ReplayRequest) -> DataFrame:
    """The rows of a request."""
    if request.topics:
        rows = rows.where(F.col("topic").isin(*request.topics))
    if request.from_offset:
        rows = rows.where(F.col("offset") >= request.from_offset)
    if request.to_offset:
        rows = rows.where(F.col("offset") < request.to_offset)
    if request.from_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") >= request.from_ms)
    if request.to_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") < request.to_ms)
    return rows


def replayed(rows: DataFrame, *, jobs: bool = False) -> DataFrame:
    """The rows to write: key, value and envelope, in the order of their log. `jobs` keeps task and priority too."""
    ordered = rows.orderBy("topic", "partition", "offset")
    return ordered.select(*(name for name in CARRIED if name in rows.columns and (jobs or name not in JOBS)))


def survey(rows: DataFrame) -> list[ReplayPart]:
    """Counts the rows of each partition."""
    is_job = F.lit(False)
    if set(JOBS) <= set(rows.columns):
        is_job = (F.coalesce("task", F.lit("")) != "") | (F.coalesce("priority", F.lit(0)) != 0)
    parts = rows.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min("timestamp").alias("first_at"),
        F.max("timestamp").alias("last_at"),
        F.count(F.when(is_job, 1)).alias("jobs"),
    )
    return sorted(ReplayPart(*row) for row in parts.collect())


# --- the pipeline -----------------------------------------------------------------------------------------------------


def source(
    spark: SparkSession, request: ReplayRequest, options: Mapping[str, str], logs: Mapping[LogName, Extent]
) -> DataFrame:  # fmt: skip
    """The rows of a request, from the table, or from the needed ranges of the logs. `options` are those of the table's
    storage, or of the source."""
    if request.table:
        return chosen(read_table(spark, request.table, options), request)
    read = dict(options)
    if request.from_ms is not None:
        read["startingTimestamp"] = str(request.from_ms)
    else:
        read["startingOffsets"] = _offsets(logs, request.from_offset)
    if request.to_ms is not None:
        read["endingTimestamp"] = str(request.to_ms)
    else:
        read["endingOffsets"] = _offsets(logs, request.to_offset or OFFSET_MAX)
    return chosen(spark.read.format("driftq").options(**read).load(), request)


def _offsets(logs: Mapping[LogName, Extent], offset: int) -> str:
    """The same offset for every partition, clamped to what the partition holds."""
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), extent in logs.items():
        offsets.setdefault(topic, {})[str(partition)] = min(max(offset, extent.start), extent.end)
    return json.dumps(offsets)


def extents(broker: DriftQ, topics: tuple[str, ...]) -> dict[LogName, Extent]:
    """What the topics hold now."""
    return {
        (topic, log.partition): Extent(log.start_offset, log.end_offset)
        for topic in topics
        for log in _described(broker, topic).partitions
    }


def _described(broker: DriftQ, topic: str) -> TopicInfo:
    try:
        return broker.topics.describe(topic)
    except NotFound:
        raise SettingsError(f"there is no topic {topic}; create it with: driftq topics create {topic}") from None


def write(rows: DataFrame, request: ReplayRequest, options: Mapping[str, str], *, direct: bool = False) -> None:
    """Write everything once. Raises the sink's error if the same replay was done before with other rows."""
    # Direct mode needs the same rows in the same order when it is run again: one task that reads them sorted.
    frame = replayed(rows.coalesce(1) if direct else rows, jobs=direct)
    sink = {**options, "topic": request.target, "writer": request.writer(), "batchId": "0"}
    sink["mode"] = "direct" if direct else "staged"
    (frame.coalesce(1) if direct else frame).write.format("driftq").mode("append").options(**sink).save()


def request_of(configuration: Configuration) -> ReplayRequest:
    settings = configuration.replay
    topics = configuration.source.topics
    if not settings.table and not topics:
        raise SettingsError("replay needs replay.table or source.topics (--topic NAME): what to replay")
    if configuration.sink.topic in topics and not settings.table:
        raise SettingsError(f"replaying {configuration.sink.topic!r} into itself would duplicate it; use another topic")
    return ReplayRequest(
        configuration.sink.topic,
        topics,
        absolute(settings.table),
        settings.from_offset,
        settings.to_offset,
        _time_ms("from_time", settings.from_time),
        _time_ms("to_time", settings.to_time),
    )


def absolute(path: str) -> str:
    """An absolute path, so that the request is the same in whatever folder the command is run."""
    return path if not path or "://" in path else files_at(path).uri


def _time_ms(name: str, text: str) -> int | None:
    try:
        return from_rfc3339(text) if text else None
    except ValueError:
        raise SettingsError(f"replay.{name}: a time like 2030-01-01T00:00:00Z is expected, not {text!r}") from None


def run_replay(spark: SparkSession, configuration: Configuration, stop: Stop, echo: Echo) -> int:
    """Print what there is to replay and, unless it is a dry run, write it. Returns the exit code."""
    request = request_of(configuration)
    with broker_of(configuration) as broker:
        request = request._replace(created_at=_described(broker, request.target).created_at)
        logs = {} if request.table else extents(broker, request.topics)
    rows = source(spark, request, configuration.sink.storage if request.table else source_options(configuration), logs)
    parts = survey(rows)
    for part in parts:
        echo(part.line())
    count, jobs = sum(part.rows for part in parts), sum(part.jobs for part in parts)
    mode = configuration.sink.mode
    if jobs and mode == "staged":
        raise SettingsError(f"{jobs:,} of the rows are jobs, which cannot be staged; leave sink.mode empty")
    direct = mode == "direct" or (jobs > 0 and not mode)
    if configuration.replay.dry_run:
        echo(f"dry run: {count:,} rows would be written to {request.target} as {request.writer()}")
        return 0
    if count:
        write(rows, request, broker_options(configuration), direct=direct)
    echo(f"{count:,} rows are in {request.target}, written once as {request.writer()}")
    return 0
