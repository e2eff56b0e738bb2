"""Messages on their way into batches: gathered by those who send, taken by the one who writes. Bounded.

A `Receipt` is one message's place in a batch; everything heavy (a future, an event) is made only when somebody asks.
The senders may be many threads; one lock guards what they share with the writer. Knows no socket and no sequence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from driftq.client.errors import DriftQError, OutcomeUnknown

OVERHEAD_BYTES = 64  # about what a message costs beyond its bytes while it waits
COUNT_MAX = 20_000


class Batch:
    """Messages of one lane that travel together."""

    __slots__ = (
        "_event", "_futures", "_lock", "callbacks", "count", "encoded", "ended", "error", "heads", "keys", "lane",
        "opened_s", "place", "scheduled", "size_bytes", "values",
    )  # fmt: skip

    def __init__(self, lane: int, opened_s: float) -> None:
        self.lane = lane
        self.opened_s = opened_s
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.heads: list[bytes] = []
        self.count = 0
        self.size_bytes = 0
        self.scheduled = False
        self.encoded: tuple[tuple[int, int], bytes] | None = None  # the bytes of an epoch and seq
        self.callbacks: list[tuple[int, Callable[[Receipt], None]]] = []
        self.ended = False
        self.error: DriftQError | None = None
        self.place: Any = None  # what the broker answered
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def end(self, place: object, error: DriftQError | None) -> None:
        """Everybody who waits is told."""
        with self._lock:
            self.place, self.error, self.ended = place, error, True
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


class Receipt:
    """One message's fate: `result()` blocks, `await receipt` does not. Both raise what went wrong."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        self.batch = batch
        self.index = index

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


class Gathering:
    """Open and full batches of all lanes, and how many bytes they hold."""

    def __init__(self, batch_bytes: int, buffer_bytes: int, wake: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self.held_bytes = 0
        self.pending = 0  # messages that have not ended
        self.flushing = False
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._wake = wake
        self._open: dict[int, Batch] = {}
        self._full: dict[int, deque[Batch]] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def fits(self, size_bytes: int) -> bool:
        """With the lock. A message larger than everything fits when it is alone."""
        return self.held_bytes + size_bytes <= self._buffer_bytes or not self.held_bytes

    def add(self, lane: int, value: bytes, key: bytes, head: bytes, size_bytes: int) -> Receipt:
        """With the lock."""
        batch = self._open.get(lane)
        if batch is None:
            batch = self._open[lane] = Batch(lane, time.monotonic())
            self._wake()
        values = batch.values
        index = len(values)
        if key or batch.keys:
            if not batch.keys:
                batch.keys = [b""] * index
            batch.keys.append(key)
        if head or batch.heads:
            if not batch.heads:
                batch.heads = [b""] * index
            batch.heads.append(head)
        values.append(value)
        batch.count = index + 1
        batch.size_bytes += size_bytes
        self.held_bytes += size_bytes
        self.pending += 1
        if batch.size_bytes >= self._batch_bytes or index + 1 >= COUNT_MAX:
            self._full.setdefault(lane, deque()).append(self._open.pop(lane))
            self._wake()
        return Receipt(batch, index)

    def lanes(self) -> list[int]:
        with self.lock:
            return list({**self._open, **self._full})

    def take(self, lane: int, now_s: float, linger_s: float) -> Batch | None:
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
            return self._open.pop(lane)

    def next_s(self, lane: int, linger_s: float) -> float | None:
        """When `take` will have something for a lane."""
        with self.lock:
            if lane in self._full:
                return 0.0
            batch = self._open.get(lane)
            if batch is None:
                return None
            return 0.0 if self.flushing else batch.opened_s + linger_s

    def ended(self, batch: Batch) -> None:
        with self.lock:
            self.held_bytes -= batch.size_bytes
            self.pending -= batch.count
            if not self.pending:
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

    def take_all(self) -> list[Batch]:
        """Everything that was not sent yet, for somebody who gives up."""
        with self.lock:
            found = [*self._open.values(), *(batch for full in self._full.values() for batch in full)]
            self._open.clear()
            self._full.clear()
        return found
