"""Proves on Spark that a table holds exactly what the log holds: no gap, no repeat, no other byte, for each partition.

Both sides are cut into buckets of offsets; a count and a checksum that hashes offset, key and value say whether two
buckets are the same. Only those that are not are looked at row by row. The table is read as a stranger reads it, by the
files in its folder, and compared with its own commits too, so that a change is noticed where the log is gone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from driftq.client.errors import NotFound
from driftq.spark.pipelines.archive import target_of
from driftq.spark.pipelines.audit_report import (
    AuditReport,
    BucketName,
    Extent,
    Kind,
    LogName,
    Mismatch,
    Total,
    comparable,
    differing,
    judged,
    whole,
)
from driftq.spark.pipelines.io import broker_of, reach
from driftq.spark.tables import ParquetTable, Table, open_table
from driftq.spark.tables.checksum import checksum_of, row_hash, totals
from driftq.spark.tables.ledger import FileSpan, merge_spans

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Say, Stop
    from driftq.spark.pipelines.settings import Configuration

COLUMNS = ("topic", "partition", "offset", "key", "value")
LOG_SCHEMA = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
BUCKET_OFFSETS = 1 << 16
BUCKETS_LOOKED_INTO = 64
TRIES = 3


def audit(
    spark: SparkSession,
    tables: Sequence[Table],
    broker: DriftQ,
    options: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    mismatches: int = 20,
) -> AuditReport:
    """Compare tables that together hold topics (an archive and its quarantine) with the log. `options` say which
    broker; `topics` leave out the others. Retention that passes during the comparison makes it begin again."""
    with ExitStack() as held:
        for table in tables:
            if isinstance(table, ParquetTable):
                held.enter_context(table.read_lock())
        for left in range(TRIES - 1, -1, -1):
            side = TableSide(tables, topics)
            log = extents(broker, side.whole)
            try:
                return _compared(spark, side, log, options, mismatches)
            except PySparkException:
                if not left or extents(broker, side.whole) == log:
                    raise
    raise AssertionError("the last try returns or raises")


class TableSide:
    """The table's rows as a stranger sees them, their totals, and what is wrong with its files."""

    def __init__(self, tables: Sequence[Table], topics: Sequence[str]) -> None:
        self.problems: list[str] = []
        self._spans: list[FileSpan] | None = []
        parts = [part for table in tables for part in self._part(table, topics)]
        self.rows = functools.reduce(DataFrame.unionByName, parts) if parts else None
        self.buckets: dict[BucketName, Total] = {} if self.rows is None else bucketed(self.rows)
        self.whole = whole(self.buckets)
        if self._spans is not None:
            self._compare_with_commits(merge_spans(self._spans))

    def _part(self, table: Table, topics: Sequence[str]) -> list[DataFrame]:
        """The rows of one table; none of one that does not exist yet."""
        if isinstance(table, ParquetTable):
            if not table.exists:
                return []
            ledger, rows, seen = table.visible()
            self.problems += table.file_problems(ledger, seen)
            if self._spans is not None:
                self._spans += [span for file in ledger.files.values() for span in file.spans if _asked(span, topics)]
        else:
            rows = table.read()
            self._spans = None
        missing = [name for name in COLUMNS if name not in rows.columns]
        if missing:
            raise ValueError(f"{table.path}: an audit needs the columns {', '.join(missing)}, which are not there")
        mine = rows.select(*COLUMNS)
        return [mine.where(F.col("topic").isin(*topics)) if topics else mine]

    def _compare_with_commits(self, spans: Sequence[FileSpan]) -> None:
        """Rows that are not those which were committed, whatever the log says."""
        committed = {(span.topic, span.partition): (span.rows, span.checksum) for span in spans}
        for name in sorted(committed.keys() | self.whole.keys()):
            total = self.whole.get(name)
            found = (0, 0) if total is None else total[2:]
            if committed.get(name, (0, 0)) != found:
                rows = committed.get(name, (0, 0))[0]
                self.problems.append(
                    f"{name[0]}/{name[1]}: {rows:,} rows were committed, {found[0]:,} are there"
                    + ("" if rows != found[0] else ", and some of them are others")
                )


def _asked(span: FileSpan, topics: Sequence[str]) -> bool:
    return not topics or span.topic in topics


def extents(broker: DriftQ, logs: Mapping[LogName, Total]) -> dict[LogName, Extent]:
    """What the broker holds of these logs now. One that is gone is left out."""
    found = {}
    for topic in sorted({topic for topic, _ in logs}):
        try:
            partitions = broker.topics.describe(topic).partitions
        except NotFound:
            continue
        for each in partitions:
            if (topic, each.partition) in logs:
                found[topic, each.partition] = Extent(each.start_offset, each.end_offset)
    return found


# --- comparing --------------------------------------------------------------------------------------------------------


