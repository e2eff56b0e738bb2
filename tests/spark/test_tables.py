"""The embedded table on a real Spark: what a commit writes, what other programs read, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from driftq.spark.pipelines.query_monitor import Stop
from driftq.spark.pipelines.registry import run_compact
from driftq.spark.pipelines.settings import Configuration, SinkSettings
from driftq.spark.tables import (
    BatchKnown,
    BatchRefused,
    Committed,
    Compacted,
    Compaction,
    FormatMissing,
    ParquetTable,
    TableBusy,
    TableDamaged,
    open_table,
)
from driftq.spark.tables.checksum import span_of, totals
from driftq.spark.tables.commits import CommitLog
from driftq.spark.tables.delta import append_options
from driftq.spark.tables.ledger import merge_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_S = 86_400


def rows_of(spark: SparkSession, first: int, end: int, *, topic: str = "orders", partition: int = 0) -> DataFrame:
    """Rows as an archive has them: 1,000 in a day."""
    at = F.timestamp_seconds(F.lit(20_000 * DAY_S) + F.col("id") * F.lit(DAY_S / 1_000))
    return spark.range(first, end, 1, 1).select(
        F.lit(topic).alias("topic"),
        F.lit(partition).alias("partition"),
        F.col("id").alias("offset"),
        at.alias("timestamp"),
        F.when(F.col("id") % 2 == 0, F.lit(b"k")).alias("key"),
        F.concat(F.lit("value "), F.col("id").cast("string")).cast("binary").alias("value"),
        F.to_date(at).alias("date"),
    )


def table_in(spark: SparkSession, folder: Path, log: CommitLog | None = None) -> ParquetTable:
    return ParquetTable(spark, str(folder), ("topic", "date"), log=log, lock_wait_s=0.0)


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


def test_a_batch_is_committed_once_and_read_by_other_tools(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)

    first = table.commit("w", 0, rows_of(spark, 0, 1_500))
    again = table.commit("w", 0, rows_of(spark, 0, 1_500))
    second = table.commit("w", 1, rows_of(spark, 1_500, 1_510))

    assert isinstance(first, Committed)
    assert (first.version, first.rows, first.files, first.rows_held) == (0, 1_500, 2, 0)
    assert again == BatchKnown("w", 0)
    assert isinstance(second, Committed)
    assert offsets(table.read()) == offsets(spark.read.parquet(str(tmp_path))) == list(range(1_510))
    assert table.committed("w") == 1
    assert table.positions() == {"orders": {0: 1_510}}
    assert not list((tmp_path / "_driftq" / "staging").iterdir())
    committed_spans = merge_spans(span for file in table.ledger().files.values() for span in file.spans)
    assert committed_spans == [
        span_of(row) for row in totals(table.read(), [F.col("topic"), F.col("partition")]).collect()
    ]


def test_a_batch_that_is_not_allowed_is_refused_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    table.commit("w", 5, rows_of(spark, 0, 10))

    refusals = [
        table.commit("w", 5, rows_of(spark, 5, 15).withColumn("value", F.lit(b"other"))),
        table.commit("another", 0, rows_of(spark, 5, 15).where("offset != 7")),
        table.commit("w", 6, rows_of(spark, 10, 20).union(rows_of(spark, 15, 20))),
        table.commit("w", 6, rows_of(spark, 10, 20).withColumn("value", F.lit(1))),
    ]

    codes = [refusal.code for refusal in refusals if isinstance(refusal, BatchRefused)]
    assert codes == ["CONTENT_DIFFERS", "CONTENT_DIFFERS", "ROWS_REPEATED", "SCHEMA_CHANGED"]
    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(10))
    assert isinstance(table.commit("w", 6, rows_of(spark, 10, 20)), Committed)
    assert offsets(table.read()) == list(range(20))


def test_of_a_batch_only_what_the_table_lacks_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever its number and its writer are; also into a hole that an earlier version left."""
    table = table_in(spark, tmp_path)
    table.commit("w", 5, rows_of(spark, 0, 10))
    table.commit("w", 6, rows_of(spark, 20, 30))

    both = rows_of(spark, 5, 15).union(rows_of(spark, 0, 5, partition=1))
    outcomes = [
        table.commit("w", 6, both),
        table.commit("w", 4, rows_of(spark, 0, 12)),
        table.commit("another", 0, rows_of(spark, 0, 40)),
        table.commit("another", 1, rows_of(spark, 0, 40)),
    ]

    appended = [(outcome.rows, outcome.rows_held) for outcome in outcomes if isinstance(outcome, Committed)]
    assert appended == [(10, 5), (15, 25)]
    assert outcomes[1] == BatchKnown("w", 4)
    assert outcomes[3] == BatchKnown("another", 1)
    seen = sorted((row.partition, row.offset) for row in spark.read.parquet(str(tmp_path)).collect())
    assert seen == [(0, offset) for offset in range(40)] + [(1, offset) for offset in range(5)]


