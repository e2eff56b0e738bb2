"""The accumulator: collects messages into batches, one open batch per partition, within a byte limit.

    put()            open                  sealed                 taken               ended
    ─────▶ appends to the open ──▶ full, or a flush, ──▶ by the sender: ──▶ written or failed: receipts
           batch of a partition    or room is needed     `take()`           resolve, its bytes are free

A batch is also taken from the open state when it has lingered long enough. Callers may be many threads; one lock guards
what they share with the sender. Knows no socket and no sequence.

**Reserved bytes.** An open batch reserves room in steps of `RESERVE_BYTES`, and all of it counts as buffered. So most
messages only compare two numbers (`put_plain`); `_reserve` runs once per step and checks every limit. What a batch
reserved and did not use is freed when it is sealed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from driftq.client.producer.producer_batch import ProducerBatch, Receipt, Receipts, resolve

if TYPE_CHECKING:
    from driftq.client.producer.producer_batch import Callback

OVERHEAD_BYTES = 100  # what a buffered message costs in addition to its bytes, roughly
COUNT_MAX = 10_000  # the broker takes no more jobs in one batch
ANY_PARTITION = -1  # for messages without a key: they join the open batch of one partition, then of the next
RESERVE_BYTES = 16_384


class Accumulator:
    """The batches of all partitions that are not sent yet, and the bytes of all that have not ended."""

    def __init__(self, batch_bytes: int, buffer_bytes: int, wake: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)  # notified when a batch ends
        self.buffered_bytes = 0  # reserved by open batches, and used by sealed and taken ones
        self.flushing = False  # nothing lingers until every batch has ended
        self.closed = False  # takes no more messages
        self._batch_count = 0  # batches that have not ended
        self._sealed_messages = 0  # messages of batches that are sealed or taken and have not ended
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._wake = wake
        self._open: dict[int, ProducerBatch] = {}  # by partition
        self._full: dict[int, deque[ProducerBatch]] = {}  # sealed and not taken, by partition, oldest first
        self._partitions = 1
        self._sticky = 0  # the partition of messages for ANY_PARTITION; moves on when its batch is sealed
        self._waiters: list[asyncio.Future[None]] = []

    def spread(self, partitions: int, first: int) -> None:
        """Spread messages for `ANY_PARTITION` over so many partitions, batch by batch, beginning at one."""
        self._partitions = partitions
        self._sticky = first % partitions

    @property
    def is_empty(self) -> bool:
        return not self._batch_count

    @property
    def pending(self) -> int:
        """Messages that are neither written nor failed."""
        return self._sealed_messages + sum(len(batch.values) for batch in list(self._open.values()))

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether a message fits. One that is larger than the whole buffer fits when it is empty."""
        return self.buffered_bytes + size_bytes <= self._buffer_bytes or not self.buffered_bytes

    def put_plain(self, partition: int, value: bytes) -> Receipt | None:
        """Fast path of `put` for a message that is only a value. Returns None if there is no room."""
        with self.lock:
            batch = self._open.get(self._sticky if partition == ANY_PARTITION else partition)
            if batch is not None and not batch.has_columns:
                size_bytes = batch.size_bytes + len(value) + OVERHEAD_BYTES
                if size_bytes < batch.reserved_bytes:
                    batch.size_bytes = size_bytes
                    values = batch.values
                    values.append(value)
                    return Receipt(batch, len(values) - 1)
        return self.put(partition, value, b"", b"", None)

    def put(self, partition: int, value: bytes, key: bytes, head: bytes, callback: Callback | None) -> Receipt | None:
        """Take a message. None if there is no room, or the accumulator is closed."""
        size_bytes = len(value) + len(key) + len(head) + OVERHEAD_BYTES
        with self.lock:
            batch = self._open.get(self._sticky if partition == ANY_PARTITION else partition)
            if batch is None or batch.size_bytes + size_bytes >= batch.reserved_bytes:
                batch = self._reserve(partition, batch, size_bytes)
                if batch is None:
                    return None
            batch.size_bytes += size_bytes
            values = batch.values
            index = len(values)
            if key or head or batch.has_columns:
                batch.add_columns(key, head)
            values.append(value)
            if callback is not None:
                batch.callbacks.append((index, callback))
            if batch.size_bytes >= batch.reserved_bytes:
                self._seal_if_full(batch)
        return Receipt(batch, index)

    def put_many(self, partition: int, values: Sequence[bytes], key: bytes, start: int, receipts: Receipts) -> int:
        """Take values from `start` on, as many as there is room for. Returns the index of the first not taken."""
        size = len(values)
        with self.lock:
            while start < size:
                first_bytes = len(values[start]) + len(key) + OVERHEAD_BYTES
                batch = self._open.get(self._sticky if partition == ANY_PARTITION else partition)
                if batch is None or batch.size_bytes + first_bytes >= batch.reserved_bytes:
                    batch = self._reserve(partition, batch, first_bytes)
                    if batch is None:
                        return start
                taken = [values[start]]
                size_bytes = batch.size_bytes + first_bytes
                for value in islice(values, start + 1, None):
                    grown_bytes = size_bytes + len(value) + len(key) + OVERHEAD_BYTES
                    if grown_bytes >= batch.reserved_bytes:
                        break
                    size_bytes = grown_bytes
                    taken.append(value)
                if key or batch.has_columns:
                    for _ in taken:
                        batch.add_columns(key, b"")
                receipts.add(batch, len(batch.values), len(taken))
                batch.values += taken
                batch.size_bytes = size_bytes
                start += len(taken)
                if size_bytes >= batch.reserved_bytes:
                    self._seal_if_full(batch)
        return start

    def _reserve(self, partition: int, batch: ProducerBatch | None, size_bytes: int) -> ProducerBatch | None:
        """The open batch of a partition, with room reserved for a message; None if there is no room."""
        if self.closed:
            return None
        if batch is not None and len(batch.values) >= COUNT_MAX:
            self._seal(batch.partition)
            batch = None
        if batch is None:
            if not self.has_room_for(size_bytes):
                return None
            batch = self._open_batch(self._sticky if partition == ANY_PARTITION else partition)
        missing_bytes = batch.size_bytes + size_bytes - batch.reserved_bytes
        reserved_bytes = max(missing_bytes, min(RESERVE_BYTES, self._batch_bytes - batch.reserved_bytes))
        if self.buffered_bytes + reserved_bytes > self._buffer_bytes:
            if not self.has_room_for(missing_bytes):
                return None
            reserved_bytes = missing_bytes
        if reserved_bytes > 0:
            self.buffered_bytes += reserved_bytes
            batch.reserved_bytes += reserved_bytes
        return batch

    def _seal_if_full(self, batch: ProducerBatch) -> None:
        """Seal a batch that has reached its maximum size."""
        if batch.size_bytes >= self._batch_bytes:
            self._seal(batch.partition)

    def _open_batch(self, partition: int) -> ProducerBatch:
        batch = self._open[partition] = ProducerBatch(partition, time.monotonic())
        self._batch_count += 1
        self._wake()
        return batch

    def _seal(self, partition: int) -> None:
        batch = self._close(partition)
        self._full.setdefault(partition, deque()).append(batch)
        self._wake()

    def _close(self, partition: int) -> ProducerBatch:
        """The open batch of a partition takes no more; what it reserved and did not use is free."""
        batch = self._open.pop(partition)
        if partition == self._sticky:
            self._sticky = (partition + 1) % self._partitions
        self._sealed_messages += len(batch.values)
        self.buffered_bytes -= batch.reserved_bytes - batch.size_bytes
        return batch

    def partitions(self) -> list[int]:
        with self.lock:
            return list({**self._open, **self._full})

    def take(self, partition: int, now_s: float, linger_s: float) -> ProducerBatch | None:
        """The next batch of a partition that is sealed, has lingered long enough, or is flushed."""
        with self.lock:
            full = self._full.get(partition)
            if full:
                oldest = full.popleft()
                if not full:
                    del self._full[partition]
                return oldest
            batch = self._open.get(partition)
            if batch is None or not (self.flushing or batch.opened_s + linger_s <= now_s):
                return None
            return self._close(partition)

    def next_due_s(self, partition: int, linger_s: float) -> float | None:
        """When `take` will return a batch of a partition; None if it has none."""
        with self.lock:
            if partition in self._full:
                return 0.0
            batch = self._open.get(partition)
            if batch is None:
                return None
            return 0.0 if self.flushing else batch.opened_s + linger_s

    def flush(self) -> None:
        """Let nothing linger until every batch has ended."""
        self.flushing = bool(self._batch_count)
        self._wake()

    def seal_lingering(self) -> None:
        """Seal every open batch if nothing else is on its way, since only that makes room. Call it under the lock."""
        if not self._sealed_messages:
            for partition in list(self._open):
                self._seal(partition)

    def batch_ended(self, batch: ProducerBatch) -> None:
        """A batch that was taken is written or has failed: free its bytes and wake the callers that wait for room."""
        with self.lock:
            self.buffered_bytes -= batch.size_bytes
            self._sealed_messages -= batch.count
            self._batch_count -= 1
            if not self._batch_count:
                self.flushing = False
            self.room.notify_all()
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            resolve(waiter)

    async def wait_for_batch_end(self) -> None:
        """Wait until a batch has ended. For coroutines on the sender's loop."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def take_all(self) -> list[ProducerBatch]:
        """Every batch that was not taken yet; for a sender that ends."""
        with self.lock:
            for partition in list(self._open):
                self._seal(partition)
            batches = [batch for full in self._full.values() for batch in full]
            self._full.clear()
        return batches
