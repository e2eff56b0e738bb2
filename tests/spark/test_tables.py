"""Tables on a real Spark: what a commit writes, what other readers read, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
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
    DeltaTable,
    NoTable,
    TableDamaged,
    open_table,
)
from driftq.spark.tables.checksum import span_of, totals
from driftq.spark.tables.delta_log import DeltaLog
from driftq.spark.tables.ledger import merge_spans
from driftq.spark.tables.storage import LocalFiles

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


def table_in(spark: SparkSession, folder: Path, log: DeltaLog | None = None) -> DeltaTable:
    return DeltaTable(spark, str(folder), ("topic", "date"), log=log)


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


def offsets_of_others(folder: Path) -> list[int]:
    """As delta-rs and pyarrow read the table."""
    return sorted(deltalake.DeltaTable(folder).to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())


def test_a_batch_is_committed_once_and_read_by_other_tools(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)

    first = table.commit("w", 0, rows_of(spark, 0, 1_500))
    again = table.commit("w", 0, rows_of(spark, 0, 1_500))
    second = table.commit("w", 1, rows_of(spark, 1_500, 1_510))

    assert isinstance(first, Committed)
    assert (first.version, first.rows, first.files, first.rows_held) == (0, 1_500, 2, 0)
    assert again == BatchKnown("w", 0)
    assert isinstance(second, Committed)
    assert offsets(table.read()) == offsets_of_others(tmp_path) == list(range(1_510))
    assert table.committed("w") == 1
    assert table.positions() == {"orders": {0: 1_510}}
    committed_spans = merge_spans(span for file in table.ledger().files.values() for span in file.spans)
    assert committed_spans == [
        span_of(row) for row in totals(table.read(), [F.col("topic"), F.col("partition")]).collect()
    ]


def test_a_batch_that_must_not_be_is_refused_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
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
    assert offsets_of_others(tmp_path) == list(range(10))
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
    seen = sorted((row.partition, row.offset) for row in table_in(spark, tmp_path).read().collect())
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

    reading = table.read()
    done = table.compact(Compaction(files_min=3))

    assert (done.files, done.into) == (3, 1)
    assert offsets_of_others(tmp_path) == offsets(table.read()) == list(range(30))
    after = table.ledger()
    assert (after.held("orders", 0), after.writers) == (before.held("orders", 0), before.writers)
    assert offsets(reading) == list(range(30)), "the files of an older version are gone"
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
    assert offsets_of_others(tmp_path) == list(range(20))


def test_a_compaction_that_would_change_rows_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = table_in(spark, tmp_path)
    for batch_id in range(2):
        table.commit("w", batch_id, rows_of(spark, 10 * batch_id, 10 * batch_id + 10))
    one, other = sorted(tmp_path.rglob("*.parquet"))
    one.write_bytes(other.read_bytes())

    with pytest.raises(TableDamaged, match="differ from what was committed"):
        table.compact(Compaction(files_min=2))

    assert table.ledger().version == 1


class Ended(BaseException):
    """The process ends here."""


class EndingFiles(LocalFiles):
    """A folder whose process ends before or after a version gets its name."""

    def __init__(self, folder: Path, *, before: bool) -> None:
        super().__init__(folder)
        self._before = before

    def link(self, fresh: Path, path: str) -> bool:
        if not self._before:
            super().link(fresh, path)
        raise Ended


@pytest.mark.parametrize(("before", "seen"), [(True, 10), (False, 20)])
def test_a_writer_that_ends_around_the_commit_leaves_the_batch_out_or_in(
    spark: SparkSession, tmp_path: Path, before: bool, seen: int
) -> None:
    table_in(spark, tmp_path).commit("w", 0, rows_of(spark, 0, 10))

    ending = table_in(spark, tmp_path, DeltaLog(EndingFiles(tmp_path, before=before)))
    with pytest.raises(Ended):
        ending.commit("w", 1, rows_of(spark, 10, 20))

    assert offsets_of_others(tmp_path) == offsets(table_in(spark, tmp_path).read()) == list(range(seen))
    table_in(spark, tmp_path).commit("w", 1, rows_of(spark, 10, 20))
    assert offsets_of_others(tmp_path) == list(range(20))


class RacedFiles(LocalFiles):
    """A folder in which another writer always makes the next version first, some times."""

    def __init__(self, folder: Path, *others: Callable[[], object]) -> None:
        super().__init__(folder)
        self._others = list(others)

    def link(self, fresh: Path, path: str) -> bool:
        if self._others:
            self._others.pop(0)()
        return super().link(fresh, path)


def test_a_writer_that_is_second_compares_again_with_what_the_other_has_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    other = table_in(spark, tmp_path)
    other.commit("other", 0, rows_of(spark, 0, 10))
    files = RacedFiles(
        tmp_path,
        lambda: other.commit("other", 1, rows_of(spark, 0, 5, partition=1)),
        lambda: other.commit("other", 2, rows_of(spark, 10, 15).withColumn("extra", F.lit(7))),
    )

    outcome = table_in(spark, tmp_path, DeltaLog(files)).commit("w", 0, rows_of(spark, 10, 20))

    assert isinstance(outcome, Committed)
    assert (outcome.version, outcome.rows, outcome.rows_held) == (3, 5, 5)
    assert offsets_of_others(tmp_path) == sorted([*range(20), *range(5)])
    raced = RacedFiles(tmp_path, lambda: other.commit("other", 3, rows_of(spark, 20, 30)))
    again = table_in(spark, tmp_path, DeltaLog(raced)).commit("w", 1, rows_of(spark, 20, 30))
    assert again == BatchKnown("w", 1)
    assert other.read().where("extra = 7").count() == 5


def test_a_compaction_that_meets_others_does_not_disturb_them(spark: SparkSession, tmp_path: Path) -> None:
    other = table_in(spark, tmp_path)
    for batch_id in range(3):
        other.commit("w", batch_id, rows_of(spark, 10 * batch_id, 10 * batch_id + 10))

    beside_an_append = RacedFiles(tmp_path, lambda: other.commit("w", 3, rows_of(spark, 30, 40)))
    done = table_in(spark, tmp_path, DeltaLog(beside_an_append)).compact(Compaction(files_min=3))
    assert (done.files, done.into, len(other.ledger().files)) == (3, 1, 2)
    beside_another = RacedFiles(tmp_path, lambda: other.compact(Compaction(files_min=2)))
    assert table_in(spark, tmp_path, DeltaLog(beside_another)).compact(Compaction(files_min=2)) == Compacted()

    assert len(other.ledger().files) == 1
    assert offsets_of_others(tmp_path) == list(range(40))


def test_a_table_without_offsets_takes_any_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path))
    counts = spark.createDataFrame([("a", 1), ("b", 2)], "label STRING, n INT")

    assert isinstance(table.commit("w", 0, counts), Committed)
    assert table.commit("w", 0, counts) == BatchKnown("w", 0)
    assert table.commit("w", 1, counts.where("n > 5")) == Committed(0, 0, 0, 0)
    assert isinstance(table.commit("w", 2, counts), Committed)
    assert sorted(row.n for row in table.read().collect()) == [1, 1, 2, 2]
    assert table.positions() == {}


def test_what_cannot_be_in_a_table_is_said_clearly(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(spark, str(tmp_path), partition_by=("day",))
    for columns, message in (
        ("1 AS `a b`, 'x' AS day", "column 'a b': a name cannot have spaces"),
        ("NULL AS nothing, 'x' AS day", "column nothing is void"),
        ("array(named_struct('at', timestamp_ntz'2030-01-01 00:00:00')) AS list, 'x' AS day", "column list[].at is"),
        ("1 AS n", "partitioned by day: it is not a column"),
        ("1.5D AS day", "partitioned by day: it is double"),
    ):
        outcome = table.commit("w", 0, spark.sql(f"SELECT {columns}"))
        assert isinstance(outcome, BatchRefused)
        assert message in outcome.message
    assert not table.exists
    with pytest.raises(NoTable, match="there is no table yet"):
        table.read()
    with pytest.raises(Exception, match="nonsense"):
        open_table(spark, "nonsense://bucket/table")
