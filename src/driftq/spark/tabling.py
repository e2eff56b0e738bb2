"""From a fetched run of packed batches to Arrow record batches with the columns that a query wants.

Heads are decoded only when a column of the envelope is wanted, and only those that are there. Knows no broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from driftq.spark import arrow, heads
from driftq.spark.arrow import Rows
from driftq.spark.columns import Column, arrow_schema
from driftq.spark.offsets import Range

ROWS_MAX = 65_536

_PLAIN: dict[str, Callable[[Rows, Range, int], pa.Array]] = {
    "topic": lambda rows, task, count: arrow.repeated(task.topic, count, pa.string()),
    "partition": lambda rows, task, count: arrow.repeated(task.partition, count, pa.int32()),
    "offset": lambda rows, task, count: pa.array(rows.offsets, pa.int64()),
    "timestamp": lambda rows, task, count: arrow.time_array(rows.at_ms),
    "key": lambda rows, task, count: arrow.bytes_array(rows.keys, count, pa.binary(), empty_is_null=True),
    "value": lambda rows, task, count: arrow.bytes_array(rows.values, count, pa.binary(), empty_is_null=False),
    "head": lambda rows, task, count: arrow.bytes_array(rows.heads, count, pa.string(), empty_is_null=True),
}


def tables(data: bytes, task: Range, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """The records of a run that lie in the range, in pieces of a size that Spark likes."""
    rows = arrow.rows_of(data)
    if rows is None:
        return
    count = len(rows.offsets)
    arrays = [_PLAIN[column.name](rows, task, count) for column in columns if column.name in _PLAIN]
    names = [column.name for column in columns if column.name not in _PLAIN]
    if names:
        envelopes = heads.envelope_arrays(rows.heads, count)
        by_name = dict(zip((column.name for column in columns if column.name in _PLAIN), arrays, strict=True))
        arrays = [by_name[c.name] if c.name in by_name else envelopes[c.name] for c in columns]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    first, end = (int(place) for place in np.searchsorted(rows.offsets, (task.start, task.end)))
    for at in range(first, end, ROWS_MAX):
        yield whole.slice(at, min(ROWS_MAX, end - at))
