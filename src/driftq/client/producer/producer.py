"""Producers: messages of one topic in packed batches, each written once and in order whatever happens to the broker.

    with broker.producer("orders") as orders:
        orders.send({"id": 7}, key="user:1")

A message goes to the partition of its key, as the broker would choose it. Messages without a key are spread: a whole
batch goes to one partition, the next batch to another. A batch keeps its partition through every retry. Routers are not
asked, and a message has no idempotency key of its own: the producer's name, epoch and seq do that work for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import urlencode

from driftq.client.calls import queue
from driftq.client.calls.admin import describe_topic
from driftq.client.errors import InvalidCall
from driftq.client.producer.accumulator import ANY, Callback, ProducerBatch, Receipt, Receipts
from driftq.client.producer.producer_base import AsyncWriter, ProducerBase, ProducerOptions, SyncWriter, options_of
from driftq.client.transport.sansio import Call, random_bits, random_name
from driftq.wire.message import Envelope, Head, Job, encode_head, from_rfc3339
from driftq.wire.partitions import partition_of
from driftq.wire.records import pack_columns

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport

CHANCE_BITS = 10
LANES_KNOWN_MAX = 65_536


class PartitionWindows(dict[str, tuple[bytes, int]]):
    """Keys as bytes and their partitions, remembered: a key that was seen costs one look. Forgets all when full."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions

    def __missing__(self, key: str) -> tuple[bytes, int]:
        raw = key.encode()
        found = raw, partition_of(raw, self.partitions) if raw else ANY
        if len(self) >= LANES_KNOWN_MAX:
            self.clear()
        self[key] = found
        return found


def first_epoch(producer_id: str, now_ms: int, chance: int) -> int:
    """A producer with a random name begins at 0. A named one takes the time, so that a new life of it shuts out the
    last one without asking; chance tells apart two that begin in the same millisecond."""
    return (now_ms << CHANCE_BITS) | chance if producer_id else 0


class TopicBatches:
    """A topic's batches as calls. Pure, except that a batch keeps its bytes for the next attempt."""

    def __init__(self, topic: str, producer_id: str, compress: bool) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self._compress = compress
        self._query = urlencode({"topic": topic})

    def __call__(self, batch: ProducerBatch, epoch: int, seq: int) -> Call[queue.PackedReply]:
        if batch.encoded is None or batch.encoded[0] != (epoch, seq):
            packed = pack_columns(
                batch.values, batch.keys, batch.heads,
                producer=self.producer_id, epoch=epoch, seq=seq, compress=self._compress, scheduled=bool(batch.heads),
            )  # fmt: skip
            batch.encoded = (epoch, seq), packed
        return queue.send_packed(self.topic, batch.lane, batch.encoded[1], has_producer=True)


def head_of(
    envelope: Envelope | None, task: str, id: str, priority: int, delay_ms: int, not_before: Any, timeout_ms: int
) -> bytes:
    """The head of a message that is more than a value and a key."""
    if envelope is not None and (envelope.target_topic or envelope.partition_override is not None):
        raise InvalidCall("a producer writes to its own topic; use `send` for target_topic and partition_override")
    if envelope is not None and envelope.idempotency_key:
        raise InvalidCall("a producer needs no idempotency keys; use `send` if a key must be shared with others")
    not_before_ms = from_rfc3339(queue.time_text(not_before)) if not_before else 0
    if delay_ms:
        not_before_ms = int(time.time() * 1_000) + delay_ms
    job = Job(id, task, priority, not_before_ms, timeout_ms)
    return encode_head(Head(envelope=envelope, job=None if job == Job() else job))


def _writing(topic: str, producer_id: str, wake: Callable[[], None], words: ProducerOptions) -> ProducerBase:
    options = options_of(words)
    name = producer_id or f"py-{random_name()}"
    epoch = first_epoch(producer_id, int(time.time() * 1_000), random_bits(CHANCE_BITS))
    packing = TopicBatches(topic, name, options.compress)
    return ProducerBase(packing, options, epoch=epoch, is_fixed=False, wake=wake, words=words)


