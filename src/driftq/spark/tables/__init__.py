"""Tables that are written exactly once, in Delta Lake's format.

    table = open_table(spark, "./tables/orders", partition_by=("topic", "date"))
    table.commit("my-query", batch_id, rows)      # once, however often it is called
    read_table(spark, "./tables/orders")

Delta's readers read them: Polars, DuckDB, pandas, Spark. How a commit works is in `delta`, what it changes is in
`actions`, what is compared is in `ledger`. Why so: docs/decisions/0018-delta-tables.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from driftq.spark.tables.actions import TableDamaged as TableDamaged
from driftq.spark.tables.delta import DeltaTable as DeltaTable
from driftq.spark.tables.former import FormerTable as FormerTable
from driftq.spark.tables.former import convert as convert
from driftq.spark.tables.former import is_former
from driftq.spark.tables.ledger import BatchKnown as BatchKnown
from driftq.spark.tables.ledger import BatchRefused as BatchRefused
from driftq.spark.tables.ledger import Compaction as Compaction
from driftq.spark.tables.table import Committed as Committed
from driftq.spark.tables.table import Compacted as Compacted
from driftq.spark.tables.table import NoTable as NoTable
from driftq.spark.tables.table import Outcome as Outcome
from driftq.spark.tables.table import Table as Table
from driftq.spark.tables.table import TableBusy as TableBusy
from driftq.spark.tables.table import TableRefused as TableRefused


def open_table(
    spark: SparkSession,
    path: str,
    *,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """The table at a path or URL, which need not exist yet. A table of the former format can only be read. Raises
    ValueError for a URL that is not supported."""
    if is_former(path):
        return FormerTable(spark, path)
    return DeltaTable(spark, path, partition_by, storage_options)


def read_table(spark: SparkSession, path: str, storage_options: Mapping[str, str] | None = None) -> DataFrame:
    """The rows of the table at a path or URL, without Delta's jars. Raises `NoTable` if there is none."""
    return open_table(spark, path, storage_options=storage_options).read()
