"""What a backtest needs of a topic and its history: every message with the attempts of one group on it.

`recorded` is a function from frame to frame; `collected` returns its rows as plain Python values. Messages without a
finished attempt are left out: nothing is known of their work.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from driftq.spark.pipelines import history

PLACE = ("topic", "partition", "offset")
ENDINGS = ("acked", "failed", "expired", "dead")
MAX_ATTEMPTS = "max_attempts"  # the reason of a dead letter that had no attempts left; all others are rejections


def recorded(rows: DataFrame, group: str) -> DataFrame:
    """Messages with `attempts`, an array of (number, started_ms, ended_ms, ending). An attempt that was given back and
    delivered again counts from its last delivery."""
    events = history.events(rows).where((F.col("group") == group) & (F.col("attempt") > 0))
    ending = F.when((F.col("event") == "dead") & (F.col("reason") != MAX_ATTEMPTS), "rejected").otherwise(
        F.col("event")
    )
    ended = F.col("event").isin(*ENDINGS)
    attempts = (
        events.groupBy(*PLACE, "attempt")
        .agg(
            F.max(F.when(F.col("event") == "delivered", F.unix_millis("at"))).alias("started_ms"),
            F.max(F.when(ended, F.unix_millis("at"))).alias("ended_ms"),
            F.max_by(ending, F.when(ended, F.col("seen"))).alias("ending"),
        )
        .where("started_ms IS NOT NULL AND ended_ms IS NOT NULL")
    )
    ordered = F.array_sort(F.collect_list(F.struct("attempt", "started_ms", "ended_ms", "ending")))
    worked = attempts.groupBy(*PLACE).agg(ordered.alias("attempts"))
    return history.messages(rows).join(worked, list(PLACE)).withColumn("produced_ms", F.unix_millis("timestamp"))


def collected(messages: DataFrame, *, values: bool = False) -> list[dict[str, Any]]:
    """The messages in order of time, with what a policy may look at. Values only if rules look into them."""
    value = F.col("value") if values else F.lit(b"")
    columns = (
        "partition", "offset", "produced_ms", "attempts", "key", value.alias("value"), "tenant_id",
        F.col("routing_label").alias("label"), "labels", "run_id", "task", "priority",
    )  # fmt: skip
    ordered = messages.select(*columns).orderBy("produced_ms", "partition", "offset")
    return [row.asDict(recursive=True) for row in ordered.toLocalIterator()]
