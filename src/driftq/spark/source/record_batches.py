"""From a fetched run of packed batches to Arrow record batches with the columns that a query wants.

Heads are decoded only when a column of the envelope is wanted, and only those that are there. Knows no broker; what is
known only by asking (`more`) is given by the caller.
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

ROWS_MAX = 65_536  # a record batch that Spark takes well; see performance in docs/guides/spark.md

More = Callable[[int, int], Mapping[str, pa.Array]]  # columns for offsets [first, end)

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


def tables(
    data: bytes | bytearray, task: OffsetRange, columns: Sequence[Column], more: More | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a run that lie in the range, in pieces of a size that Spark likes."""
    for rows in arrow.rows_of(data):
        yield from _pieces(rows, task, columns, more)


def _pieces(rows: Rows, task: OffsetRange, columns: Sequence[Column], more: More | None) -> Iterator[pa.RecordBatch]:
    first, end = (int(place) for place in np.searchsorted(rows.offsets, (task.start, task.end)))
    count = len(rows.offsets)
    names = {column.name for column in columns}
    arrays = {name: _PLAIN[name](rows, task, count) for name in names & _PLAIN.keys()}
    if names & _ENVELOPE:
        arrays |= envelope_arrays(rows.heads, count, names & _ENVELOPE)
    schema = arrow_schema(columns)
    for at in range(first, end, ROWS_MAX):
        size = min(ROWS_MAX, end - at)
        piece = {name: array.slice(at, size) for name, array in arrays.items()}
        if more is not None:
            piece |= _beside(more, rows.offsets[at : at + size])
        yield pa.RecordBatch.from_arrays([piece[column.name] for column in columns], schema=schema)


def _beside(more: More, offsets: arrow.Ints) -> Mapping[str, pa.Array]:
    """Columns that were asked for by range, for offsets among which some may be missing."""
    first, end = int(offsets[0]), int(offsets[-1]) + 1
    found = more(first, end)
    if end - first == len(offsets):
        return found
    places = arrow.numbers(offsets - first)
    return {name: array.take(places) for name, array in found.items()}
