"""The pipeline `archive`: topics into a table, each message once, partitioned by topic and day, with the envelope.

`dated` is a function from frame to frame, and so is `json_values.parsed`. A micro-batch is compared with the table by
its offsets: what the table holds is left out, the rest is appended. So an older or lost checkpoint neither loses nor
repeats a message, and a new checkpoint starts where the table ends. Rows that do not match a declared schema go to the
quarantine, a table of the same kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from driftq.client.errors import NotFound
from driftq.spark.checkpoint import Checkpoint
from driftq.spark.pipelines.io import broker_of, read_stream
from driftq.spark.pipelines.json_values import BODY, REASON, parsed, schema_of
from driftq.spark.pipelines.settings import ArchiveTarget, Configuration, archive_target, checkpoint, identity
from driftq.spark.source.options import EARLIEST
from driftq.spark.tables import BatchRefused, Compaction, Table, TableRefused, open_table

if TYPE_CHECKING:
    from driftq.client.api import DriftQ

PARTITION_BY = ("topic", "date")
_QUERY_ID = "sql.streaming.queryId"


# --- functions from frame to frame ------------------------------------------------------------------------------------


def dated(rows: DataFrame) -> DataFrame:
    """Adds the column `date`: the day of the timestamp in UTC, whatever the session's time zone is."""
    day = F.floor(F.unix_millis("timestamp") / F.lit(86_400_000)).cast("int")
    return rows.withColumn("date", F.date_from_unix_date(day))


def valid_rows(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REASON).isNull()).drop(REASON)


def invalid_rows(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REASON).isNotNull()).drop(BODY)


# --- one micro-batch --------------------------------------------------------------------------------------------------


class ArchiveTables:
    """The table and the quarantine of an archive. They are opened once and read what is new in their logs."""

    def __init__(self, spark: SparkSession, target: ArchiveTarget) -> None:
        self.target = target
        self.table, self.quarantine = (
            open_table(spark, path, partition_by=PARTITION_BY, storage_options=target.storage)
            for path in (target.table, target.quarantine_path)
        )

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one in the table or its quarantine."""
        ends: dict[str, dict[int, int]] = {}
        for table in (self.table, self.quarantine):
            for topic, partitions in table.positions().items():
                topic_ends = ends.setdefault(topic, {})
                for number, offset in partitions.items():
                    topic_ends[number] = max(offset, topic_ends.get(number, 0))
        return ends


def committer(tables: ArchiveTables) -> Callable[[DataFrame, int], None]:
    """The function that a query calls with each micro-batch. If the table refuses a batch, the query fails."""

    def commit(rows: DataFrame, batch_id: int) -> None:
        writer = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert writer, "Spark sets the id of the query for every micro-batch"
        commit_batch(rows, tables, writer, batch_id)

    return commit


def commit_batch(rows: DataFrame, tables: ArchiveTables, writer: str, batch_id: int) -> None:
    """Commit valid rows to the table and the others to the quarantine, each once; the quarantine first. A batch that is
    run again after a crash between the two finds the first one done."""
    schema = tables.target.schema
    if not schema:
        _commit(tables.table, tables.target, writer, batch_id, dated(rows))
        return
    with_body = parsed(dated(rows), schema).persist()  # written twice, fetched once
    try:
        _commit(tables.quarantine, tables.target, writer, batch_id, invalid_rows(with_body))
        _commit(tables.table, tables.target, writer, batch_id, valid_rows(with_body))
    finally:
        with_body.unpersist()


def _commit(table: Table, target: ArchiveTarget, writer: str, batch_id: int, rows: DataFrame) -> None:
    outcome = table.commit(writer, batch_id, rows)
    if isinstance(outcome, BatchRefused):
        raise TableRefused(table.path, outcome)
    if target.compact_files:
        table.compact(Compaction(files_min=target.compact_files))


# --- the query --------------------------------------------------------------------------------------------------------


def start_archive(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    """Start or resume the query. With a new checkpoint and a table that has rows, the query starts where the table
    ends."""
    target = archive_target(configuration)
    if target.schema:
        schema_of(target.schema)
    run = configuration.pipeline
    checkpoint_path = checkpoint(configuration)
    tables = ArchiveTables(spark, target)
    Checkpoint(checkpoint_path).mend()
    if not has_offsets(checkpoint_path):
        held = tables.positions()
        if held:
            with broker_of(configuration) as broker:
                starting = resume_offsets(held, partitions_of(broker, configuration))
            configuration = replace(configuration, source=replace(configuration.source, starting=starting))
    writer = read_stream(spark, configuration).writeStream.foreachBatch(committer(tables))
    writer = writer.trigger(availableNow=True) if run.once else writer.trigger(processingTime=run.trigger)
    return writer.queryName(identity(configuration)).option("checkpointLocation", checkpoint_path).start()


def has_offsets(checkpoint_path: str) -> bool:
    """Whether a checkpoint contains offsets. One on a remote file system is assumed to have some."""
    if "://" in checkpoint_path:
        return True
    offsets = Path(checkpoint_path, "offsets")
    return offsets.is_dir() and any(path.name.isdigit() for path in offsets.iterdir())


def partitions_of(broker: DriftQ, configuration: Configuration) -> dict[str, list[int]]:
    """The partitions of every topic to read."""
    source = configuration.source
    names = [name for name in broker.topics.list() if re.fullmatch(source.pattern, name)] if source.pattern else []
    partitions: dict[str, list[int]] = {}
    for name in source.topics or names:
        try:
            partitions[name] = [log.partition for log in broker.topics.describe(name).partitions]
        except NotFound:
            continue  # The source reports it.
    return partitions


def resume_offsets(held: Mapping[str, Mapping[int, int]], partitions: Mapping[str, list[int]]) -> str:
    """The option `startingOffsets`: where the table ends, and the earliest offset of partitions it does not hold."""
    offsets = {
        topic: {str(number): held.get(topic, {}).get(number, EARLIEST) for number in numbers}
        for topic, numbers in partitions.items()
    }
    return json.dumps(offsets)
