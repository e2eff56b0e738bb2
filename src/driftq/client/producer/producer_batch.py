"""A batch of messages that are sent together, and receipts: what a caller gets for each message.

A `Receipt` is a batch and an index. Futures and events are created only when a caller waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from msgspec import Struct

from driftq.client.errors import DriftQError, OutcomeUnknown


class ProducerBatch:
    """Messages of one partition that are sent together."""

    __slots__ = (
        "_event", "_futures", "_lock", "callbacks", "count", "encoded", "ended", "error", "has_columns", "heads",
        "keys", "opened_s", "partition", "reply", "reserved_bytes", "size_bytes", "values",
    )  # fmt: skip

    def __init__(self, partition: int, opened_s: float) -> None:
        self.partition = partition
        self.opened_s = opened_s
        self.values: list[bytes] = []
        self.keys: list[bytes] = []
        self.heads: list[bytes] = []
        self.has_columns = False  # some message has a key or a head: `keys` and `heads` are as long as `values`
        self.count = 0  # set when the batch ends and its values are dropped
        self.size_bytes = 0
        self.reserved_bytes = 0  # how far it may grow before it reserves more; all of it counts as buffered
        self.encoded: tuple[tuple[int, int], bytes] | None = None  # ((epoch, seq), bytes) of the last attempt
        self.callbacks: list[tuple[int, Callable[[Receipt], None]]] = []
        self.ended = False
        self.error: DriftQError | None = None
        self.reply: Any = None  # the broker's, when the batch is written
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def add_columns(self, key: bytes, head: bytes) -> None:
        """Append to the key and head columns. They begin with the first message that has a key or a head."""
        if not self.has_columns:
            self.keys = [b""] * len(self.values)
            self.heads = [b""] * len(self.values)
            self.has_columns = True
        self.keys.append(key)
        self.heads.append(head)

    def end(self, reply: object, error: DriftQError | None) -> None:
        """The batch is written, or has failed: wake everyone who waits for it and run the callbacks."""
        with self._lock:
            self.reply, self.error, self.ended = reply, error, True
            self.count = len(self.values)
            self.values, self.keys, self.heads, self.encoded = [], [], [], None
            event, futures = self._event, self._futures
        if event is not None:
            event.set()
        for loop, future in futures:
            if not loop.is_closed():
                loop.call_soon_threadsafe(resolve, future)
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


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class MessageResult(Protocol):
    """Where one message is stored, or why it is not."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def duplicate(self) -> bool: ...
    @property
    def error(self) -> DriftQError | None: ...


class Receipt(Struct, gc=False):
    """The result of sending one message: `result()` blocks, `await receipt` awaits. Both raise if it failed."""

    batch: ProducerBatch
    index: int

    @property
    def done(self) -> bool:
        return self.batch.ended

    @property
    def error(self) -> DriftQError | None:
        own = self._own_result()
        return self.batch.error if own is None else own.error

    @property
    def partition(self) -> int:
        own = self._own_result()
        return self.batch.partition if own is None else own.partition

    @property
    def duplicate(self) -> bool:
        """A message with this idempotency key or job id was stored before; `offset` is where."""
        own = self._own_result()
        return own is not None and own.duplicate

    @property
    def offset(self) -> int:
        """The message's offset; -1 until it is written, and for a duplicate whose offset the broker has forgotten."""
        own = self._own_result()
        if own is not None:
            return own.offset
        first = getattr(self.batch.reply, "offset", -1)
        return first + self.index if first >= 0 else -1

    def result(self, timeout_s: float | None = None) -> Receipt:
        if not self.batch.wait(timeout_s):
            raise OutcomeUnknown(f"not written after {timeout_s} s; the producer keeps trying")
        return self._checked()

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from self.batch.wait_async().__await__()
        return self._checked()

    def _checked(self) -> Receipt:
        if (error := self.error) is not None:
            raise error
        return self

    def _own_result(self) -> MessageResult | None:
        """The result of this message alone, if the broker answered for each message of the batch."""
        results = getattr(self.batch.reply, "results", None)
        return results[self.index] if results is not None else None


class Receipts:
    """The results of messages that were sent together: `result()` blocks until all are written or have failed."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[ProducerBatch, int, int]] = []  # (batch, index of our first message, count)

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
