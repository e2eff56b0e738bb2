"""Topics into a table, each message once: partitioned by topic and day, with the envelope, JSON read on demand.

`dated` and `parsed` are functions from frame to frame. A micro-batch is committed under the query's id and its number;
the table refuses offsets that it holds, so even a lost checkpoint doubles nothing, and a new one begins where the table
ends. Rows that do not fit a declared schema go to a quarantine, a table of the same kind, and are missing from nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from driftq.client.errors import NotFound
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines.configuration import checkpoint, identity
from driftq.spark.pipelines.io import broker_of, read_stream
from driftq.spark.source.options import EARLIEST
from driftq.spark.tables import BatchRefused, Compaction, Table, TableRefused, open_table

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Say, Stop
    from driftq.spark.pipelines.settings import Configuration

PARTITION_BY = ("topic", "date")
BODY = "body"
REASON = "quarantine_reason"
_CORRUPT = "_does_not_fit"
_QUERY_ID = "sql.streaming.queryId"


class ArchiveTarget(Struct, frozen=True):
    """Where rows go, and how. `schema` is what JSON values look like, as in CREATE TABLE; empty: leave them alone."""

    table: str
    format: str = "parquet"
    schema: str = ""
    quarantine: str = ""
    compact_files: int = 0

    @property
    def unfit(self) -> str:
        return self.quarantine or self.table.rstrip("/") + ".quarantine"


# --- functions from frame to frame ------------------------------------------------------------------------------------


def dated(rows: DataFrame) -> DataFrame:
    """With the column `date`: the day of the timestamp in UTC, whatever the session's time zone."""
    day = F.floor(F.unix_millis("timestamp") / F.lit(86_400_000)).cast("int")
    return rows.withColumn("date", F.date_from_unix_date(day))


def parsed(rows: DataFrame, schema: str) -> DataFrame:
    """With the columns `body`, what the JSON value says by the schema, and `quarantine_reason`, null where it fits.
    A field that the schema says is NOT NULL must be there; fields that it does not name are passed over."""
    kind = schema_of(schema)
    text = F.col("value").cast("string")
    raw = F.from_json(
        F.when(F.is_valid_utf8(text), text),
        StructType([*kind.fields, StructField(_CORRUPT, StringType())]),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    held = rows.withColumn("_raw", raw)
    reason = F.when(~F.is_valid_utf8(text), F.lit("the value is not UTF-8 text")).when(
        F.col("_raw").isNull() | F.col(f"_raw.{_CORRUPT}").isNotNull(), F.lit("the value does not fit the schema")
    )
    for field in kind.fields:
        if not field.nullable:
            reason = reason.when(_field(field.name).isNull(), F.lit(f"{field.name} is missing"))
    body = F.struct(*(_field(field.name).alias(field.name) for field in kind.fields))
    return held.withColumn(REASON, reason).withColumn(BODY, F.when(F.col(REASON).isNull(), body)).drop("_raw")


def schema_of(text: str) -> StructType:
    """A schema as in CREATE TABLE. Raises `SettingsError`."""
    try:
        kind = StructType.fromDDL(text)
    except PySparkException as error:
        raise SettingsError(f"archive.schema: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(kind, StructType):
        raise SettingsError(f"archive.schema is a list of columns such as 'id BIGINT, total DOUBLE', not {text!r}")
    return kind


def _field(name: str) -> Column:
    return F.col("_raw").getField(name)


def fitting(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REASON).isNull()).drop(REASON)


def unfitting(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REASON).isNotNull()).drop(BODY)


# --- one micro-batch --------------------------------------------------------------------------------------------------


def committer(target: ArchiveTarget) -> Callable[[DataFrame, int], None]:
    """What a query calls with each micro-batch. A refusal of the table ends the query and says why."""

    def commit(rows: DataFrame, batch_id: int) -> None:
        writer = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert writer, "Spark tells every micro-batch the id of its query"
        commit_batch(rows, target, writer, batch_id)

    return commit


