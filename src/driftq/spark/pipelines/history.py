"""The history of a topic as rows: deliveries, acks and failures, read from `TOPIC.history`.

A history event names its message by topic, partition and offset and does not repeat its content: tenant, run and label
are in the message. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SUFFIX = ".history"
EVENT = (
    "event STRING, topic STRING, partition INT, offset BIGINT, `group` STRING, owner STRING, attempt INT, "
    "at TIMESTAMP, error STRING, reason STRING"
)
# What counts as a failed attempt: the worker reported a failure, or its lease expired.
FAILED = ("failed", "expired")
ENDS = ("acked", "dead", "cancelled")


def events(rows: DataFrame) -> DataFrame:
    """The events in the rows of history topics, without other rows. `seen` orders the events of one history log."""
    parsed = rows.where(F.col("topic").endswith(SUFFIX)).select(
        F.from_json(F.col("value").cast("string"), EVENT).alias("parsed"), F.col("offset").alias("seen")
    )
    return parsed.where("parsed.event IS NOT NULL").select("parsed.*", "seen")


def messages(rows: DataFrame) -> DataFrame:
    """The rows that are messages, without those of history topics."""
    return rows.where(~F.col("topic").endswith(SUFFIX))
