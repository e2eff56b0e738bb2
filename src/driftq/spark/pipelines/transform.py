"""Topic to topic through a function of the user's: over whole frames, or over one value at a time.

A function is named `module:function` and imported where it runs: frame functions on the driver, value functions on the
executors. Envelope columns ride along unless the function changes them. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
