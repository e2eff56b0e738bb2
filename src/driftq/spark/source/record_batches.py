"""Turns fetched batches of packed records into Arrow record batches with the columns that a query selects.

Heads are decoded only if a column of the envelope is selected. Knows no broker: columns that need a call to the broker
(`extra`) come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from driftq.spark.source import arrow
from driftq.spark.source.columns import ENVELOPE, Column, arrow_schema
from driftq.spark.source.envelope_columns import envelope_arrays

if TYPE_CHECKING:
    from driftq.spark.source.arrow import Rows
    from driftq.spark.source.offsets import OffsetRange

ROWS_MAX = 65_536  # a good size for Spark; see Capacity in docs/guides/spark.md

ExtraColumns = Callable[[int, int], Mapping[str, pa.Array]]  # for offsets [first, end)

_PLAIN: dict[str, Callable[[Rows, OffsetRange, int], pa.Array]] = {
    "topic": lambda rows, task, count: arrow.repeated(task.topic, count),
    "partition": lambda rows, task, count: arrow.repeated(task.partition, count),
    "offset": lambda rows, task, count: arrow.numbers(rows.offsets),
    "timestamp": lambda rows, task, count: arrow.time_array(rows.at_ms),
    "key": lambda rows, task, count: arrow.bytes_array(rows.keys, count, pa.binary(), empty_is_null=True),
    "value": lambda rows, task, count: arrow.bytes_array(rows.values, count, pa.binary(), empty_is_null=False),
    "head": lambda rows, task, count: arrow.bytes_array(rows.heads, count, pa.string(), empty_is_null=True),
}
_ENVELOPE = frozenset(column.name for column in ENVELOPE)


def record_batches(
    data: bytes | bytearray, task: OffsetRange, columns: Sequence[Column], extra: ExtraColumns | None = None
) -> Iterator[pa.RecordBatch]:
    """The records that lie in the range of a task, in record batches of at most `ROWS_MAX` rows."""
    for rows in arrow.rows_of(data):
        yield from _slices(rows, task, columns, extra)


def _slices(
    rows: Rows, task: OffsetRange, columns: Sequence[Column], extra: ExtraColumns | None
) -> Iterator[pa.RecordBatch]:
    first, end = (int(index) for index in np.searchsorted(rows.offsets, (task.start, task.end)))
    count = len(rows.offsets)
    names = {column.name for column in columns}
    arrays = {name: _PLAIN[name](rows, task, count) for name in names & _PLAIN.keys()}
    if names & _ENVELOPE:
        arrays |= envelope_arrays(rows.heads, count, names & _ENVELOPE)
    schema = arrow_schema(columns)
    for at in range(first, end, ROWS_MAX):
        size = min(ROWS_MAX, end - at)
        batch = {name: array.slice(at, size) for name, array in arrays.items()}
        if extra is not None:
            batch |= _extra_arrays(extra, rows.offsets[at : at + size])
        yield pa.RecordBatch.from_arrays([batch[column.name] for column in columns], schema=schema)


def _extra_arrays(extra: ExtraColumns, offsets: arrow.Ints) -> Mapping[str, pa.Array]:
    """The extra columns are computed for a whole range of offsets; the rows may have gaps."""
    first, end = int(offsets[0]), int(offsets[-1]) + 1
    arrays = extra(first, end)
    if end - first == len(offsets):
        return arrays
    indices = arrow.numbers(offsets - first)
    return {name: array.take(indices) for name, array in arrays.items()}
