"""Messages on their way into batches: gathered by those who send, taken by the one who writes. Bounded.

A `Receipt` is one message's place in a batch; everything heavy (a future, an event) is made only when somebody asks.
The senders may be many threads; one lock guards what they share with the writer. Knows no socket and no sequence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from driftq.client.errors import DriftQError, OutcomeUnknown

OVERHEAD_BYTES = 100  # about what a message costs beyond its bytes while it waits
COUNT_MAX = 20_000
ANY = -1  # a lane for messages without a key: the batch that is open now, then one of another lane
ROOM_BYTES = 16_384  # a batch is given room in steps, so that most messages only compare two numbers


class ProducerBatch:
    """Messages of one lane that travel together."""

    __slots__ = (
        "_event", "_futures", "_lock", "callbacks", "count", "encoded", "ended", "error", "has_more", "heads", "keys",
        "lane", "opened_s", "place", "room_bytes", "size_bytes", "values",
    )  # fmt: skip

    def __init__(self, lane: int, opened_s: float) -> None:
        self.lane = lane
        self.opened_s = opened_s
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.heads: list[bytes] = []
        self.has_more = False  # some message has a key or a head
        self.count = 0  # known at the end
        self.size_bytes = 0
        self.room_bytes = 0  # how large it may grow without asking; all of it counts as held while the batch is open
        self.encoded: tuple[tuple[int, int], bytes] | None = None  # the bytes of an epoch and seq
        self.callbacks: list[tuple[int, Callable[[Receipt], None]]] = []
        self.ended = False
        self.error: DriftQError | None = None
        self.place: Any = None  # what the broker answered
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def add_more(self, key: bytes, head: bytes) -> None:
        """Keys and heads are columns from the first message on that has one."""
        if not self.has_more:
            self.keys = [b""] * len(self.values)
            self.heads = [b""] * len(self.values)
            self.has_more = True
        self.keys.append(key)
        self.heads.append(head)

    def end(self, place: object, error: DriftQError | None) -> None:
        """Everybody who waits is told."""
        with self._lock:
            self.place, self.error, self.ended = place, error, True
            self.count = len(self.values)
            self.values, self.keys, self.heads, self.encoded = [], [], [], None
            event, futures = self._event, self._futures
        if event is not None:
            event.set()
        for loop, future in futures:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_tell, future)
        for index, callback in self.callbacks:
            callback(Receipt(self, index))

    def wait(self, timeout_s: float | None) -> bool:
        with self._lock:
            if self.ended:
                return True
            self._event = self._event or threading.Event()
        return self._event.wait(timeout_s)

    async def wait_async(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.ended:
                return
            future: asyncio.Future[None] = loop.create_future()
            self._futures.append((loop, future))
        await future


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Receipt(Struct, gc=False):
    """One message's fate: `result()` blocks, `await receipt` does not. Both raise what went wrong."""

    batch: ProducerBatch
    index: int

    @property
    def done(self) -> bool:
        return self.batch.ended

    @property
    def error(self) -> DriftQError | None:
        return self.batch.error

    @property
    def partition(self) -> int:
        return self.batch.lane

    @property
    def offset(self) -> int:
        """Where it is in its partition; -1 before it is there, and for a repeat the broker no longer remembers."""
        first = getattr(self.batch.place, "offset", -1)
        return first + self.index if first >= 0 else -1

    def result(self, timeout_s: float | None = None) -> Receipt:
        if not self.batch.wait(timeout_s):
            raise OutcomeUnknown(f"not written after {timeout_s} s; the producer goes on trying")
        return self._checked()

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from self.batch.wait_async().__await__()
        return self._checked()

    def _checked(self) -> Receipt:
        if self.batch.error is not None:
            raise self.batch.error
        return self


