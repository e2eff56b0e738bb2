"""The history of a topic as rows: deliveries, acks and failures, read from `TOPIC.history`.

A history event names its message by topic, partition and offset and says nothing of what is in it; tenant, run and
label are the message's own. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SUFFIX = ".history"
EVENT = (
    "event STRING, topic STRING, partition INT, offset BIGINT, `group` STRING, owner STRING, attempt INT, "
    "at TIMESTAMP, error STRING, reason STRING"
)
# What counts as a failed attempt: the worker said so, was lost, or gave the message up.
FAILED = ("failed", "expired")
ENDS = ("acked", "dead", "cancelled")


def is_history(topic: str) -> bool:
    return topic.endswith(SUFFIX)


def events(rows: DataFrame) -> DataFrame:
    """The events in rows of history topics; other rows are left out. `seen` orders events of one history log."""
    told = rows.where(F.col("topic").endswith(SUFFIX)).select(
        F.from_json(F.col("value").cast("string"), EVENT).alias("told"), F.col("offset").alias("seen")
    )
    return told.where("told.event IS NOT NULL").select("told.*", "seen")


def messages(rows: DataFrame) -> DataFrame:
    """The rows that are messages."""
    return rows.where(~F.col("topic").endswith(SUFFIX))
