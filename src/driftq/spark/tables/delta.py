"""A Delta table, for sessions with Delta's jars on the classpath. The commit log is Delta's, so object stores work too.

Delta stores an application id and a version with each commit and skips a repeat; we use the writer and the batch id.
Offsets are not tracked, so a lost checkpoint is not noticed before an audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from driftq.spark.tables.table import Committed, Compacted, Outcome

if TYPE_CHECKING:
    from driftq.spark.tables.ledger import Compaction

HINT = (
    "format 'delta' needs Delta's jars on Spark's classpath: start Spark with "
    "--packages io.delta:delta-spark_2.13:<version> (spark.jars.packages) and the settings "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog. "
    "Without them use format 'parquet', which needs no jars."
)


class FormatMissing(RuntimeError):
    """Spark does not have the format; the message says what it needs."""


class DeltaTable:
    """A table in Delta's format."""

    def __init__(self, spark: SparkSession, path: str, partition_by: Sequence[str] = ()) -> None:
        self.path = path
        self._spark = spark
        self._partition_by = tuple(partition_by)
        _refuse_missing(spark, path)

    def commit(self, writer: str, batch_id: int, rows: DataFrame, content: str = "") -> Outcome:
        options = append_options(writer, batch_id)
        rows.write.format("delta").mode("append").options(**options).partitionBy(*self._partition_by).save(self.path)
        return Committed(batch_id, -1, -1, -1)

    def committed(self, writer: str) -> int | None:
        return None  # Delta does not expose it through Spark; a repeat is skipped all the same.

    def positions(self) -> dict[str, dict[int, int]]:
        return {}

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.path)

    def compact(self, rule: Compaction) -> Compacted:
        self._spark.sql(f"OPTIMIZE delta.`{self.path}`")
        return Compacted()


def append_options(writer: str, batch_id: int) -> dict[str, str]:
    """The options that make Delta skip a batch that it has, and accept new columns."""
    return {"txnAppId": writer, "txnVersion": str(batch_id), "mergeSchema": "true"}


def _refuse_missing(spark: SparkSession, path: str) -> None:
    """Spark reports a missing format with several errors; each names the class or the condition."""
    try:
        spark.read.format("delta").load(path)
    except (PySparkException, Py4JJavaError) as error:
        if any(name in str(error) for name in ("DATA_SOURCE_NOT_FOUND", "ClassNotFoundException: delta")):
            raise FormatMissing(HINT) from None
