"""Where Spark looks for data sources by itself: any installed package named `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from driftq.spark.datasource import DriftqDataSource as DefaultSource

__all__ = ["DefaultSource"]
