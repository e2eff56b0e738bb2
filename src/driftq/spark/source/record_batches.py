"""Turns fetched batches of packed records into Arrow record batches with the columns that a query selects.

Heads are decoded only if a column of the envelope is selected, and then all of them in one pass. A head that cannot be
decoded counts as missing: the broker checks heads when it accepts them, and a row without an envelope is better than a
query that stops. Knows no broker: columns that need a call to the broker (`extra`) come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from driftq.spark.source import arrow
from driftq.spark.source.columns import ENVELOPE, Column, arrow_schema
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from driftq.spark.source.arrow import Rows, Texts
    from driftq.spark.source.offsets import OffsetRange

ROWS_MAX = 65_536  # a good size for Spark; see Capacity in docs/guides/spark.md
SMALL_BYTES = 256 * 1024  # a fetch with less is joined with others
JOINED_BYTES = 4 << 20

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


def joined(fetches: Iterable[tuple[int, Iterator[pa.RecordBatch]]]) -> Iterator[pa.RecordBatch]:
    """The record batches of fetches, each with its size in bytes; those of small ones as one. Each record batch costs
    Spark about a millisecond, and a task that reads many logs would have one for each of them."""
    small: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for fetched_bytes, batches in fetches:
        is_small = fetched_bytes < SMALL_BYTES
        if small and not (is_small and size_bytes + fetched_bytes <= JOINED_BYTES and rows < ROWS_MAX):
            yield _concatenated(small)
            small, size_bytes, rows = [], 0, 0
        if not is_small:
            yield from batches
            continue
        for batch in batches:
            small.append(batch)
            rows += batch.num_rows
        size_bytes += fetched_bytes
    if small:
        yield _concatenated(small)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


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


# --- the envelope, routing and job of records ---


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    labels: dict[str, str] | None = None
    deadline: str | None = None


class _Routing(msgspec.Struct, frozen=True, gc=False):
    label: str | None = None
    meta: dict[str, str] | None = None


class _Job(msgspec.Struct, frozen=True, gc=False):
    task: str | None = None
    priority: int = 0


class _Head(msgspec.Struct, frozen=True, gc=False):
    envelope: _Envelope = _Envelope()
    routing: _Routing = _Routing()
    job: _Job | None = None


_NO_HEAD = _Head()
_list_decoder = msgspec.json.Decoder(list[_Head])
_decoder = msgspec.json.Decoder(_Head)


def _time_us(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return from_rfc3339(text) * 1_000
    except ValueError:
        return None


def _map_array(maps: list[dict[str, str] | None], kind: pa.DataType) -> pa.Array:
    """An Arrow map array; an empty map becomes null."""
    if not any(maps):
        return pa.nulls(len(maps), kind)
    ends = np.zeros(len(maps) + 1, dtype=np.int32)
    np.cumsum([len(pairs) if pairs else 0 for pairs in maps], out=ends[1:])
    present = [pairs for pairs in maps if pairs]
    keys = pa.array(list(chain.from_iterable(present)), pa.string())
    items = pa.array(list(chain.from_iterable(pairs.values() for pairs in present)), pa.string())
    missing = pa.array([not pairs for pairs in maps], pa.bool_())
    return pa.MapArray.from_arrays(pa.array(ends), keys, items, mask=missing)


_VALUES: dict[str, Callable[[list[_Head]], list[Any]]] = {
    "run_id": lambda heads: [head.envelope.run_id for head in heads],
    "step_id": lambda heads: [head.envelope.step_id for head in heads],
    "parent_step_id": lambda heads: [head.envelope.parent_step_id for head in heads],
    "tenant_id": lambda heads: [head.envelope.tenant_id for head in heads],
    "idempotency_key": lambda heads: [head.envelope.idempotency_key for head in heads],
    "labels": lambda heads: [head.envelope.labels for head in heads],
    "deadline": lambda heads: [_time_us(head.envelope.deadline) for head in heads],
    "routing_label": lambda heads: [head.routing.label for head in heads],
    "routing_meta": lambda heads: [head.routing.meta for head in heads],
    "task": lambda heads: [head.job.task if head.job else None for head in heads],
    "priority": lambda heads: [head.job.priority if head.job else None for head in heads],
}


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return _map_array(values, kind) if pa.types.is_map(kind) else pa.array(values, kind)


def envelope_arrays(texts: Texts | None, count: int, names: AbstractSet[str] | None = None) -> dict[str, pa.Array]:
    """The columns of the envelope: all of them, or only `names`."""
    kinds = {column.name: column.arrow for column in ENVELOPE if names is None or column.name in names}
    if texts is None:
        return {name: pa.nulls(count, kind) for name, kind in kinds.items()}
    lengths = texts.lengths
    present = np.flatnonzero(lengths)
    heads = _decode_heads(texts, present)
    arrays = {name: _array(_VALUES[name](heads), kind) for name, kind in kinds.items()}
    if len(present) == count:
        return arrays
    # A null is appended to each column; rows without a head take that one.
    indices = np.full(count, len(present), dtype=np.int32)
    indices[present] = np.arange(len(present), dtype=np.int32)
    picks = pa.array(indices)
    return {name: pa.concat_arrays([array, pa.nulls(1, array.type)]).take(picks) for name, array in arrays.items()}


def _decode_heads(texts: Texts, present: Any) -> list[_Head]:
    """All heads as one JSON list; one by one only if one of them is broken."""
    ends = texts.ends.tolist()
    data = bytes(texts.data)
    encoded = [data[ends[index] : ends[index + 1]] for index in present.tolist()]
    try:
        heads = _list_decoder.decode(b"[" + b",".join(encoded) + b"]")
        if len(heads) == len(encoded):
            return heads
    except (msgspec.DecodeError, RecursionError):
        pass
    return [_decode_head(text) for text in encoded]


def _decode_head(text: bytes) -> _Head:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _NO_HEAD
