"""Leaving out repeats: of the messages with the same idempotency identity within a time, one goes on.

The identity is the broker's: tenant, topic and key. A message without a key is nobody's repeat and always goes on. The
broker itself refuses repeats for `idempotency.ttl_ms`; this is for topics whose producers repeat later than that, or
write packed batches, which pass no such check. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
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


# --- Topic to topic through a function of the user's: over whole frames, or over one value at a time ---


# Where a message came from is no longer true of what is made of it: the sink would take these for its target.
PLACE = ("topic", "partition", "offset", "timestamp", "queue_state", "attempts", "last_error", "head")


class NoFunction(ValueError):
    """A name leads to no function; the message says why."""


def named(target: str) -> Callable[..., Any]:
    """The function called `module:name`, from the path or the current folder."""
    module, found, name = target.partition(":")
    if not found or not module or not name:
        raise NoFunction(f"{target!r} is not a function: write module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        raise NoFunction(f"{target}: {error}") from None
    if not callable(function):
        raise NoFunction(f"{target} is not a function")
    found_function: Callable[..., Any] = function
    return found_function


def placeless(messages: DataFrame) -> DataFrame:
    """Without the columns that say where a message was read."""
    return messages.drop(*PLACE)


def transformed(messages: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What the function makes of the messages. It sees every column of the source; a `topic` or `partition` that it
    wants to write to must be said by it, so those of the source are gone unless they were changed."""
    made = function(messages)
    if not isinstance(made, DataFrame):
        raise NoFunction(f"the function must give a DataFrame, not {type(made).__name__}")
    if "value" not in made.columns:
        raise NoFunction(f"the function must give a column `value`; it gave {', '.join(made.columns)}")
    return made


def mapped(messages: DataFrame, target: str) -> DataFrame:
    """Each value through a function of bytes: what it gives (bytes or text) is the new value, None leaves it out."""
    named(target)  # a wrong name is said now, not by an executor
    frame = placeless(messages).withColumn("value", F.col("value").cast("binary"))
    position = frame.columns.index("value")

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = named(target)
        for batch in batches:
            made = [function(value) for value in batch.column(position).to_pylist()]
            whole = [each.encode() if isinstance(each, str) else each for each in made]
            changed = batch.set_column(position, "value", pa.array(whole, pa.binary()))
            yield changed.filter(pa.array([each is not None for each in whole], pa.bool_()))

    return frame.mapInArrow(each_batch, frame.schema)
