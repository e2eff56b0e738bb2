"""Puts the small files of a table together, by itself: for tables whose pipelines do not, or have ended.

The rows stay the same, and whoever writes the table meanwhile waits for its turn. One file at a time is made for a day
of a topic, so this goes on until nothing is left to do.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from driftq.spark.pipelines.running import Say, Stop
from driftq.spark.pipelines.sections import Configuration
from driftq.spark.tables import Compaction, open_table


def finish_compact(spark: SparkSession, configuration: Configuration, stop: Stop, say: Say) -> int:
    """Compact the table of a configuration and say what was done."""
    table = open_table(spark, configuration.sink.table, format=configuration.sink.format)
    while not stop.wanted:
        done = table.compact(Compaction(files_min=configuration.compact.files_min))
        if not done.files:
            break
        say(f"{table.path}: {done.files:,} files became {done.into:,} ({done.size_bytes / (1 << 20):,.1f} MiB)")
        if done.into >= done.files:
            break  # The session cuts files smaller than we would; going on would never end.
    return 0
