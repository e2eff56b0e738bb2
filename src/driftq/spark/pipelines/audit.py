"""The pipeline `audit`: proves that a table holds exactly what the log holds, for each partition.

    table (the newest version)  --buckets of 65,536 offsets--> count, checksum --+
                                                                                 +--> differing buckets --> row by row
    log (through the source)    --buckets of 65,536 offsets--> count, checksum --+

The checksum is the sum of a hash of offset, key and value, so a missing, extra, repeated or changed row shows. The
log is compared up to the table's last offset, or to where the archive's checkpoint has read if that is later: rows that
the query has passed and the table lacks are missing, not newer. The table is also compared with its own commits, and
its list of files with delta-rs's, so that a change is noticed even where the log is gone.
What the result means is in `audit_report`.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from driftq.client.errors import NotFound
from driftq.spark.checkpoint import Checkpoint
from driftq.spark.pipelines.audit_report import (
    DIFFERS,
    AuditReport,
    BucketName,
    Extent,
    Kind,
    LogName,
    Mismatch,
    Total,
    comparable,
    differing,
    partition_results,
    whole,
    with_passed,
)
from driftq.spark.pipelines.io import broker_of, broker_options
from driftq.spark.pipelines.query_monitor import QueryFailed
from driftq.spark.pipelines.settings import archive_checkpoint, archive_target, audit_every_ms, identity
from driftq.spark.tables import DeltaTable, Table, open_table
from driftq.spark.tables.checksum import checksum_of, row_hash, totals
from driftq.spark.tables.ledger import FileSpan, merge_spans

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Echo, Stop
    from driftq.spark.pipelines.settings import Configuration

COLUMNS = ("topic", "partition", "offset", "key", "value")
LOG_SCHEMA = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
BUCKET_OFFSETS = 1 << 16
BUCKETS_COMPARED_MAX = 64
ATTEMPTS_MAX = 3

Passed = tuple[
    Mapping[LogName, int], Mapping[LogName, int]
]  # for each log the first offset, and the one after the last


def audit(
    spark: SparkSession,
    tables: Sequence[Table],
    broker: DriftQ,
    options: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    mismatches: int = 20,
    passed: Passed = ({}, {}),
) -> AuditReport:
    """Compare tables that together hold topics (an archive and its quarantine) with the log. `options` name the broker;
    with `topics` only these are compared. `passed` is the range of offsets of each log that a query has committed, from
    its checkpoint. If retention trims the log during the comparison, it starts again."""
    first, end = ({log: at for log, at in ends.items() if not topics or log[0] in topics} for ends in passed)
    for attempts_left in range(ATTEMPTS_MAX - 1, -1, -1):
        side = TableSide(tables, topics)
        total = with_passed(side.whole, first, end)
        log = extents(broker, total)
        try:
            return _compare(spark, side, total, log, options, mismatches, end)
        except PySparkException:
            if not attempts_left or extents(broker, total) == log:
                raise
    raise AssertionError("the last attempt returns or raises")


class TableSide:
    """The rows of the tables, their totals, and what is wrong with their files."""

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
        """The rows of one table; none if it does not exist yet."""
        if not table.exists:
            return []
        if isinstance(table, DeltaTable):
            ledger = table.ledger()
            rows, problems = table.visible(ledger)
            self.problems += problems
            if not all(file.attempt for file in ledger.files.values()):
                self._spans = None  # Another program has rewritten files, and kept no checksums.
            if self._spans is not None:
                self._spans += [
                    span for file in ledger.files.values() for span in file.spans if not topics or span.topic in topics
                ]
        else:
            rows = table.read()
            self._spans = None
        missing = [name for name in COLUMNS if name not in rows.columns]
        if missing:
            raise ValueError(f"{table.path}: an audit needs the columns {', '.join(missing)}, which are missing")
        selected = rows.select(*COLUMNS)
        return [selected.where(F.col("topic").isin(*topics)) if topics else selected]

    def _compare_with_commits(self, spans: Sequence[FileSpan]) -> None:
        """Find rows that differ from what was committed, whatever the log has."""
        committed = {(span.topic, span.partition): (span.rows, span.checksum) for span in spans}
        for name in sorted(committed.keys() | self.whole.keys()):
            total = self.whole.get(name)
            present = (0, 0) if total is None else total[2:]
            if committed.get(name, (0, 0)) != present:
                rows = committed.get(name, (0, 0))[0]
                self.problems.append(
                    f"{name[0]}/{name[1]}: {rows:,} rows were committed, {present[0]:,} are there"
                    + ("" if rows != present[0] else ", and some of them differ")
                )


def extents(broker: DriftQ, logs: Mapping[LogName, Total]) -> dict[LogName, Extent]:
    """What the broker holds of these logs now. A log that is gone is left out."""
    held = {}
    for topic in sorted({topic for topic, _ in logs}):
        try:
            partitions = broker.topics.describe(topic).partitions
        except NotFound:
            continue
        for log in partitions:
            if (topic, log.partition) in logs:
                held[topic, log.partition] = Extent(log.start_offset, log.end_offset)
    return held


# --- comparing --------------------------------------------------------------------------------------------------------


def _compare(
    spark: SparkSession,
    side: TableSide,
    table: Mapping[LogName, Total],
    log: Mapping[LogName, Extent],
    options: Mapping[str, str],
    mismatches: int,
    passed: Mapping[LogName, int],
) -> AuditReport:
    """`table` has the totals of `side`, and empty ones for logs that the query has passed and the table lacks."""
    if not table:
        return AuditReport(problems=tuple(side.problems), doubts=("the table holds no rows",))
    ranges = comparable(table, log, passed)
    rows = _within(side.rows if side.rows is not None else spark.createDataFrame([], LOG_SCHEMA), table, log)
    table_buckets = side.buckets if rows is side.rows else bucketed(rows)
    log_rows = log_frame(spark, ranges, options)
    log_buckets = {} if log_rows is None else bucketed(log_rows)
    different = differing(table_buckets, log_buckets)
    log_counts = {name: total.rows for name, total in whole(log_buckets).items()}
    partitions = partition_results(table, log, log_counts, different, passed)
    examined = different[:BUCKETS_COMPARED_MAX]
    kinds, examples = _mismatches(spark, rows, log_rows, examined, mismatches) if different else ({}, [])
    more = len(different) > len(examined)
    return AuditReport(partitions, tuple(examples), kinds, more, tuple(side.problems))


def _within(rows: DataFrame, table: Mapping[LogName, Total], log: Mapping[LogName, Extent]) -> DataFrame:
    """The rows that can be compared: not those before the start of the log, and not those of a log that is gone."""
    for (topic, partition), total in table.items():
        extent = log.get((topic, partition))
        if extent is None or extent.start > total.first:
            in_log = (F.col("topic") == topic) & (F.col("partition") == partition)
            rows = rows.where(~in_log if extent is None else ~in_log | (F.col("offset") >= extent.start))
    return rows


def bucket() -> Column:
    return F.floor(F.col("offset") / F.lit(BUCKET_OFFSETS)).cast("bigint").alias("bucket")


def bucketed(rows: DataFrame) -> dict[BucketName, Total]:
    rows_of_totals = totals(rows, [F.col("topic"), F.col("partition"), bucket()]).collect()
    return {
        (row["topic"], row["partition"], row["bucket"]): Total(row["first"], row["last"], row["rows"], checksum_of(row))
        for row in rows_of_totals
    }


def log_frame(spark: SparkSession, ranges: Mapping[LogName, Extent], options: Mapping[str, str]) -> DataFrame | None:
    """The log's rows in these ranges; None if all are empty."""
    nonempty = {name: extent for name, extent in ranges.items() if extent.start < extent.end}
    if not nonempty:
        return None
    assign: dict[str, list[int]] = {}
    starting: dict[str, dict[str, int]] = {}
    ending: dict[str, dict[str, int]] = {}
    for (topic, partition), extent in nonempty.items():
        assign.setdefault(topic, []).append(partition)
        starting.setdefault(topic, {})[str(partition)] = extent.start
        ending.setdefault(topic, {})[str(partition)] = extent.end
    source = {
        **options,
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
    }
    return spark.read.format("driftq").schema(LOG_SCHEMA).options(**source).load()


