"""The envelope, routing and job of records as Arrow columns. All heads of a run are decoded in one pass.

A head that cannot be read counts as none: the broker checks heads when they come in, and a row that is there with its
value is worth more than a query that stops. Knows no Spark and no broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import numpy as np
import pyarrow as pa

from driftq.client.calls.queue import get, segment
from driftq.client.errors import NotFound
from driftq.spark.source.columns import ENVELOPE
from driftq.spark.source.options import BadOption
from driftq.wire.admin import StatesInfo
from driftq.wire.message import from_rfc3339

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.spark.source.arrow import Texts
    from driftq.spark.source.offsets import OffsetRange


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


_NONE = _Head()
_many = msgspec.json.Decoder(list[_Head])
_one = msgspec.json.Decoder(_Head)


def _time_us(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return from_rfc3339(text) * 1_000
    except ValueError:
        return None


def _maps(found: list[dict[str, str] | None], kind: pa.DataType) -> pa.Array:
    """Maps from their keys and values in a row; an empty one counts as none."""
    if not any(found):
        return pa.nulls(len(found), kind)
    ends = np.zeros(len(found) + 1, dtype=np.int32)
    np.cumsum([len(each) if each else 0 for each in found], out=ends[1:])
    there = [each for each in found if each]
    keys = pa.array(list(chain.from_iterable(there)), pa.string())
    items = pa.array(list(chain.from_iterable(each.values() for each in there)), pa.string())
    missing = pa.array([not each for each in found], pa.bool_())
    return pa.MapArray.from_arrays(pa.array(ends), keys, items, mask=missing)


_READ: dict[str, Callable[[list[_Head]], list[Any]]] = {
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


def _array(found: list[Any], kind: pa.DataType) -> pa.Array:
    return _maps(found, kind) if pa.types.is_map(kind) else pa.array(found, kind)


def envelope_arrays(texts: Texts | None, count: int, names: AbstractSet[str] | None = None) -> dict[str, pa.Array]:
    """The columns of the envelope, all of them or those that are named."""
    kinds = {column.name: column.arrow for column in ENVELOPE if names is None or column.name in names}
    if texts is None:
        return {name: pa.nulls(count, kind) for name, kind in kinds.items()}
    lengths = texts.lengths
    present = np.flatnonzero(lengths)
    heads = _decoded(texts, present)
    found = {name: _array(_READ[name](heads), kind) for name, kind in kinds.items()}
    if len(present) == count:
        return found
    # Rows without a head take the null that stands behind the last head.
    places = np.full(count, len(present), dtype=np.int32)
    places[present] = np.arange(len(present), dtype=np.int32)
    taken = pa.array(places)
    return {name: pa.concat_arrays([array, pa.nulls(1, array.type)]).take(taken) for name, array in found.items()}


def _decoded(texts: Texts, present: Any) -> list[_Head]:
    ends = texts.ends.tolist()
    data = bytes(texts.data)
    each = [data[ends[index] : ends[index + 1]] for index in present.tolist()]
    try:
        heads = _many.decode(b"[" + b",".join(each) + b"]")
        if len(heads) == len(each):
            return heads
    except (msgspec.DecodeError, RecursionError):
        pass
    return [_read(text) for text in each]


def _read(text: bytes) -> _Head:
    try:
        return _one.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _NONE


# --- What became of messages in a group, as columns beside them: one question for a range, not one for a message ---


WAITING, SETTLED, LEASED, RETRYING, DELAYED = "waiting", "settled", "leased", "retrying", "delayed"
WORDS = (WAITING, SETTLED, LEASED, RETRYING, DELAYED)
PAGE = 10_000


def state_arrays(transport: Transport, group: str, task: OffsetRange, first: int, end: int) -> dict[str, pa.Array]:
    """The columns of the queue's state for offsets [first, end)."""
    codes = np.zeros(end - first, dtype=np.int8)
    attempts = np.zeros(end - first, dtype=np.int32)
    errors: dict[int, str] = {}
    for page in _pages(transport, group, task, first, end):
        codes[: max(0, page.floor - first)] = WORDS.index(SETTLED)
        for low, high in page.settled:
            codes[max(0, low - first) : max(0, high - first)] = WORDS.index(SETTLED)
        pending = page.pending
        places = np.array(pending.offset, dtype=np.int64) - first
        codes[places] = [WORDS.index(word) if word in WORDS else WORDS.index(RETRYING) for word in pending.state]
        attempts[places] = pending.attempts
        errors |= {int(place): text for place, text in zip(places, pending.last_error, strict=True) if text}
    told = np.full(end - first, None, dtype=object)
    for place, text in errors.items():
        told[place] = text
    return {
        "queue_state": pa.array(WORDS, pa.string()).take(pa.array(codes)),
        # A settled message is only a part of a range by now: how often it was delivered is not known any more.
        "attempts": pa.array(attempts, pa.int32(), mask=codes == WORDS.index(SETTLED)),
        "last_error": pa.array(told, pa.string()),
    }


def _pages(transport: Transport, group: str, task: OffsetRange, first: int, end: int) -> Iterator[StatesInfo]:
    path = f"/v1/topics/{segment(task.topic)}/groups/{segment(group)}/states"
    while first < end:
        query = urlencode({"partition": task.partition, "offset": first, "end": end, "limit": PAGE})
        try:
            page = transport.ask(get(f"{path}?{query}", StatesInfo))
        except NotFound as error:
            raise BadOption(f"queueState={group}: {error.message}") from None
        yield page
        if page.next_offset <= first:
            return
        first = page.next_offset
