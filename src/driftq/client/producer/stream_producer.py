"""Idempotent producers of streams: every value lands once and in order, whatever happens to the broker.

    with broker.stream("runs/7/tokens").producer() as tokens:
        for token in model.generate(prompt):
            tokens.append(token)              # never waits for the network

`close` ends the producer, not the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from driftq.client.calls import streams
from driftq.client.calls.queue import Value, encode, raw_bytes
from driftq.client.producer.producer import CHANCE_BITS, first_epoch
from driftq.client.producer.producer_base import AsyncWriter, ProducerBase, ProducerOptions, SyncWriter, options_of
from driftq.client.transport.sansio import Call, random_bits, random_name
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.client.calls.streams import AppendReply
    from driftq.client.producer.accumulator import Callback, ProducerBatch, Receipt
    from driftq.client.streams.stream import AsyncStream, Stream

LANE = 0


class StreamBatches:
    """A stream's batches as calls."""

    def __init__(self, path: str, content_type: str, producer_id: str) -> None:
        self.path = path
        self.content_type = content_type
        self.producer_id = producer_id

    def raw(self, value: Value) -> bytes:
        """A value as it stands in a batch. In a JSON stream bytes are JSON already."""
        if w.is_json(self.content_type):
            return value if isinstance(value, bytes) else encode(value)
        return raw_bytes(value)

    def __call__(self, batch: ProducerBatch, epoch: int, seq: int) -> Call[AppendReply]:
        values = batch.values
        body = w.join_json(values) if w.is_json(self.content_type) else b"".join(values)
        return streams.append(self.path, body, self.content_type, producer=(self.producer_id, epoch, seq))


def _writing(
    path: str,
    content_type: str,
    producer_id: str,
    epoch: int | None,
    wake: Callable[[], None],
    words: ProducerOptions,
) -> tuple[StreamBatches, ProducerBase]:
    appending = StreamBatches(path, content_type, producer_id or f"py-{random_name()}")
    first = first_epoch(producer_id, int(time.time() * 1_000), random_bits(CHANCE_BITS))
    writing = ProducerBase(
        appending,
        options_of(words),
        epoch=first if epoch is None else epoch,
        is_fixed=epoch is not None,
        wake=wake,
        words=words,
    )
    return appending, writing


class IdempotentProducer(SyncWriter):
    """For one stream; any number of threads may use it. With an `epoch` of the caller's, a higher one shuts it out."""

    def __init__(
        self, stream: Stream, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> None:
        transport = stream._transport
        if not stream.content_type:
            stream.content_type = transport.ask(streams.describe(stream.path)).content_type
        self._appending, writing = _writing(stream.path, stream.content_type, producer_id, epoch, self._wake, options)
        self._start(transport.address, writing)

    def append(self, value: Value, callback: Callback | None = None) -> Receipt:
        """Give a value to the producer. Blocks only when the buffer is full."""
        raw = self._appending.raw(value)
        receipt = self._gathering.put(LANE, raw, b"", b"", callback)
        return receipt if receipt is not None else self._wait(LANE, raw, b"", b"", callback)


class AsyncIdempotentProducer(AsyncWriter):
    """For one stream. `await append` waits only when the buffer is full."""

    def __init__(
        self,
        stream: AsyncStream,
        producer_id: str = "",
        *,
        epoch: int | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._stream = stream
        self._appending, writing = _writing(stream.path, stream.content_type, producer_id, epoch, self._wake, options)
        self._begin(stream._transport.address, writing)

    async def append(self, value: Value, callback: Callback | None = None) -> Receipt:
        """Give a value to the producer; the receipt can be awaited later, or not at all."""
        if not self._appending.content_type:
            stream = self._stream
            found = await stream._transport.ask(streams.describe(stream.path))
            self._appending.content_type = stream.content_type = found.content_type
        self._running()
        raw = self._appending.raw(value)
        receipt = self._gathering.put(LANE, raw, b"", b"", callback)
        return receipt if receipt is not None else await self._wait(LANE, raw, b"", b"", callback)