def test_names_that_need_care_in_a_path_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path / "a table")
    names = ["007", "a:b", "runs/1 %2F é"]
    rows = rows_of(spark, 0, 3, topic=names[0])
    for name in names[1:]:
        rows = rows.union(rows_of(spark, 0, 3, topic=name))

    assert isinstance(table.commit("w", 0, rows), Committed)

    assert {row.topic for row in table.read().collect()} == set(names)
    assert table.positions() == {name: {0: 3} for name in names}


def test_columns_may_be_added_and_are_null_before(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    table.commit("w", 0, rows_of(spark, 0, 2).withColumn("body", F.struct(F.lit(1).alias("x"))))
    wider = rows_of(spark, 2, 4).withColumn("body", F.struct(F.lit(2).alias("x"), F.lit("y").alias("y")))
    table.commit("w", 1, wider.withColumn("extra", F.lit(7)))
    table.commit("w", 2, rows_of(spark, 4, 5))

    rows = [(row.body and tuple(row.body), row.extra) for row in table.read().orderBy("offset").collect()]

    assert rows == [((1, None), None)] * 2 + [((2, "y"), 7)] * 2 + [(None, None)]


def test_small_files_become_one_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    for batch_id in range(3):
        table.commit("w", batch_id, rows_of(spark, 10 * batch_id, 10 * batch_id + 10))
    before = table.ledger()

    with table.read_lock():
        assert table_in(spark, tmp_path).compact(Compaction(files_min=3)) == Compacted()
    done = table.compact(Compaction(files_min=3))

    assert (done.files, done.into) == (3, 1)
    assert offsets(spark.read.parquet(str(tmp_path))) == offsets(table.read()) == list(range(30))
    after = table.ledger()
    assert (after.held, after.writers) == (before.held, before.writers)
    assert table.commit("w", 2, rows_of(spark, 20, 30)) == BatchKnown("w", 2)
    assert table.compact(Compaction(files_min=2)) == Compacted()


def test_a_table_is_compacted_on_demand_until_nothing_is_left_to_do(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    for batch_id in range(2):
        table.commit("w", batch_id, rows_of(spark, 10 * batch_id, 10 * batch_id + 10))
    configuration = Configuration(sink=SinkSettings(table=str(tmp_path)))
    lines: list[str] = []

    for _ in range(2):
        assert run_compact(spark, configuration, Stop(), lines.append) == 0

    assert len(lines) == 1
    assert "2 files became 1" in lines[0]
    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(20))


def test_a_compaction_that_would_change_rows_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    for batch_id in range(2):
        table.commit("w", batch_id, rows_of(spark, 10 * batch_id, 10 * batch_id + 10))
    one, other = sorted(tmp_path.rglob("*.parquet"))
    one.write_bytes(other.read_bytes())

    with pytest.raises(TableDamaged, match="differ from what was committed"):
        table.compact(Compaction(files_min=2))

    assert len(list(tmp_path.glob("topic=*/*/*.parquet"))) == 2


class Ended(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(("name", "seen"), [("commit.link", 10), ("place.move", 20)])
def test_a_writer_that_ends_around_the_commit_leaves_the_batch_out_or_in(
    spark: SparkSession, tmp_path: Path, name: str, seen: int
) -> None:
    table_in(spark, tmp_path).commit("w", 0, rows_of(spark, 0, 10))

    def fault_hook(step: str) -> None:
        if step == name:
            raise Ended

    with pytest.raises(Ended):
        table_in(spark, tmp_path, CommitLog(tmp_path, fault_hook=fault_hook)).commit("w", 1, rows_of(spark, 10, 20))

    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(10)), "another program sees what is not there yet"
    assert offsets(table_in(spark, tmp_path).read()) == list(range(seen))
    table_in(spark, tmp_path).commit("w", 1, rows_of(spark, 10, 20))
    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(20))


def test_two_writers_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    with CommitLog(tmp_path).writer_lock(0.0), pytest.raises(TableBusy):
        table.commit("w", 0, rows_of(spark, 0, 1))


def test_a_table_without_offsets_takes_any_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path))
    counts = spark.createDataFrame([("a", 1), ("b", 2)], "label STRING, n INT")

    assert isinstance(table.commit("w", 0, counts), Committed)
    assert table.commit("w", 0, counts) == BatchKnown("w", 0)
    assert table.commit("w", 1, counts.where("n > 5")) == Committed(0, 0, 0, 0)
    assert isinstance(table.commit("w", 2, counts), Committed)
    assert sorted(row.n for row in table.read().collect()) == [1, 1, 2, 2]
    assert table.positions() == {}


def test_what_cannot_be_a_table_is_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="s3a use format 'delta'"):
        open_table(spark, "s3a://bucket/table")
    with pytest.raises(ValueError, match="parquet and delta"):
        open_table(spark, str(tmp_path), format="iceberg")
    with pytest.raises(FormatMissing, match=r"spark\.jars\.packages"):
        open_table(spark, str(tmp_path), format="delta")
    assert append_options("w", 3) == {"txnAppId": "w", "txnVersion": "3", "mergeSchema": "true"}
