"""Idempotent producers of streams: every value is appended once and in order, also through restarts of the broker.

    with broker.stream("runs/7/tokens").producer() as tokens:
        for token in model.generate(prompt):
            tokens.append(token)              # never waits for the network

Batching, retries and epochs are those of the topic producer (`producer_base`, `sender`, `window`). A stream is one log,
so all batches are of partition 0. `close` ends the producer, not the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from driftq.client.calls import streams
from driftq.client.calls.queue import Value, encode, raw_bytes
from driftq.client.pending_call import Pending
from driftq.client.producer.producer import EPOCH_RANDOM_BITS, first_epoch
from driftq.client.producer.producer_base import (
    AsyncProducerBase,
    DeliveryState,
    ProducerOptions,
    SyncProducerBase,
)
from driftq.client.transport.sansio import Call, random_bits, random_name
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.client.calls.streams import AppendReply
    from driftq.client.producer.producer_batch import Callback, ProducerBatch, Receipt
    from driftq.client.streams.stream import AsyncStream, Stream

PARTITION = 0


class StreamBatches:
    """Encodes the batches of a stream as calls."""

    def __init__(self, path: str, content_type: str, producer_id: str) -> None:
        self.path = path
        self.content_type = content_type
        self.producer_id = producer_id

    def raw(self, value: Value) -> bytes:
        """The bytes of a value in a batch. In a JSON stream, bytes must be JSON already."""
        if w.is_json(self.content_type):
            return value if isinstance(value, bytes) else encode(value)
        return raw_bytes(value)

    def __call__(self, batch: ProducerBatch, epoch: int, seq: int) -> Call[AppendReply]:
        values = batch.values
        body = w.join_json(values) if w.is_json(self.content_type) else b"".join(values)
        return streams.append(self.path, body, self.content_type, producer=(self.producer_id, epoch, seq))


def _new_state(
    path: str,
    content_type: str,
    producer_id: str,
    epoch: int | None,
    wake: Callable[[], None],
    options: ProducerOptions,
) -> tuple[StreamBatches, DeliveryState]:
    batches = StreamBatches(path, content_type, producer_id or f"py-{random_name()}")
    first = first_epoch(producer_id, int(time.time() * 1_000), random_bits(EPOCH_RANDOM_BITS))
    state = DeliveryState(
        batches,
        options,
        epoch=first if epoch is None else epoch,
        epoch_is_fixed=epoch is not None,
        wake=wake,
    )
    return batches, state


class IdempotentProducer(SyncProducerBase):
    """A producer of one stream; threads may share it. If the caller chooses the `epoch`, a higher one fences it off."""

    def __init__(
        self, stream: Stream, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        transport = stream._transport
        if not stream.content_type:
            stream.content_type = transport.execute(streams.describe(stream.path)).content_type
        self._batches, state = _new_state(stream.path, stream.content_type, producer_id, epoch, self._wake, options)
        self._start(transport.address, state)

    def append(self, value: Value, callback: Callback | None = None) -> Receipt:
        """Hand a value to the producer. Blocks only when the buffer is full."""
        raw = self._batches.raw(value)
        receipt = self._accumulator.put(PARTITION, raw, b"", b"", callback)
        return receipt if receipt is not None else self._put_when_room(PARTITION, raw, b"", b"", callback)


class AsyncIdempotentProducer(AsyncProducerBase):
    """A producer of one stream. `await append` waits only when the buffer is full."""

    def __init__(
        self,
        stream: AsyncStream,
        producer_id: str = "",
        *,
        epoch: int | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._stream = stream
        self._batches, state = _new_state(stream.path, stream.content_type, producer_id, epoch, self._wake, options)
        self._init(stream._transport.address, state)

    def append(self, value: Value, callback: Callback | None = None) -> Pending[Receipt]:
        """Hand a value to the producer; awaiting the receipt is optional. An append that is not awaited is an error."""
        self._forgotten.check()
        return Pending(self._append(value, callback), self._forgotten, "append")

    async def _append(self, value: Value, callback: Callback | None) -> Receipt:
        if not self._batches.content_type:
            stream = self._stream
            info = await stream._transport.execute(streams.describe(stream.path))
            self._batches.content_type = stream.content_type = info.content_type
        self._ensure_sender()
        raw = self._batches.raw(value)
        receipt = self._accumulator.put(PARTITION, raw, b"", b"", callback)
        return receipt if receipt is not None else await self._put_when_room(PARTITION, raw, b"", b"", callback)
