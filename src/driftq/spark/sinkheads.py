"""The columns of the envelope, routing and job as heads: the JSON that rides beside key and value.

A null is nothing said. What a staged message cannot carry is refused here, by column and row, before anything is sent.
This is the one place of the sink that touches rows one by one, and only where there are such columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from driftq.spark.sinkplan import ENVELOPE_COLUMNS, SCHEDULED
from driftq.wire.message import PRIORITY_MAX, Envelope, Head, Job, Routing, encode_head
from driftq.wire.times import to_rfc3339


class BadRow(ValueError):
    """A row cannot be written; the message names the column and the row."""


Raise = Callable[[str, int, str], BadRow]  # column, index in the batch, why


def heads_of(batch: pa.RecordBatch, *, staged: bool, refuse: Raise) -> pa.Array | None:
    """One head for each row, or None when no row has one."""
    names = batch.schema.names
    if "head" in names:
        given = batch.column("head").cast(pa.binary()).fill_null(b"")
        return given if any(given.buffers()[1:]) else None
    columns = {name: batch.column(name) for name in ENVELOPE_COLUMNS if name in names}
    columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
    if not columns:
        return None
    if staged:
        for name in SCHEDULED:
            if name in columns:
                _refuse_scheduled(name, columns[name], refuse)
    texts = _encoded({name: _values(column) for name, column in columns.items()}, batch.num_rows, refuse)
    return pa.array(texts, pa.binary()) if any(texts) else None


def _values(column: pa.Array) -> list[Any]:
    """As Python has them; times as RFC 3339."""
    if pa.types.is_timestamp(column.type):
        stamps = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if stamp is None else to_rfc3339(stamp) for stamp in stamps]
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _refuse_scheduled(name: str, column: pa.Array, refuse: Raise) -> None:
    for index, value in enumerate(column.to_pylist()):
        if value:
            raise refuse(name, index, "staged messages are plain, so it must be null; drop it or use mode=direct")


def _encoded(columns: dict[str, Sequence[Any]], count: int, refuse: Raise) -> list[bytes]:
    nothing: Sequence[Any] = [None] * count
    envelope = [columns.get(name, nothing) for name in _ENVELOPE]
    labels, routing_label, routing_meta = (
        columns.get(name, nothing) for name in ("labels", "routing_label", "routing_meta")
    )
    tasks, priorities = columns.get("task", nothing), columns.get("priority", nothing)
    texts: list[bytes] = []
    for index in range(count):
        said = {name: column[index] for name, column in zip(_ENVELOPE, envelope, strict=True) if column[index]}
        if labels[index]:
            said["labels"] = _words("labels", labels[index], index, refuse)
        meta = _words("routing_meta", routing_meta[index], index, refuse) if routing_meta[index] else None
        routing = Routing(routing_label[index] or "", meta) if routing_label[index] or meta else None
        priority = priorities[index] or 0
        if not 0 <= priority <= PRIORITY_MAX:
            raise refuse("priority", index, f"it is {priority}; 0 to {PRIORITY_MAX} are allowed")
        job = Job(task=tasks[index] or "", priority=priority) if tasks[index] or priority else None
        texts.append(encode_head(Head(Envelope(**said) if said else None, routing, job)))
    return texts


_ENVELOPE = ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "deadline")


def _words(name: str, pairs: dict[str, Any], index: int, refuse: Raise) -> dict[str, str]:
    if None in pairs.values():
        raise refuse(name, index, "a value in the map is null")
    return pairs
