"""Leaving out repeats: of the messages with the same idempotency identity within a time, one goes on.

The identity is the broker's: tenant, topic and key. A message without a key is nobody's repeat and always goes on. The
broker itself refuses repeats for `idempotency.ttl_ms`; this is for topics whose producers repeat later than that, or
write packed batches, which pass no such check. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_IDENTITY = "_identity"


def identity() -> Column:
    """A text for each message: the same for repeats, and for a message without a key its own place in the log."""
    key = F.col("idempotency_key")
    tenant = F.coalesce("tenant_id", F.lit(""))
    named = F.to_json(F.array(F.lit("key"), tenant, F.col("topic"), key))
    placed = F.concat_ws("/", F.lit("at"), "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return F.when(F.coalesce(key, F.lit("")) != "", named).otherwise(placed)


def deduplicated(messages: DataFrame, watermark: str = "10 minutes") -> DataFrame:
    """Messages without repeats. On a stream a key is remembered for `watermark` from its first message on, by the
    broker's clock; in a batch every repeat goes.

    A message later than the watermark would be dropped by Spark. So read with everything that is there in each
    micro-batch, as the pipeline does: then partitions cannot drift apart and nothing is late.
    """
    known = messages.withColumn(_IDENTITY, identity())
    if messages.isStreaming:
        known = known.withWatermark("timestamp", watermark).dropDuplicatesWithinWatermark([_IDENTITY])
    else:
        known = known.dropDuplicates([_IDENTITY])
    return known.drop(_IDENTITY)
