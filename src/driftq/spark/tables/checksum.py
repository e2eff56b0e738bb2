"""A checksum over rows that does not depend on their order: the sum of a 64-bit hash of offset, key and value.

Tables store it for each file and partition; compaction and the audit compare it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.spark.tables.ledger import CHECKSUM_MODULUS, FileSpan

LOG_COLUMNS = ("topic", "partition", "offset")


def row_hash(columns: Sequence[str]) -> Column:
    """The hash of one row: of its offset, and of key and value if there are such columns."""
    parts: list[Column] = [F.col("offset")]
    for name in ("key", "value"):
        if name in columns:
            parts += [F.col(name).isNull(), F.col(name)]
    return F.xxhash64(*parts)


def totals(rows: DataFrame, by: Sequence[Column]) -> DataFrame:
    """For each group: `first`, `last`, `rows` and the two halves of the checksum. The halves are summed separately: a
    sum of 64-bit numbers would overflow, and decimals are slow."""
    hashed = rows.withColumn("_hash", row_hash(rows.columns))
    return hashed.groupBy(*by).agg(
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.shiftright("_hash", 32)).alias("high"),
        F.sum(F.col("_hash").bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
    )


def checksum_of(row: Any) -> int:
    """The checksum from a row of `totals`."""
    return ((int(row["high"]) << 32) + int(row["low"])) % CHECKSUM_MODULUS


def span_of(row: Any) -> FileSpan:
    return FileSpan(row["topic"], row["partition"], row["first"], row["last"], row["rows"], checksum_of(row))
