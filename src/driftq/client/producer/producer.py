"""Producers: messages of one topic in packed batches, each written once and in order whatever happens to the broker.

    with broker.producer("orders") as orders:
        orders.send({"id": 7}, key="user:1")

A message goes to the partition of its key, as the broker would choose it. Messages without a key are spread: a whole
batch goes to one partition, the next batch to another. A batch keeps its partition through every retry. Routers are not
consulted, and a message needs no idempotency key: (producer, epoch, seq) identifies its batch. One that has a key, to
share it with others, or the id of a job takes another way (`keyed_messages`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlencode

from driftq.client import trace
from driftq.client.calls import queue
from driftq.client.calls.admin import describe_topic
from driftq.client.calls.filters import time_text
from driftq.client.errors import InvalidCall
from driftq.client.pending_call import Pending
from driftq.client.producer.accumulator import ANY_PARTITION
from driftq.client.producer.keyed_messages import AsyncKeyedProducer, KeyedProducer, keyed_item
from driftq.client.producer.producer_base import (
    AsyncProducerBase,
    DeliveryState,
    ProducerOptions,
    SyncProducerBase,
)
from driftq.client.transport.sansio import Call, random_bits, random_name
from driftq.wire.fields import from_rfc3339
from driftq.wire.message import Envelope, Head, Job, encode_head
from driftq.wire.partitions import partition_of
from driftq.wire.records import pack_columns

if TYPE_CHECKING:
    from driftq.client.producer.producer_batch import Callback, ProducerBatch, Receipt, Receipts
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.produce import PackedReply

EPOCH_RANDOM_BITS = 10
KEYS_CACHED_MAX = 65_536


class KeyPartitions(dict[str, tuple[bytes, int]]):
    """A cache from a key to its bytes and its partition. Cleared when full."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions

    def __missing__(self, key: str) -> tuple[bytes, int]:
        raw = key.encode()
        entry = raw, partition_of(raw, self.partitions) if raw else ANY_PARTITION
        if len(self) >= KEYS_CACHED_MAX:
            self.clear()
        self[key] = entry
        return entry


def first_epoch(producer_id: str, now_ms: int, random_bits: int) -> int:
    """A producer with a random name starts at epoch 0. A named one starts at the time, so that a new instance fences
    off the previous one without asking the broker; random bits separate two of the same millisecond."""
    return (now_ms << EPOCH_RANDOM_BITS) | random_bits if producer_id else 0


class TopicBatches:
    """Encodes the batches of a topic as calls. A batch keeps its bytes for the next attempt."""

    def __init__(self, topic: str, producer_id: str, compress: bool) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self._compress = compress
        self._query = urlencode({"topic": topic})

    def __call__(self, batch: ProducerBatch, epoch: int, seq: int) -> Call[PackedReply]:
        if batch.encoded is None or batch.encoded[0] != (epoch, seq):
            packed = pack_columns(
                batch.values, batch.keys, batch.heads,
                producer=self.producer_id, epoch=epoch, seq=seq, compress=self._compress, scheduled=bool(batch.heads),
            )  # fmt: skip
            batch.encoded = (epoch, seq), packed
        return queue.send_packed(self.topic, batch.partition, batch.encoded[1], has_producer=True)


def head_of(
    envelope: Envelope | None, task: str, id: str, priority: int, delay_ms: int, not_before: Any, timeout_ms: int
) -> bytes:
    """The head of a message that has more than a value and a key."""
    if envelope is not None and (envelope.target_topic or envelope.partition_override is not None):
        raise InvalidCall("a producer writes to its own topic; use `send` for target_topic and partition_override")
    not_before_ms = from_rfc3339(time_text(not_before)) if not_before else 0
    if delay_ms:
        not_before_ms = int(time.time() * 1_000) + delay_ms
    job = Job(id, task, priority, not_before_ms, timeout_ms)
    return encode_head(Head(envelope=envelope, job=None if job == Job() else job))


