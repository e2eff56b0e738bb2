"""The pipeline `dedupe`: of the messages with the same idempotency key within a time, only the first is kept.

Keys are compared as the broker does: by tenant, topic and key. A message without a key is always kept. The broker
itself refuses repeats for `idempotency.ttl_ms`; this pipeline is for topics whose producers repeat later than that, or
write packed batches, which the broker does not check. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_IDENTITY = "_identity"


def identity() -> Column:
    """A text for each message: the same for repeats. A message without a key is identified by its offset."""
    key = F.col("idempotency_key")
    tenant = F.coalesce("tenant_id", F.lit(""))
    by_key = F.to_json(F.array(F.lit("key"), tenant, F.col("topic"), key))
    by_offset = F.concat_ws(
        "/", F.lit("at"), "topic", F.col("partition").cast("string"), F.col("offset").cast("string")
    )
    return F.when(F.coalesce(key, F.lit("")) != "", by_key).otherwise(by_offset)


def deduplicated(messages: DataFrame, watermark: str = "10 minutes") -> DataFrame:
    """Messages without repeats. On a stream a key is remembered for `watermark` from its first message on, by the
    broker's clock; in a batch all repeats are dropped.

    Spark drops messages that are later than the watermark. So read all available messages in each micro-batch, as the
    pipeline does: then no partition runs ahead of another, and no message is late.
    """
    identified = messages.withColumn(_IDENTITY, identity())
    if messages.isStreaming:
        identified = identified.withWatermark("timestamp", watermark).dropDuplicatesWithinWatermark([_IDENTITY])
    else:
        identified = identified.dropDuplicates([_IDENTITY])
    return identified.drop(_IDENTITY)
