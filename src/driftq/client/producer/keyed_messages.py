"""Messages of a producer that have a key of their own: an idempotency key, or the id of a job.

    send(…, idempotency_key="order-7") ──▶ KeyedBatches ──▶ POST /v1/produce/batch ──▶ a result for each message

A packed batch is known by (producer, epoch, seq), which identifies it for this producer alone. A key is shared with
others: with another process that sends the same order, or with this one after a restart. So these messages go in
batches of their own, as JSON, and each is stored once for its key. One batch is under way at a time, so they keep their
order among themselves, but not with the other messages of the producer.

A batch whose reply is lost is sent again: its keys make that harmless. If the broker has no room for some of them, all
are sent again. One that is refused for good fails alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from driftq.client.calls import queue
from driftq.client.errors import DriftQError, refused
from driftq.client.producer.producer_base import (
    AsyncProducerBase,
    DeliveryState,
    ProducerOptions,
    SyncProducerBase,
)
from driftq.client.transport.sansio import Call
from driftq.wire.errors import code_of
from driftq.wire.message import Envelope
from driftq.wire.produce import BatchReply

if TYPE_CHECKING:
    from driftq.client.producer.producer_batch import Callback, ProducerBatch, Receipt
    from driftq.client.transport.http import Address, HttpReply
    from driftq.wire.produce import BatchResult

BATCH_BYTES_MAX = 1 << 20  # a request has at most 10,000 messages, each of which counts for more than 105 bytes
PARTITION = 0  # of the window: there is one

_read_reply = queue.json_reader(BatchReply)


class KeyedResult(NamedTuple):
    """Where one message is stored, or why it is not: a `MessageResult`."""

    partition: int
    offset: int
    duplicate: bool
    error: DriftQError | None


class KeyedReply(NamedTuple):
    """The results of a batch, in its order."""

    results: list[KeyedResult]


class KeyedBatches:
    """Encodes batches as calls. Their values are messages as JSON, with their keys."""

    def __init__(self, topic: str) -> None:
        self._head = b'{"topic":' + queue.encode(topic) + b',"messages":['

    def __call__(self, batch: ProducerBatch, epoch: int, seq: int) -> Call[KeyedReply]:
        body = self._head + b",".join(batch.values) + b"]}"
        return Call("POST", "/v1/produce/batch", _read, refusal=queue.refusal, body=body, idempotent=True)


def _read(reply: HttpReply) -> KeyedReply:
    """Raises if some messages have to be sent again."""
    results = [_result(result) for result in _read_reply(reply).results]
    for result in results:
        if result.error is not None and result.error.retryable:
            raise result.error
    return KeyedReply(results)


def _result(result: BatchResult) -> KeyedResult:
    error: DriftQError | None = None
    if result.status >= 300:
        error = refused(
            code_of(result.error, result.status), result.message, result.status, None, result.retry_after_ms
        )
    return KeyedResult(result.partition, result.offset, result.duplicate, error)


def new_state(topic: str, wake: Callable[[], None], options: ProducerOptions) -> DeliveryState:
    """The accumulator and the counts of keyed messages: as the producer's, with one batch under way."""
    own = ProducerOptions(**options)
    own["batch_bytes"] = min(BATCH_BYTES_MAX, options.get("batch_bytes", BATCH_BYTES_MAX))
    own["in_flight_max"] = 1
    return DeliveryState(KeyedBatches(topic), own, epoch=0, epoch_is_fixed=False, wake=wake)


class KeyedProducer(SyncProducerBase):
    """The part of a `Producer` that sends keyed messages."""

    def __init__(self, address: Address, topic: str, options: ProducerOptions) -> None:
        self._start(address, new_state(topic, self._wake, options))

    def put(self, item: bytes, callback: Callback | None) -> Receipt:
        receipt = self._accumulator.put(PARTITION, item, b"", b"", callback)
        return receipt if receipt is not None else self._put_when_room(PARTITION, item, b"", b"", callback)


class AsyncKeyedProducer(AsyncProducerBase):
    """The part of an `AsyncProducer` that sends keyed messages."""

    def __init__(self, address: Address, topic: str, options: ProducerOptions) -> None:
        self._init(address, new_state(topic, self._wake, options))

    async def put(self, item: bytes, callback: Callback | None) -> Receipt:
        self._ensure_sender()
        receipt = self._accumulator.put(PARTITION, item, b"", b"", callback)
        return receipt if receipt is not None else await self._put_when_room(PARTITION, item, b"", b"", callback)


def keyed_item(value: queue.Value, key: str, partition: int | None, fields: dict[str, Any]) -> bytes | None:
    """A message as JSON if it has a key of its own; None if it has none."""
    envelope = fields.get("envelope")
    if not (fields.get("idempotency_key") or fields.get("id") or (envelope is not None and envelope.idempotency_key)):
        return None
    if partition is not None:
        envelope = msgspec.structs.replace(envelope or Envelope(), partition_override=partition)
    return queue.encode(queue.item(value, key=key, **{**fields, "envelope": envelope}))
