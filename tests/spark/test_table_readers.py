"""Other readers of tables: the lines that the guide prints for Polars, DuckDB, pandas, pyarrow and Spark are run, and a
range of time is read without reading the rest."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from driftq.spark.tables import Committed, Compaction, DeltaTable
from tests.spark.guide_readers import READERS, columns_by_guide
from tests.spark.test_tables import rows_of, table_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days, five topics' worth of names that need care in a path, and a column that was added."""
    folder = tmp_path_factory.mktemp("readers") / "tables" / "orders"
    table = table_in(spark, folder)
    assert isinstance(table.commit("w", 0, rows_of(spark, 0, 2_500)), Committed)
    for batch_id, name in enumerate(("007", "a:b", "runs/1 %2F é"), start=1):
        rows = rows_of(spark, 0, 10, topic=name).selectExpr("*", "named_struct('x', offset) AS body")
        assert isinstance(table.commit("w", batch_id, rows), Committed)
    return folder


@pytest.mark.parametrize("reader", READERS)
def test_the_line_of_the_guide_opens_a_table(
    spark: SparkSession, orders: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(orders.parents[1])

    columns = columns_by_guide(reader)

    assert len(columns["offset"]) == 2_530
    assert set(columns["topic"]) == {"orders", "007", "a:b", "runs/1 %2F é"}
    assert sorted(offset for offset in columns["offset"])[-1] == 2_499


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """A row group has whole batches."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "50")
    try:
        yield
    finally:
        spark.conf.set(name, before or "10000")


def small_groups(spark: SparkSession, folder: Path) -> DeltaTable:
    return DeltaTable(spark, str(folder), ("topic", "date"), row_group_rows=100)


def test_a_range_of_time_reads_few_files_and_few_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    """Twenty days, and an hour of one of them."""
    table = small_groups(spark, tmp_path)
    with small_batches(spark):
        for batch_id in range(4):
            table.commit("w", batch_id, rows_of(spark, 5_000 * batch_id, 5_000 * batch_id + 5_000))
    day = datetime.datetime(2024, 10, 4, tzinfo=datetime.UTC) + datetime.timedelta(days=7)
    first, end = day + datetime.timedelta(hours=3), day + datetime.timedelta(hours=4)

    dataset = deltalake.DeltaTable(tmp_path).to_pyarrow_dataset()
    in_range = (pc.field("timestamp") >= first) & (pc.field("timestamp") < end)
    files = list(dataset.get_fragments(in_range))
    groups = [group for file in files for group in file.split_by_row_group(in_range)]

    assert (len(list(dataset.get_fragments())), len(files)) == (20, 1)
    assert files[0].num_row_groups >= 10
    assert len(groups) <= 2
    assert 40 <= dataset.to_table(filter=in_range).num_rows <= 43


def test_a_compaction_sorts_by_time_so_that_ranges_stay_narrow(spark: SparkSession, tmp_path: Path) -> None:
    table = small_groups(spark, tmp_path)
    for batch_id, partition in enumerate((0, 1)):
        table.commit("w", batch_id, rows_of(spark, 0, 900, partition=partition))
    with small_batches(spark):
        table.compact(Compaction(files_min=2))

    (path,) = deltalake.DeltaTable(tmp_path).file_uris()
    metadata = pq.read_metadata(path)
    column = metadata.schema.names.index("timestamp")
    groups = [metadata.row_group(index).column(column).statistics for index in range(metadata.num_row_groups)]
    assert len(groups) >= 10
    assert all(one.max <= other.min for one, other in itertools.pairwise(groups))