class Receipts:
    """The fate of messages that were given together: `result()` blocks until all of them have ended."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[ProducerBatch, int, int]] = []  # a batch, its first message of ours, how many

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        self._parts.append((batch, first, count))

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def __iter__(self) -> Iterator[Receipt]:
        return (Receipt(batch, first + index) for batch, first, count in self._parts for index in range(count))

    @property
    def done(self) -> bool:
        return all(batch.ended for batch, _, _ in self._parts)

    def result(self, timeout_s: float | None = None) -> Receipts:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for batch, first, _ in self._parts:
            Receipt(batch, first).result(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
        return self

    def __await__(self) -> Generator[Any, None, Receipts]:
        for batch, first, _ in self._parts:
            yield from Receipt(batch, first).__await__()
        return self


Callback = Callable[[Receipt], None]


class Accumulator:
    """Open and full batches of all lanes, and how many bytes they hold."""

    def __init__(self, batch_bytes: int, buffer_bytes: int, wake: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self.held_bytes = 0
        self.flushing = False
        self.closed = False
        self._unended = 0  # batches that were begun and have not ended
        self._sealed = 0  # messages of those that are no longer open
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._wake = wake
        self._open: dict[int, ProducerBatch] = {}
        self._full: dict[int, deque[ProducerBatch]] = {}
        self._lanes = 1
        self._sticky = 0  # the lane of messages that may go to any
        self._waiters: list[asyncio.Future[None]] = []

    def spread(self, lanes: int, first: int) -> None:
        """Let messages for `ANY` lane go to this many in turn, batch by batch."""
        self._lanes = lanes
        self._sticky = first % lanes

    @property
    def is_empty(self) -> bool:
        return not self._unended

    @property
    def pending(self) -> int:
        """Messages that have not ended."""
        return self._sealed + sum(len(batch.values) for batch in list(self._open.values()))

    def fits(self, size_bytes: int) -> bool:
        """A message larger than everything fits when it is alone."""
        return self.held_bytes + size_bytes <= self._buffer_bytes or not self.held_bytes

    def put_plain(self, lane: int, value: bytes) -> Receipt | None:
        """`put` for a value and nothing else: what is done for every message of those who send most."""
        with self.lock:
            batch = self._open.get(self._sticky if lane == ANY else lane)
            if batch is not None and not batch.has_more:
                size_bytes = batch.size_bytes + len(value) + OVERHEAD_BYTES
                if size_bytes < batch.room_bytes:
                    batch.size_bytes = size_bytes
                    values = batch.values
                    values.append(value)
                    return Receipt(batch, len(values) - 1)
        return self.put(lane, value, b"", b"", None)

    def put(self, lane: int, value: bytes, key: bytes, head: bytes, callback: Callback | None) -> Receipt | None:
        """Take a message; None if there is no room, or no more."""
        size_bytes = len(value) + len(key) + len(head) + OVERHEAD_BYTES
        with self.lock:
            batch = self._open.get(self._sticky if lane == ANY else lane)
            if batch is None or batch.size_bytes + size_bytes >= batch.room_bytes:
                batch = self._grown(lane, batch, size_bytes)
                if batch is None:
                    return None
            batch.size_bytes += size_bytes
            values = batch.values
            index = len(values)
            if key or head or batch.has_more:
                batch.add_more(key, head)
            values.append(value)
            if callback is not None:
                batch.callbacks.append((index, callback))
            if batch.size_bytes >= batch.room_bytes:
                self._seal_full(batch)
        return Receipt(batch, index)

    def put_many(self, lane: int, values: Sequence[bytes], key: bytes, start: int, receipts: Receipts) -> int:
        """Take values from `start` on, as many as find room; returns where the next begins."""
        size = len(values)
        with self.lock:
            while start < size:
                first_bytes = len(values[start]) + len(key) + OVERHEAD_BYTES
                batch = self._open.get(self._sticky if lane == ANY else lane)
                if batch is None or batch.size_bytes + first_bytes >= batch.room_bytes:
                    batch = self._grown(lane, batch, first_bytes)
                    if batch is None:
                        return start
                taken = [values[start]]
                size_bytes = batch.size_bytes + first_bytes
                for value in islice(values, start + 1, None):
                    grown_bytes = size_bytes + len(value) + len(key) + OVERHEAD_BYTES
                    if grown_bytes >= batch.room_bytes:
                        break
                    size_bytes = grown_bytes
                    taken.append(value)
                if key or batch.has_more:
                    for _ in taken:
                        batch.add_more(key, b"")
                receipts.add(batch, len(batch.values), len(taken))
                batch.values += taken
                batch.size_bytes = size_bytes
                start += len(taken)
                if size_bytes >= batch.room_bytes:
                    self._seal_full(batch)
        return start

    def _grown(self, lane: int, batch: ProducerBatch | None, size_bytes: int) -> ProducerBatch | None:
        """The open batch of a lane with room for a message; None if there is none. A message larger than everything
        fits when it is alone."""
        if self.closed:
            return None
        if batch is not None and len(batch.values) >= COUNT_MAX:
            self._seal(batch.lane)
            batch = None
        if batch is None:
            if not self.fits(size_bytes):
                return None
            batch = self._begin(self._sticky if lane == ANY else lane)
        need_bytes = batch.size_bytes + size_bytes - batch.room_bytes
        room_bytes = max(need_bytes, min(ROOM_BYTES, self._batch_bytes - batch.room_bytes))
        if self.held_bytes + room_bytes > self._buffer_bytes:
            if not self.fits(need_bytes):
                return None
            room_bytes = need_bytes
        if room_bytes > 0:
            self.held_bytes += room_bytes
            batch.room_bytes += room_bytes
        return batch

    def _seal_full(self, batch: ProducerBatch) -> None:
        """A batch that used all of its room is over if it may not have more."""
        if batch.size_bytes >= self._batch_bytes:
            self._seal(batch.lane)

    def _begin(self, lane: int) -> ProducerBatch:
        batch = self._open[lane] = ProducerBatch(lane, time.monotonic())
        self._unended += 1
        self._wake()
        return batch

    def _seal(self, lane: int) -> None:
        batch = self._close(lane)
        self._full.setdefault(lane, deque()).append(batch)
        self._wake()

    def _close(self, lane: int) -> ProducerBatch:
        """The open batch of a lane takes no more; room that it did not use is free."""
        batch = self._open.pop(lane)
        if lane == self._sticky:
            self._sticky = (lane + 1) % self._lanes
        self._sealed += len(batch.values)
        self.held_bytes -= batch.room_bytes - batch.size_bytes
        return batch

    def lanes(self) -> list[int]:
        with self.lock:
            return list({**self._open, **self._full})

    def take(self, lane: int, now_s: float, linger_s: float) -> ProducerBatch | None:
        """The next batch of a lane that is full, has waited long enough, or is asked for by a flush."""
        with self.lock:
            full = self._full.get(lane)
            if full:
                oldest = full.popleft()
                if not full:
                    del self._full[lane]
                return oldest
            batch = self._open.get(lane)
            if batch is None or not (self.flushing or batch.opened_s + linger_s <= now_s):
                return None
            return self._close(lane)

    def next_s(self, lane: int, linger_s: float) -> float | None:
        """When `take` will have something for a lane."""
        with self.lock:
            if lane in self._full:
                return 0.0
            batch = self._open.get(lane)
            if batch is None:
                return None
            return 0.0 if self.flushing else batch.opened_s + linger_s

    def flush(self) -> None:
        """Let nothing linger until everything has ended."""
        self.flushing = bool(self._unended)
        self._wake()

    def make_room(self) -> None:
        """For somebody who waits for room, under the lock: if nothing is on its way, what lingers has to go."""
        if not self._sealed:
            for lane in list(self._open):
                self._seal(lane)

    def ended(self, batch: ProducerBatch) -> None:
        """A batch that was taken is over."""
        with self.lock:
            self.held_bytes -= batch.size_bytes
            self._sealed -= batch.count
            self._unended -= 1
            if not self._unended:
                self.flushing = False
            self.room.notify_all()
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _tell(waiter)

    async def drained(self) -> None:
        """Until a batch has ended; for those on the loop of the pipeline."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def take_all(self) -> list[ProducerBatch]:
        """Everything that was not sent yet, for somebody who gives up."""
        with self.lock:
            for lane in list(self._open):
                self._seal(lane)
            found = [batch for full in self._full.values() for batch in full]
            self._full.clear()
        return found