def _new_state(topic: str, producer_id: str, wake: Callable[[], None], options: ProducerOptions) -> DeliveryState:
    epoch = first_epoch(producer_id, int(time.time() * 1_000), random_bits(EPOCH_RANDOM_BITS))
    encode = TopicBatches(topic, producer_id or f"py-{random_name()}", options.get("compress", False))
    return DeliveryState(encode, options, epoch=epoch, epoch_is_fixed=False, wake=wake)


class Producer(SyncProducerBase):
    """A producer of a topic. Threads may share it. `send` blocks only when the buffer is full."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        producer_id: str = "",
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.topic = topic
        self._options = options
        self._address = transport.address
        self._keyed: KeyedProducer | None = None  # made for the first message with a key of its own
        self._partitions = KeyPartitions(len(transport.execute(describe_topic(topic)).partitions))
        state = _new_state(topic, producer_id, self._wake, options)
        state.accumulator.spread(self._partitions.partitions, random_bits(EPOCH_RANDOM_BITS))
        self._start(transport.address, state)

    def send(
        self,
        value: queue.Value,
        key: str = "",
        *,
        partition: int | None = None,
        callback: Callback | None = None,
        **head: Any,
    ) -> Receipt:
        """Hand a message to the producer.

        Parameters:
            value: Bytes, text, or anything that JSON can represent.
            key: Chooses the partition: messages of one key keep their order.
            partition: Write to this partition instead.
            callback: Called with the receipt when the message is written or has failed, on the producer's thread.
            head: As for `broker.send`: `idempotency_key`, `envelope`, `task`, `id`, `priority`, `delay_ms`,
                `not_before`, `timeout_ms`.

        Returns a receipt at once: `receipt.result()` waits until the message is on disk. Messages with an idempotency
        key or an id keep their order among themselves, not with the others.
        """
        if trace.active is not None:
            head["envelope"] = trace.active.created(self.topic, head.get("envelope"))
        if head and (item := keyed_item(value, key, partition, head)) is not None:
            if self._keyed is None:
                self._keyed = KeyedProducer(self._address, self.topic, self._options)
            return self._keyed.put(item, callback)
        raw = value if type(value) is bytes else queue.raw_bytes(value)
        if not (key or head or callback):
            receipt = self._accumulator.put_plain(ANY_PARTITION if partition is None else partition, raw)
            if receipt is not None:
                return receipt
        raw_key, key_partition = self._partitions[key]
        if partition is None:
            partition = key_partition
        raw_head = _encode_head(head) if head else b""
        receipt = self._accumulator.put(partition, raw, raw_key, raw_head, callback)
        return receipt if receipt is not None else self._put_when_room(partition, raw, raw_key, raw_head, callback)

    def send_many(self, values: Iterable[queue.Value], key: str = "", *, partition: int | None = None) -> Receipts:
        """Hand many messages, of one key or partition or of neither, to the producer at once. The fastest way."""
        raws = [value if type(value) is bytes else queue.raw_bytes(value) for value in values]
        raw_key, key_partition = self._partitions[key]
        return self._put_many(key_partition if partition is None else partition, raws, raw_key)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is written or has failed. Raises `NotWritten` if something failed."""
        with contextlib.ExitStack() as parts:  # the keyed messages are flushed even if the others raise
            if self._keyed is not None:
                parts.callback(self._keyed.flush, timeout_s)
            super().flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close. What is not written after `timeout_s` fails. Raises `NotWritten` if something failed.
        Idempotent."""
        with contextlib.ExitStack() as parts:
            if self._keyed is not None:
                parts.callback(self._keyed.close, timeout_s)
            super().close(timeout_s)


class AsyncProducer(AsyncProducerBase):
    """A producer of a topic. `await send` waits only when the buffer is full; awaiting the receipt is optional."""

    def __init__(
        self,
        transport: AsyncTransport,
        topic: str,
        producer_id: str = "",
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.topic = topic
        self._options = options
        self._keyed: AsyncKeyedProducer | None = None  # made for the first message with a key of its own
        self._transport = transport
        self._partitions = KeyPartitions(0)
        self._init(transport.address, _new_state(topic, producer_id, self._wake, options))

    def send(
        self,
        value: queue.Value,
        key: str = "",
        *,
        partition: int | None = None,
        callback: Callback | None = None,
        **head: Any,
    ) -> Pending[Receipt]:
        """Hand a message to the producer, as `Producer.send` does. A send that is not awaited is an error."""
        self._forgotten.check()
        return Pending(self._send(value, key, partition, callback, head), self._forgotten, "send")

    async def _send(
        self, value: queue.Value, key: str, partition: int | None, callback: Callback | None, head: dict[str, Any]
    ) -> Receipt:
        if trace.active is not None:
            head["envelope"] = trace.active.created(self.topic, head.get("envelope"))
        if head and (item := keyed_item(value, key, partition, head)) is not None:
            if self._keyed is None:
                self._keyed = AsyncKeyedProducer(self._transport.address, self.topic, self._options)
            return await self._keyed.put(item, callback)
        if self._sender is None:
            await self._fetch_partitions()
        raw = value if type(value) is bytes else queue.raw_bytes(value)
        if not (key or head or callback):
            receipt = self._accumulator.put_plain(ANY_PARTITION if partition is None else partition, raw)
            if receipt is not None:
                return receipt
        raw_key, key_partition = self._partitions[key]
        if partition is None:
            partition = key_partition
        raw_head = _encode_head(head) if head else b""
        receipt = self._accumulator.put(partition, raw, raw_key, raw_head, callback)
        return (
            receipt if receipt is not None else await self._put_when_room(partition, raw, raw_key, raw_head, callback)
        )

    def send_many(
        self, values: Iterable[queue.Value], key: str = "", *, partition: int | None = None
    ) -> Pending[Receipts]:
        """Hand many messages, of one key or partition or of neither, to the producer at once. The fastest way."""
        self._forgotten.check()
        return Pending(self._send_many(values, key, partition), self._forgotten, "send_many")

    async def _send_many(self, values: Iterable[queue.Value], key: str, partition: int | None) -> Receipts:
        if self._sender is None:
            await self._fetch_partitions()
        raws = [value if type(value) is bytes else queue.raw_bytes(value) for value in values]
        raw_key, key_partition = self._partitions[key]
        return await self._put_many(key_partition if partition is None else partition, raws, raw_key)

    async def flush(self) -> None:
        """Wait until everything sent so far is written or has failed. Raises `NotWritten` if something failed."""
        async with contextlib.AsyncExitStack() as parts:
            if self._keyed is not None:
                parts.push_async_callback(self._keyed.flush)
            await super().flush()

    async def close(self) -> None:
        """Flush and close. Raises `NotWritten` if something failed. Idempotent."""
        async with contextlib.AsyncExitStack() as parts:
            if self._keyed is not None:
                parts.push_async_callback(self._keyed.close)
            await super().close()

    async def _fetch_partitions(self) -> None:
        """At the first message: fetch the number of partitions and start the sender."""
        self._partitions.partitions = len((await self._transport.execute(describe_topic(self.topic))).partitions)
        self._accumulator.spread(self._partitions.partitions, random_bits(EPOCH_RANDOM_BITS))
        self._ensure_sender()


def _encode_head(fields: dict[str, Any]) -> bytes:
    names = ("envelope", "task", "id", "priority", "delay_ms", "not_before", "timeout_ms")
    unknown = fields.keys() - set(names)
    if unknown:
        raise InvalidCall(f"a producer's message has no {', '.join(sorted(unknown))}; see `send` of the broker")
    defaults: dict[str, Any] = {"envelope": None, "task": "", "id": "", "priority": 0, "delay_ms": 0, "timeout_ms": 0}
    return head_of(**{"not_before": None, **defaults, **fields})
