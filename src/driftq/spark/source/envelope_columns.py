"""The envelope, routing and job of records as Arrow columns. All heads are decoded in one pass.

A head that cannot be decoded counts as missing: the broker checks heads when it accepts them, and a row without an
envelope is better than a query that stops. Knows no Spark and no broker.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from driftq.spark.source.columns import ENVELOPE
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from driftq.spark.source.arrow import Texts


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
    ends = texts.ends.tolist()
    data = bytes(texts.data)
    """All heads as one JSON list; one by one only if one of them is broken."""
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