class Producer(SyncWriter):
    """Threads may share one. `send` blocks only when the buffer is full."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        producer_id: str = "",
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.topic = topic
        self._lanes = PartitionWindows(len(transport.ask(describe_topic(topic)).partitions))
        writing = _writing(topic, producer_id, self._wake, options)
        writing.gathering.spread(self._lanes.partitions, random_bits(CHANCE_BITS))
        self._start(transport.address, writing)

    def send(
        self,
        value: queue.Value,
        key: str = "",
        *,
        partition: int | None = None,
        callback: Callback | None = None,
        **head: Any,
    ) -> Receipt:
        """Give a message to the producer. `head`: envelope, task, id, priority, delay_ms, not_before, timeout_ms."""
        raw = value if type(value) is bytes else queue.raw_bytes(value)
        if not (key or head or callback):
            receipt = self._gathering.put_plain(ANY if partition is None else partition, raw)
            if receipt is not None:
                return receipt
        raw_key, lane = self._lanes[key]
        if partition is not None:
            lane = partition
        raw_head = _head(head) if head else b""
        receipt = self._gathering.put(lane, raw, raw_key, raw_head, callback)
        return receipt if receipt is not None else self._wait(lane, raw, raw_key, raw_head, callback)

    def send_many(self, values: Iterable[queue.Value], key: str = "", *, partition: int | None = None) -> Receipts:
        """Give many messages, of one key or partition or of neither, to the producer in one go. The quickest way."""
        raws = [value if type(value) is bytes else queue.raw_bytes(value) for value in values]
        raw_key, lane = self._lanes[key]
        return self._give_many(lane if partition is None else partition, raws, raw_key)


class AsyncProducer(AsyncWriter):
    """`await send` waits only when the buffer is full; the receipt can be awaited later, or not at all."""

    def __init__(
        self,
        transport: AsyncTransport,
        topic: str,
        producer_id: str = "",
        **options: Unpack[ProducerOptions],
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._lanes = PartitionWindows(0)
        self._begin(transport.address, _writing(topic, producer_id, self._wake, options))

    async def send(
        self,
        value: queue.Value,
        key: str = "",
        *,
        partition: int | None = None,
        callback: Callback | None = None,
        **head: Any,
    ) -> Receipt:
        """Give a message to the producer. `head`: envelope, task, id, priority, delay_ms, not_before, timeout_ms."""
        if self._pipeline is None:
            await self._find()
        raw = value if type(value) is bytes else queue.raw_bytes(value)
        if not (key or head or callback):
            receipt = self._gathering.put_plain(ANY if partition is None else partition, raw)
            if receipt is not None:
                return receipt
        raw_key, lane = self._lanes[key]
        if partition is not None:
            lane = partition
        raw_head = _head(head) if head else b""
        receipt = self._gathering.put(lane, raw, raw_key, raw_head, callback)
        return receipt if receipt is not None else await self._wait(lane, raw, raw_key, raw_head, callback)

    async def send_many(
        self, values: Iterable[queue.Value], key: str = "", *, partition: int | None = None
    ) -> Receipts:
        """Give many messages, of one key or partition or of neither, to the producer in one go. The quickest way."""
        if self._pipeline is None:
            await self._find()
        raws = [value if type(value) is bytes else queue.raw_bytes(value) for value in values]
        raw_key, lane = self._lanes[key]
        return await self._give_many(lane if partition is None else partition, raws, raw_key)

    async def _find(self) -> None:
        """At the first message: how many partitions there are, and a pipeline to them."""
        self._lanes.partitions = len((await self._transport.ask(describe_topic(self.topic))).partitions)
        self._gathering.spread(self._lanes.partitions, random_bits(CHANCE_BITS))
        self._running()


def _head(words: dict[str, Any]) -> bytes:
    names = ("envelope", "task", "id", "priority", "delay_ms", "not_before", "timeout_ms")
    unknown = words.keys() - set(names)
    if unknown:
        raise InvalidCall(f"a producer's message has no {', '.join(sorted(unknown))}; see `send` of the broker")
    blank: dict[str, Any] = {"envelope": None, "task": "", "id": "", "priority": 0, "delay_ms": 0, "timeout_ms": 0}
    return head_of(**{"not_before": None, **blank, **words})