def _mismatches(
    spark: SparkSession, table: DataFrame, log: DataFrame | None, buckets: Sequence[BucketName], limit: int
) -> tuple[dict[Kind, int], list[Mismatch]]:
    """Compare row by row in the buckets that differ: counts by kind, and the first mismatches."""
    selected = F.broadcast(spark.createDataFrame(list(buckets), "topic STRING, partition INT, bucket BIGINT"))
    in_table = _row_hashes(table, selected).withColumnRenamed("n", "table_n").withColumnRenamed("hash", "table_hash")
    empty = spark.createDataFrame([], LOG_SCHEMA)
    in_log = _row_hashes(empty if log is None else log, selected).withColumnRenamed("n", "log_n")
    both = in_table.join(in_log.withColumnRenamed("hash", "log_hash"), ["topic", "partition", "offset"], "full_outer")
    kind = (
        F.when(F.col("table_n").isNull(), "missing")
        .when(F.col("log_n").isNull(), "extra")
        .when(F.col("table_n") > 1, "repeated")
        .when(F.col("table_hash") != F.col("log_hash"), "changed")
    )
    wrong = both.withColumn("kind", kind).where(F.col("kind").isNotNull()).persist()
    try:
        counts: dict[Kind, int] = {row["kind"]: row["count"] for row in wrong.groupBy("kind").count().collect()}
        first = wrong.orderBy("topic", "partition", "offset").limit(limit).collect()
    finally:
        wrong.unpersist()
    return counts, [Mismatch(row["kind"], row["topic"], row["partition"], row["offset"]) for row in first]