def commit_batch(rows: DataFrame, target: ArchiveTarget, writer: str, batch_id: int) -> None:
    """Rows that fit into the table, others into the quarantine, each once; the quarantine first. A batch that comes
    again after a crash between the two finds one of them done."""
    spark = rows.sparkSession
    table = open_table(spark, target.table, partition_by=PARTITION_BY, format=target.format)
    if not target.schema:
        _put(table, target, writer, batch_id, dated(rows))
        return
    quarantine = open_table(spark, target.unfit, partition_by=PARTITION_BY, format=target.format)
    told = parsed(dated(rows), target.schema).persist()  # Two writes, and the broker is asked once.
    try:
        _put(quarantine, target, writer, batch_id, unfitting(told))
        _put(table, target, writer, batch_id, fitting(told))
    finally:
        told.unpersist()


def _put(table: Table, target: ArchiveTarget, writer: str, batch_id: int, rows: DataFrame) -> None:
    outcome = table.commit(writer, batch_id, rows)
    if isinstance(outcome, BatchRefused):
        raise TableRefused(table.path, outcome)
    if target.compact_files:
        table.compact(Compaction(files_min=target.compact_files))


# --- the query --------------------------------------------------------------------------------------------------------


def start_archive(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    """Start or go on. With a checkpoint that has nothing yet, a table that has something says where to begin."""
    target = target_of(configuration)
    if target.schema:
        schema_of(target.schema)
    run = configuration.pipeline
    place = checkpoint(configuration)
    if not began(place):
        held = positions(spark, target)
        if held:
            with broker_of(configuration) as broker:
                starting = resumed(held, partitions_of(broker, configuration))
            configuration = replace(configuration, source=replace(configuration.source, starting=starting))
    writer = read_stream(spark, configuration).writeStream.foreachBatch(committer(target))
    writer = writer.trigger(availableNow=True) if run.once else writer.trigger(processingTime=run.trigger)
    return writer.queryName(identity(configuration)).option("checkpointLocation", place).start()


def target_of(configuration: Configuration) -> ArchiveTarget:
    settings = configuration.archive
    return ArchiveTarget(
        configuration.sink.table,
        configuration.sink.format,
        settings.schema,
        settings.quarantine,
        settings.compact_files,
    )


def began(place: str) -> bool:
    """Whether a checkpoint knows an offset. One that is not a folder here counts as begun: it speaks for itself."""
    if "://" in place:
        return True
    offsets = Path(place, "offsets")
    return offsets.is_dir() and any(path.name.isdigit() for path in offsets.iterdir())


def positions(spark: SparkSession, target: ArchiveTarget) -> dict[str, dict[int, int]]:
    """Where table and quarantine together end, for each topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for path in (target.table, target.unfit):
        held = open_table(spark, path, partition_by=PARTITION_BY, format=target.format).positions()
        for topic, partitions in held.items():
            mine = found.setdefault(topic, {})
            for number, offset in partitions.items():
                mine[number] = max(offset, mine.get(number, 0))
    return found


def partitions_of(broker: DriftQ, configuration: Configuration) -> dict[str, list[int]]:
    """The partitions of every topic that is to be read."""
    source = configuration.source
    names = [name for name in broker.topics.list() if re.fullmatch(source.pattern, name)] if source.pattern else []
    found: dict[str, list[int]] = {}
    for name in source.topics or names:
        try:
            found[name] = [each.partition for each in broker.topics.describe(name).partitions]
        except NotFound:
            continue  # The source says so, in its own words.
    return found


def resumed(held: Mapping[str, Mapping[int, int]], partitions: Mapping[str, list[int]]) -> str:
    """The option that begins where a table ends, and at the start of what the table has never seen."""
    offsets = {
        topic: {str(number): held.get(topic, {}).get(number, EARLIEST) for number in numbers}
        for topic, numbers in partitions.items()
    }
    return json.dumps(offsets)


# --- Puts the small files of a table together, by itself: for tables whose pipelines do not, or have ended ---


def finish_compact(spark: SparkSession, configuration: Configuration, stop: Stop, say: Say) -> int:
    """Compact the table of a configuration and say what was done."""
    table = open_table(spark, configuration.sink.table, format=configuration.sink.format)
    while not stop.wanted:
        done = table.compact(Compaction(files_min=configuration.compact.files_min))
        if not done.files:
            break
        say(f"{table.path}: {done.files:,} files became {done.into:,} ({done.size_bytes / (1 << 20):,.1f} MiB)")
        if done.into >= done.files:
            break  # The session cuts files smaller than we would; going on would never end.
    return 0
