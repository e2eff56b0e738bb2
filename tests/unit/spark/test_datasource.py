"""Spark looks for packages named pyspark_* by itself; ours is one of them."""

from __future__ import annotations

import pkgutil


def test_spark_finds_the_source_by_itself():
    import pyspark_driftq
    from driftq.spark.datasource import DriftqDataSource

    assert "pyspark_driftq" in {module.name for module in pkgutil.iter_modules()}
    assert pyspark_driftq.DefaultSource is DriftqDataSource