def _row_hashes(rows: DataFrame, buckets: DataFrame) -> DataFrame:
    """How often each offset occurs in these buckets, and its hash."""
    hashed = rows.select(*COLUMNS, bucket(), row_hash(COLUMNS).alias("hash"))
    in_buckets = hashed.join(buckets, ["topic", "partition", "bucket"], "left_semi")
    return in_buckets.groupBy("topic", "partition", "offset").agg(
        F.count(F.lit(1)).alias("n"), F.max("hash").alias("hash")
    )  # fmt: skip


# --- the pipeline -----------------------------------------------------------------------------------------------------


def run_audit(spark: SparkSession, configuration: Configuration, stop: Stop, echo: Echo) -> int:
    """Audit an archive and its quarantine, and print the report. Returns 0 exact, 1 differs, 2 cannot tell."""
    report = audit_archive(spark, configuration)
    for line in report.lines():
        echo(line)
    return report.code


def audit_archive(spark: SparkSession, configuration: Configuration) -> AuditReport:
    """Audit an archive and its quarantine, which may be running. The checkpoint is read before the table: a batch is in
    the table before it is done in the checkpoint."""
    passed = Checkpoint(archive_checkpoint(configuration)).passed()
    target = archive_target(configuration)
    tables = [
        open_table(spark, path, storage_options=target.storage) for path in (target.table, target.quarantine_path)
    ]
    with broker_of(configuration) as broker:
        return audit(
            spark,
            tables,
            broker,
            broker_options(configuration),
            topics=configuration.source.topics,
            mismatches=configuration.audit.mismatches,
            passed=passed,
        )


class PeriodicAudit:
    """Audits an archive while it runs: `poll` does so when the interval is over. Raises `QueryFailed` if the table
    differs from the log, which ends the pipeline."""

    def __init__(
        self, spark: SparkSession, configuration: Configuration, echo: Echo, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._configuration = configuration
        self._echo = echo
        self.on_verdict: Callable[[str], None] = lambda verdict: None
        self._now_s = now_s
        self._every_s = audit_every_ms(configuration) / 1_000
        self._next_s = now_s() + self._every_s

    def poll(self) -> None:
        if self._every_s and self._now_s() >= self._next_s:
            self.run()

    def run(self) -> None:
        report = audit_archive(self._spark, self._configuration)
        self._next_s = self._now_s() + self._every_s
        self.on_verdict(report.verdict())
        name = identity(self._configuration)
        for line in report.lines() if report.code == DIFFERS else [report.verdict()]:
            self._echo(f"{name}: audit: {line}")
        if report.code == DIFFERS:
            raise QueryFailed(f"{name}: the audit found that {self._configuration.sink.table} differs from the log")
