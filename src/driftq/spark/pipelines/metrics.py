"""The pipeline `metrics`: counts, error rates and latencies in windows of time, per topic, tenant and label.

The row of a window is written once, when the watermark has passed its end; Spark drops later messages and counts them
in the progress of the query. With the history of a topic, acks and failures are counted in the window in which they
happened, and latency is the time from produce to ack. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.spark.pipelines import history

PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_ACCURACY = 1_000


def arrivals(source: DataFrame, watermark: str = "1 minute") -> DataFrame:
    """Messages as events of the kind `produced`."""
    sent = history.messages(source).select(
        F.col("timestamp").alias("at"),
        "topic",
        F.coalesce("tenant_id", F.lit("")).alias("tenant_id"),
        F.coalesce("routing_label", F.lit("")).alias("label"),
        F.lit("produced").alias("kind"),
        F.octet_length("value").cast("long").alias("size_bytes"),
        F.lit(None).cast("long").alias("latency_ms"),
    )
    return sent.withWatermark("at", watermark) if source.isStreaming else sent


def endings(source: DataFrame, watermark: str = "1 minute", latency_max: str = "1 minute") -> DataFrame:
    """Ends and failures, with the tenant and label of their messages. An end that is more than `latency_max` after its
    message is not counted: that is how long Spark keeps messages, and how long it delays windows."""
    sent = (
        history.messages(source)
        .select(
            F.col("topic").alias("m_topic"),
            F.col("partition").alias("m_partition"),
            F.col("offset").alias("m_offset"),
            F.col("timestamp").alias("sent_at"),
            F.coalesce("tenant_id", F.lit("")).alias("tenant_id"),
            F.coalesce("routing_label", F.lit("")).alias("label"),
        )
        .withWatermark("sent_at", watermark)
    )
    happened = (
        history.events(source)
        .where(F.col("event").isin(*history.FAILED, *history.ENDS))
        .select("topic", "partition", "offset", "event", "at")
        .withWatermark("at", watermark)
    )
    same = (
        "topic = m_topic AND partition = m_partition AND offset = m_offset "
        f"AND at >= sent_at - INTERVAL 1 SECOND AND at <= sent_at + INTERVAL {latency_max}"
    )
    latency_ms = F.greatest(F.lit(0), F.unix_millis("at") - F.unix_millis("sent_at"))
    return happened.join(sent, F.expr(same)).select(
        "at",
        "topic",
        "tenant_id",
        "label",
        F.col("event").alias("kind"),
        F.lit(None).cast("long").alias("size_bytes"),
        F.when(F.col("event") == "acked", latency_ms).alias("latency_ms"),
    )


def windowed(happened: DataFrame, window: str = "1 minute") -> DataFrame:
    """One row for each window, topic, tenant and label with events. On a stream the events already have a watermark."""
    groups = happened.groupBy(F.window("at", window), "topic", "tenant_id", "label")
    return groups.agg(
        _count("produced").alias("produced"),
        F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("size_bytes"),
        _count("acked").alias("acked"),
        _count(*history.FAILED).alias("failed"),
        _count("dead").alias("dead"),
        F.percentile_approx("latency_ms", list(PERCENTILES.values()), _ACCURACY).alias("latency"),
        F.max("latency_ms").alias("max_ms"),
    ).select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "topic",
        "tenant_id",
        "label",
        "produced",
        "size_bytes",
        "acked",
        "failed",
        "dead",
        _rate().alias("error_rate"),
        *(F.col("latency")[index].alias(name) for index, name in enumerate(PERCENTILES)),
        "max_ms",
    )


def _count(*kinds: str) -> Column:
    return F.count_if(F.col("kind").isin(*kinds))


def _rate() -> Column:
    """Failed attempts divided by all that ended; null if none did."""
    return F.try_divide(F.col("failed"), F.col("failed") + F.col("acked"))
