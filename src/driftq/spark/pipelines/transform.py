"""The pipeline `transform`: topic to topic through a function of yours, over whole frames or over one value at a time.

Knows nothing of sessions and sinks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# Where a message was read. The sink would use `topic` and `partition` as the target.
ORIGIN_COLUMNS = ("topic", "partition", "offset", "timestamp", "queue_state", "attempts", "last_error", "head")


class NoFunction(ValueError):
    """There is no such function, or it returned something unusable; the message says what."""


def load_function(target: str) -> Callable[..., Any]:
    """The function named `module:name`, from the Python path or the current folder."""
    module, _, name = target.partition(":")
    if not module or not name:
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
    loaded: Callable[..., Any] = function
    return loaded


def without_origin(messages: DataFrame) -> DataFrame:
    """Messages without the columns that say where they were read."""
    return messages.drop(*ORIGIN_COLUMNS)


def transformed(messages: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What the function returns for the messages. It gets every column of the source, and chooses the columns to write:
    `value`, and `topic` or `partition` if it sets the target."""
    result = function(messages)
    if not isinstance(result, DataFrame):
        raise NoFunction(f"the function must return a DataFrame, not {type(result).__name__}")
    if "value" not in result.columns:
        raise NoFunction(f"the function must return a column `value`; it returned {', '.join(result.columns)}")
    return result


def mapped(messages: DataFrame, target: str) -> DataFrame:
    """Each value through a function of bytes: its result (bytes or text) is the new value, None drops the message."""
    load_function(target)  # a wrong name fails here, not on an executor
    frame = without_origin(messages).withColumn("value", F.col("value").cast("binary"))
    position = frame.columns.index("value")

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = load_function(target)
        for batch in batches:
            results = [function(value) for value in batch.column(position).to_pylist()]
            values = [result.encode() if isinstance(result, str) else result for result in results]
            changed = batch.set_column(position, "value", pa.array(values, pa.binary()))
            yield changed.filter(pa.array([value is not None for value in values], pa.bool_()))

    return frame.mapInArrow(each_batch, frame.schema)
