"""The power of a real file system is cut under an archive: the table is exact after resuming."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.power_cuts import power_cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUTS = {"dev": 2, "ci": 3, "release": 20}


@pytest.mark.timeout(900)
def test_a_table_is_exact_after_its_power_was_cut(spark: SparkSession, tmp_path: Path, profile: str, seed: int) -> None:
    empty = power_cuts(spark, tmp_path, CUTS[profile], seed, profile)

    assert empty["checkpoint"], "the cuts have lost nothing, so they prove nothing"
    assert not empty["table"], "a file of the table had its name before it was durable"