def _compared(
    spark: SparkSession, side: TableSide, log: Mapping[LogName, Extent], options: Mapping[str, str], mismatches: int
) -> AuditReport:
    if side.rows is None or not side.whole:
        return AuditReport(problems=tuple(side.problems), doubts=("the table holds no rows",))
    ranges = comparable(side.whole, log)
    rows = _within(side.rows, side.whole, log)
    table_buckets = side.buckets if rows is side.rows else bucketed(rows)
    log_rows = log_frame(spark, ranges, options)
    log_buckets = {} if log_rows is None else bucketed(log_rows)
    different = differing(table_buckets, log_buckets)
    counted = {name: total.rows for name, total in whole(log_buckets).items()}
    partitions = judged(side.whole, log, counted, different)
    looked_into = different[:BUCKETS_LOOKED_INTO]
    kinds, examples = _mismatches(spark, rows, log_rows, looked_into, mismatches) if different else ({}, [])
    more = len(different) > len(looked_into)
    return AuditReport(partitions, tuple(examples), kinds, more, tuple(side.problems))


def _within(rows: DataFrame, table: Mapping[LogName, Total], log: Mapping[LogName, Extent]) -> DataFrame:
    """The rows that the log can speak about: not those below its start, and not those of a log that is gone."""
    for (topic, partition), total in table.items():
        extent = log.get((topic, partition))
        if extent is None or extent.start > total.first:
            mine = (F.col("topic") == topic) & (F.col("partition") == partition)
            rows = rows.where(~mine if extent is None else ~mine | (F.col("offset") >= extent.start))
    return rows


def bucket() -> Column:
    return F.floor(F.col("offset") / F.lit(BUCKET_OFFSETS)).cast("bigint").alias("bucket")


def bucketed(rows: DataFrame) -> dict[BucketName, Total]:
    found = totals(rows, [F.col("topic"), F.col("partition"), bucket()]).collect()
    return {
        (row["topic"], row["partition"], row["bucket"]): Total(row["first"], row["last"], row["rows"], checksum_of(row))
        for row in found
    }


def log_frame(spark: SparkSession, ranges: Mapping[LogName, Extent], options: Mapping[str, str]) -> DataFrame | None:
    """The log's rows of these ranges; None when there are none to read."""
    some = {name: extent for name, extent in ranges.items() if extent.start < extent.end}
    if not some:
        return None
    assign: dict[str, list[int]] = {}
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for (topic, partition), extent in some.items():
        assign.setdefault(topic, []).append(partition)
        starting.setdefault(topic, {})[str(partition)] = extent.start
        ending.setdefault(topic, {})[str(partition)] = extent.end
    asked = {
        **options,
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
    }
    return spark.read.format("driftq").schema(LOG_SCHEMA).options(**asked).load()


def _mismatches(
    spark: SparkSession, table: DataFrame, log: DataFrame | None, buckets: Sequence[BucketName], most: int
) -> tuple[dict[Kind, int], list[Mismatch]]:
    """Row by row, in the buckets that differ."""
    wanted = F.broadcast(spark.createDataFrame(list(buckets), "topic STRING, partition INT, bucket BIGINT"))
    mine = _each(table, wanted).withColumnRenamed("n", "table_n").withColumnRenamed("hash", "table_hash")
    empty = spark.createDataFrame([], LOG_SCHEMA)
    theirs = _each(empty if log is None else log, wanted).withColumnRenamed("n", "log_n")
    both = mine.join(theirs.withColumnRenamed("hash", "log_hash"), ["topic", "partition", "offset"], "full_outer")
    kind = (
        F.when(F.col("table_n").isNull(), "missing")
        .when(F.col("log_n").isNull(), "extra")
        .when(F.col("table_n") > 1, "repeated")
        .when(F.col("table_hash") != F.col("log_hash"), "changed")
    )
    wrong = both.withColumn("kind", kind).where(F.col("kind").isNotNull()).persist()
    try:
        counts: dict[Kind, int] = {row["kind"]: row["count"] for row in wrong.groupBy("kind").count().collect()}
        first = wrong.orderBy("topic", "partition", "offset").limit(most).collect()
    finally:
        wrong.unpersist()
    return counts, [Mismatch(row["kind"], row["topic"], row["partition"], row["offset"]) for row in first]


def _each(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """How often each offset is there, and its hash."""
    some = rows.select(*COLUMNS, bucket(), row_hash(COLUMNS).alias("hash"))
    found = some.join(wanted, ["topic", "partition", "bucket"], "left_semi")
    return found.groupBy("topic", "partition", "offset").agg(
        F.count(F.lit(1)).alias("n"), F.max("hash").alias("hash")
    )  # fmt: skip


# --- the pipeline -----------------------------------------------------------------------------------------------------


def finish_audit(spark: SparkSession, configuration: Configuration, stop: Stop, say: Say) -> int:
    """Audit the archive of a configuration and its quarantine, and say what was found. 0 exact, 1 differs, 2 cannot
    tell."""
    target = target_of(configuration)
    tables = [open_table(spark, target.table, format=target.format)]
    quarantine = open_table(spark, target.unfit, format=target.format)
    if isinstance(quarantine, ParquetTable) and quarantine.exists:
        tables.append(quarantine)
    with broker_of(configuration) as broker:
        report = audit(
            spark,
            tables,
            broker,
            reach(configuration),
            topics=configuration.source.topics,
            mismatches=configuration.audit.mismatches,
        )
    for line in report.lines():
        say(line)
    return report.code
