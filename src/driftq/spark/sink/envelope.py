"""Encodes the columns of the envelope, routing and job as heads: the JSON that is stored beside key and value.

The only part of the sink that makes a Python object for each row. Knows Arrow, and neither the broker nor Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from driftq.spark.sink.options import ENVELOPE_COLUMNS, SCHEDULE_COLUMNS
from driftq.wire.fields import to_rfc3339
from driftq.wire.message import PRIORITY_MAX, Envelope, Head, Job, Routing, encode_head

_ENVELOPE_FIELDS = ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "deadline")


class BadRow(ValueError):
    """A row cannot be written; the message names the column and the row."""


RowError = Callable[[str, int, str], BadRow]  # column, index in the batch, why


def heads_of(batch: pa.RecordBatch, *, staged: bool, refuse: RowError) -> pa.Array | None:
    """One head for each row, or None if no row has one."""
    names = batch.schema.names
    if "head" in names:
        heads = batch.column("head").cast(pa.binary()).fill_null(b"")
        return heads if any(heads.buffers()[1:]) else None
    columns = {name: batch.column(name) for name in ENVELOPE_COLUMNS if name in names}
    columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
    if not columns:
        return None
    if staged:
        for name in SCHEDULE_COLUMNS:
            if name in columns:
                _refuse_schedule(name, columns[name], refuse)
    texts = _encode_heads({name: _values(column) for name, column in columns.items()}, batch.num_rows, refuse)
    return pa.array(texts, pa.binary()) if any(texts) else None


def _values(column: pa.Array) -> list[Any]:
    """As Python values; times as RFC 3339 text."""
    if pa.types.is_timestamp(column.type):
        stamps = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if stamp is None else to_rfc3339(stamp) for stamp in stamps]
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _refuse_schedule(name: str, column: pa.Array, refuse: RowError) -> None:
    for index, value in enumerate(column.to_pylist()):
        if value:
            raise refuse(
                name, index, "a staged message cannot have it, so it must be null; drop the column or use mode=direct"
            )


def _encode_heads(columns: dict[str, Sequence[Any]], count: int, refuse: RowError) -> list[bytes]:
    nulls: Sequence[Any] = [None] * count
    envelope = [columns.get(name, nulls) for name in _ENVELOPE_FIELDS]
    labels, routing_label, routing_meta = (
        columns.get(name, nulls) for name in ("labels", "routing_label", "routing_meta")
    )
    tasks, priorities = columns.get("task", nulls), columns.get("priority", nulls)
    texts: list[bytes] = []
    for index in range(count):
        fields = {name: column[index] for name, column in zip(_ENVELOPE_FIELDS, envelope, strict=True) if column[index]}
        if labels[index]:
            fields["labels"] = _text_map("labels", labels[index], index, refuse)
        meta = _text_map("routing_meta", routing_meta[index], index, refuse) if routing_meta[index] else None
        routing = Routing(routing_label[index] or "", meta) if routing_label[index] or meta else None
        priority = priorities[index] or 0
        if not 0 <= priority <= PRIORITY_MAX:
            raise refuse("priority", index, f"it is {priority}; it must be from 0 to {PRIORITY_MAX}")
        job = Job(task=tasks[index] or "", priority=priority) if tasks[index] or priority else None
        texts.append(encode_head(Head(Envelope(**fields) if fields else None, routing, job)))
    return texts


def _text_map(name: str, pairs: dict[str, Any], index: int, refuse: RowError) -> dict[str, str]:
    if None in pairs.values():
        raise refuse(name, index, "a value in the map is null")
    return pairs
