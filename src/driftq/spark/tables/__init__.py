"""Tables that are written exactly once.

    table = open_table(spark, "./tables/orders", partition_by=("topic", "date"))
    table.commit("my-query", batch_id, rows)      # once, however often it is called
    table.read()

The embedded format is Parquet with a commit log of our own (docs/decisions/0008-a-commit-file-for-each-batch.md);
Delta needs its jars. How a commit works is in `commits`, what it changes is in `ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from driftq.spark.tables.commits import NoTable as NoTable
from driftq.spark.tables.commits import TableBusy as TableBusy
from driftq.spark.tables.commits import TableDamaged as TableDamaged
from driftq.spark.tables.delta import DeltaTable
from driftq.spark.tables.delta import FormatMissing as FormatMissing
from driftq.spark.tables.ledger import BatchKnown as BatchKnown
from driftq.spark.tables.ledger import BatchRefused as BatchRefused
from driftq.spark.tables.ledger import Compaction as Compaction
from driftq.spark.tables.parquet import ParquetTable as ParquetTable
from driftq.spark.tables.table import Committed as Committed
from driftq.spark.tables.table import Compacted as Compacted
from driftq.spark.tables.table import Outcome as Outcome
from driftq.spark.tables.table import Table as Table
from driftq.spark.tables.table import TableRefused as TableRefused

FORMATS = ("parquet", "delta")


def open_table(spark: SparkSession, path: str, *, partition_by: Sequence[str] = (), format: str = "parquet") -> Table:
    """The table at a path, which need not exist yet. Raises ValueError for a path or format that is not supported, and
    `FormatMissing` if Spark lacks the format's jars."""
    if format == "parquet":
        return ParquetTable(spark, path, partition_by)
    if format == "delta":
        return DeltaTable(spark, path, partition_by)
    raise ValueError(f"format {format!r}: the formats are {' and '.join(FORMATS)}")
