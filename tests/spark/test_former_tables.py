"""Tables of the former format: the files in `former_tables` were written by the version before Delta tables.

`orders` has a snapshot, a column that was added, and a last commit whose files were never moved to their place.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow.parquet as pq
import pytest

from driftq.spark import read_table
from driftq.spark.tables import (
    BatchKnown,
    BatchRefused,
    Committed,
    NoTable,
    TableBusy,
    TableDamaged,
    convert,
    open_table,
)
from driftq.spark.tables.delta import DeltaTable
from tests.spark.test_tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMER = Path(__file__).with_name("former_tables")
ORDERS = {(0, offset) for offset in range(990, 1_030)} | {(1, offset) for offset in range(5)}


@pytest.fixture
def former(tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(FORMER / name, tmp_path / name))

    return copied


def logs(spark: SparkSession, table: Path) -> set[tuple[int, int]]:
    return {(row.partition, row.offset) for row in read_table(spark, str(table)).collect()}


def test_a_former_table_is_read_and_not_written(spark: SparkSession, former: Callable[[str], Path]) -> None:
    orders = former("orders")
    table = open_table(spark, str(orders))

    outcome = table.commit("w", 4, rows_of(spark, 1_030, 1_040))

    assert isinstance(outcome, BatchRefused)
    assert outcome.code == "FORMER_FORMAT"
    assert f"driftq pipeline convert --table {orders}" in outcome.message
    assert logs(spark, orders) == ORDERS
    assert (table.committed("w"), table.positions()) == (3, {"orders": {0: 1_030, 1: 5}})


def test_a_converted_table_has_the_same_rows_and_continues(spark: SparkSession, former: Callable[[str], Path]) -> None:
    orders = former("orders")

    assert convert(spark, str(orders)) == 45
    assert convert(spark, str(orders)) == 45, "it can be repeated"

    assert logs(spark, orders) == ORDERS
    assert read_table(spark, str(orders)).where("extra = 7").count() == 10
    others = deltalake.DeltaTable(orders).to_pyarrow_table().to_pylist()
    assert {(row["partition"], row["offset"]) for row in others} == ORDERS
    assert not (orders / "_driftq").exists()
    files = [orders / path for path in deltalake.DeltaTable(orders).file_uris()]
    assert sorted(files) == sorted(orders.rglob("*.parquet")), "old files are deleted"
    assert all(pq.read_schema(path).field("timestamp").type.unit == "us" for path in files)
    table = open_table(spark, str(orders))
    assert table.commit("w", 3, rows_of(spark, 1_020, 1_030)) == BatchKnown("w", 3)
    outcome = table.commit("w", 4, rows_of(spark, 1_025, 1_040))
    assert isinstance(outcome, Committed)
    assert (outcome.rows, outcome.rows_held) == (10, 5)


def test_a_converted_table_without_offsets_knows_its_writers(
    spark: SparkSession, former: Callable[[str], Path]
) -> None:
    counts = former("counts")
    convert(spark, str(counts))
    table = open_table(spark, str(counts))
    rows = spark.createDataFrame([("c", 3)], "label STRING, n INT")

    assert table.commit("w", 4, rows, "offsets:abc") == BatchKnown("w", 4)
    other = table.commit("w", 4, rows, "offsets:other")
    assert isinstance(other, BatchRefused)
    assert other.code == "CONTENT_DIFFERS"
    assert isinstance(table.commit("w", 5, rows), Committed)
    assert sorted(row.n for row in table.read().collect()) == [1, 2, 3]


class Ended(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["_write", "create_from"])
def test_an_interrupted_conversion_is_repeated(
    spark: SparkSession, former: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """After the rows were written, or after they were committed."""
    orders = former("orders")
    original = getattr(DeltaTable, step)

    def ending(*arguments: object) -> None:
        original(*arguments)
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, step, ending)
        with pytest.raises(Ended):
            convert(spark, str(orders))
    assert logs(spark, orders) == ORDERS

    assert convert(spark, str(orders)) == 45
    assert logs(spark, orders) == ORDERS


def test_a_table_that_is_damaged_in_use_or_absent_is_not_converted(
    spark: SparkSession, former: Callable[[str], Path], tmp_path: Path
) -> None:
    orders = former("orders")
    with (orders / "_driftq" / "turn").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TableBusy, match="stop it first"):
            convert(spark, str(orders))
    one, other = sorted(orders.glob("topic=orders/date=2024-10-04/*.parquet"))
    one.write_bytes(other.read_bytes())

    with pytest.raises(TableDamaged, match="differ from what was committed"):
        convert(spark, str(orders))
    assert not (orders / "_delta_log").exists()
    with pytest.raises(NoTable):
        convert(spark, str(tmp_path / "nothing"))
