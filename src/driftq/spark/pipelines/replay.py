"""A table, or a range of a topic, into a topic again, once: a replay that is run twice writes nothing the second time.

`replayed` is a function from frame to frame; `survey` counts what would be written, which is all that a dry run does.
The sink publishes everything in one write under a name that is made from what was asked for, so that a repeat finds it
done. The broker gives new offsets and times; deadlines and what a router said stay behind.
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
from driftq.spark.pipelines.io import broker_of, options, reach
from driftq.spark.tables import open_table
from driftq.spark.tables.parquet import local_folder
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Say, Stop
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
    """What to replay, and where to. Offsets count in every partition; ends are not included; times are milliseconds."""

    target: str
    topics: tuple[str, ...] = ()
    table: str = ""
    format: str = "parquet"
    from_offset: int = 0
    to_offset: int = 0
    from_ms: int | None = None
    to_ms: int | None = None
    made: str = ""  # when the target was made: a topic that was deleted and made again has nothing of this

    def writer(self) -> str:
        """The name of this replay: the same for the same wish, so that it is granted once."""
        text = json.dumps([*self], separators=(",", ":"))
        return f"replay-{self.target[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class ReplayPart(NamedTuple):
    """What a replay takes from one partition."""

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


def chosen(rows: DataFrame, wanted: ReplayRequest) -> DataFrame:
    """The rows that were asked for."""
    if wanted.topics:
        rows = rows.where(F.col("topic").isin(*wanted.topics))
    if wanted.from_offset:
        rows = rows.where(F.col("offset") >= wanted.from_offset)
    if wanted.to_offset:
        rows = rows.where(F.col("offset") < wanted.to_offset)
    if wanted.from_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") >= wanted.from_ms)
    if wanted.to_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") < wanted.to_ms)
    return rows


def replayed(rows: DataFrame, *, jobs: bool = False) -> DataFrame:
    """What is written: key, value and envelope, in the order of the log they come from. `jobs` keeps task and
    priority too."""
    ordered = rows.orderBy("topic", "partition", "offset")
    return ordered.select(*(name for name in CARRIED if name in rows.columns and (jobs or name not in JOBS)))


def survey(rows: DataFrame) -> list[ReplayPart]:
    """What is there, partition by partition."""
    is_job = F.lit(False)
    if set(JOBS) <= set(rows.columns):
        is_job = (F.coalesce("task", F.lit("")) != "") | (F.coalesce("priority", F.lit(0)) != 0)
    found = rows.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min("timestamp").alias("first_at"),
        F.max("timestamp").alias("last_at"),
        F.count(F.when(is_job, 1)).alias("jobs"),
    )
    return sorted(ReplayPart(*row) for row in found.collect())


# --- the wiring -------------------------------------------------------------------------------------------------------


def source(
    spark: SparkSession, wanted: ReplayRequest, asked: Mapping[str, str], logs: Mapping[LogName, Extent]
) -> DataFrame:  # fmt: skip
    """The rows that were asked for: from the table, or from the logs, of which no more is read than needed."""
    if wanted.table:
        return chosen(open_table(spark, wanted.table, format=wanted.format).read(), wanted)
    found = dict(asked)
    if wanted.from_ms is not None:
        found["startingTimestamp"] = str(wanted.from_ms)
    else:
        found["startingOffsets"] = _offsets(logs, wanted.from_offset)
    if wanted.to_ms is not None:
        found["endingTimestamp"] = str(wanted.to_ms)
    else:
        found["endingOffsets"] = _offsets(logs, wanted.to_offset or OFFSET_MAX)
    return chosen(spark.read.format("driftq").options(**found).load(), wanted)


def _offsets(logs: Mapping[LogName, Extent], offset: int) -> str:
    """The same offset for every partition, as near as the partition comes to it."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), extent in logs.items():
        found.setdefault(topic, {})[str(partition)] = min(max(offset, extent.start), extent.end)
    return json.dumps(found)


def extents(broker: DriftQ, topics: tuple[str, ...]) -> dict[LogName, Extent]:
    """What the topics hold now."""
    return {
        (topic, each.partition): Extent(each.start_offset, each.end_offset)
        for topic in topics
        for each in _described(broker, topic).partitions
    }


def _described(broker: DriftQ, topic: str) -> TopicInfo:
    try:
        return broker.topics.describe(topic)
    except NotFound:
        raise SettingsError(f"there is no topic {topic}; make it with: driftq topics create {topic}") from None


def write(rows: DataFrame, wanted: ReplayRequest, asked: Mapping[str, str], *, direct: bool = False) -> None:
    """Write everything once. Raises what the sink says when the same replay was done before with other rows."""
    # Direct mode needs the same rows in the same order in a repeat: one task that reads them sorted.
    some = replayed(rows.coalesce(1) if direct else rows, jobs=direct)
    found = {**asked, "topic": wanted.target, "writer": wanted.writer(), "batchId": "0"}
    found["mode"] = "direct" if direct else "staged"
    (some.coalesce(1) if direct else some).write.format("driftq").mode("append").options(**found).save()


def wanted_of(configuration: Configuration) -> ReplayRequest:
    settings = configuration.replay
    topics = configuration.source.topics
    if not settings.table and not topics:
        raise SettingsError("replay needs replay.table or source.topics (--topic NAME): what is to be replayed")
    if configuration.sink.topic in topics and not settings.table:
        raise SettingsError(f"replaying {configuration.sink.topic!r} into itself doubles it; name another topic")
    return ReplayRequest(
        configuration.sink.topic,
        topics,
        absolute(settings.table),
        configuration.sink.format,
        settings.from_offset,
        settings.to_offset,
        _time_ms("from_time", settings.from_time),
        _time_ms("to_time", settings.to_time),
    )


def absolute(path: str) -> str:
    """The same table has one name, wherever the command is run."""
    return path if not path or "://" in path else str(local_folder(path))


def _time_ms(name: str, text: str) -> int | None:
    try:
        return from_rfc3339(text) if text else None
    except ValueError:
        raise SettingsError(f"replay.{name}: a time like 2030-01-01T00:00:00Z is expected, not {text!r}") from None


def finish_replay(spark: SparkSession, configuration: Configuration, stop: Stop, say: Say) -> int:
    """Say what there is to replay and, unless it is a dry run, write it."""
    wanted = wanted_of(configuration)
    with broker_of(configuration) as broker:
        wanted = wanted._replace(made=_described(broker, wanted.target).created_at)
        logs = {} if wanted.table else extents(broker, wanted.topics)
    rows = source(spark, wanted, {} if wanted.table else options(configuration), logs)
    parts = survey(rows)
    for part in parts:
        say(part.line())
    count, jobs = sum(part.rows for part in parts), sum(part.jobs for part in parts)
    mode = configuration.sink.mode
    if jobs and mode == "staged":
        raise SettingsError(f"{jobs:,} of the rows are jobs, which cannot be staged; leave sink.mode empty")
    direct = mode == "direct" or (jobs > 0 and not mode)
    if configuration.replay.dry_run:
        say(f"dry run: {count:,} rows would be written to {wanted.target} as {wanted.writer()}")
        return 0
    if count:
        write(rows, wanted, reach(configuration), direct=direct)
    say(f"{count:,} rows are in {wanted.target}, written once as {wanted.writer()}")
    return 0
