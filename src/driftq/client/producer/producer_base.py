"""What every producer does, blocking or awaited, to a topic or to a stream: gather, write, wait, tell what failed.

`ProducerBase` is the part that both share; `SyncWriter` and `AsyncWriter` only wait differently. The pipeline runs on a
loop: the caller's own, or the one in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from driftq.client.errors import BufferFull, Closed, DriftQError, InvalidCall, NotWritten, OutcomeUnknown
from driftq.client.producer.accumulator import OVERHEAD_BYTES, Accumulator, Callback, ProducerBatch, Receipt, Receipts
from driftq.client.producer.sender import Encode, Sender, SenderOptions
from driftq.client.producer.window import IN_FLIGHT_MAX, SettledBatch
from driftq.client.transport.async_transport import AsyncTransport
from driftq.client.transport.background import background

if TYPE_CHECKING:
    from driftq.client.transport.http import Address

FAILURES_KEPT = 1_000


class ProducerOptions(TypedDict, total=False):
    """What a producer can be told.

    A batch waits `linger_ms` for company, up to `batch_bytes`. At most `buffer_bytes` wait altogether; then `when_full`
    says whether to block or to raise `BufferFull`. After `delivery_timeout_ms` a message is given up. `on_ack` and
    `on_error` are told of every batch, on the producer's thread.
    """

    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    in_flight_max: int
    compress: bool
    delivery_timeout_ms: int
    request_timeout_ms: int
    when_full: Literal["block", "raise"]
    on_ack: Callable[[ProducerBatch], None]
    on_error: Callable[[DriftQError, ProducerBatch], None]


def options_of(words: ProducerOptions) -> SenderOptions:
    unknown = words.keys() - set(ProducerOptions.__annotations__)
    if unknown:
        raise InvalidCall(f"a producer has no option {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {name: value for name, value in words.items() if name in SenderOptions._fields}
    options = SenderOptions()._replace(**given)
    if not 1 <= options.in_flight_max <= IN_FLIGHT_MAX:
        raise InvalidCall(f"in_flight_max is 1 to {IN_FLIGHT_MAX}: the broker remembers few more")
    return options


class ProducerBase:
    """The state of a producer."""

    def __init__(
        self,
        encode: Encode,
        options: SenderOptions,
        *,
        epoch: int,
        is_fixed: bool,
        wake: Callable[[], None],
        words: ProducerOptions,
    ) -> None:
        self.gathering = Accumulator(options.batch_bytes, options.buffer_bytes, wake)
        self.encode = encode
        self.options = options
        self.epoch = epoch
        self.is_fixed = is_fixed
        self.when_full = words.get("when_full", "block")
        self.written = 0
        self.failed = 0
        self._on_ack = words.get("on_ack")
        self._on_error = words.get("on_error")
        self._failures: list[DriftQError] = []
        self._failed_since = 0

    def pipeline(self, transport: AsyncTransport) -> Sender:
        return Sender(
            transport, self.encode, self.gathering, self.options,
            epoch=self.epoch, is_fixed=self.is_fixed, on_done=self._done,
        )  # fmt: skip

    def _done(self, done: SettledBatch) -> None:
        """On the loop, when a batch has ended; its messages are counted by their receipts' batch."""
        batch: ProducerBatch = done.batch
        if done.error is None:
            self.written += batch.count
            if self._on_ack is not None:
                self._on_ack(batch)
            return
        self.failed += batch.count
        self._failed_since += batch.count
        if len(self._failures) < FAILURES_KEPT:
            self._failures.append(done.error)
        if self._on_error is not None:
            self._on_error(done.error, batch)

    def check_room(self) -> None:
        """For a message that was not taken: whether waiting makes sense."""
        if self.gathering.closed:
            raise Closed("this producer was closed")
        if self.when_full == "raise":
            raise BufferFull(
                f"{self.gathering.held_bytes} bytes wait to be written (buffer_bytes={self.options.buffer_bytes}); "
                "send slower, or give the producer more room"
            )

    def raise_failures(self) -> None:
        """Everything that failed since the last time."""
        failures, self._failures = self._failures, []
        count, self._failed_since = self._failed_since, 0
        if count:
            raise NotWritten(failures, count)


class DeliveryCount:
    """What a producer says about itself."""

    _writing: ProducerBase
    _pipeline: Sender | None = None

    @property
    def pending_count(self) -> int:
        """Messages that have not ended yet."""
        return self._writing.gathering.pending

    @property
    def in_flight_count(self) -> int:
        """Batches that are under way."""
        return self._pipeline.in_flight if self._pipeline is not None else 0

    @property
    def written_count(self) -> int:
        return self._writing.written

    @property
    def failed_count(self) -> int:
        return self._writing.failed


class SyncWriter(DeliveryCount):
    """A producer for blocking programs; any number of threads may use it."""

    _writing: ProducerBase
    _task: asyncio.Task[None] | None = None  # the pipeline's, on the background loop

    def _start(self, address: Address, writing: ProducerBase) -> None:
        self._writing = writing
        self._gathering = writing.gathering
        self._background = background()
        transport = AsyncTransport(address)
        pipeline = self._pipeline = writing.pipeline(transport)
        self._ran: Future[None] = self._background.start(self._run(transport, pipeline))

    async def _run(self, transport: AsyncTransport, pipeline: Sender) -> None:
        self._task = asyncio.current_task()
        try:
            await pipeline.run()
        finally:
            await transport.close()

    def _wake(self) -> None:
        if self._pipeline is not None:
            self._background.loop.call_soon_threadsafe(self._pipeline.wake)

    def _wait(self, lane: int, value: bytes, key: bytes, head: bytes, callback: Callback | None) -> Receipt:
        """For a message that found no room: wait for it, or say so."""
        gathering = self._gathering
        size_bytes = len(value) + len(key) + len(head) + OVERHEAD_BYTES
        while True:
            self._writing.check_room()
            with gathering.lock:
                gathering.make_room()
                gathering.room.wait_for(lambda: gathering.fits(size_bytes) or gathering.closed)
            receipt = gathering.put(lane, value, key, head, callback)
            if receipt is not None:
                return receipt

    def _give_many(self, lane: int, values: Sequence[bytes], key: bytes) -> Receipts:
        """Many at once: one lock for as many as find room."""
        receipts = Receipts()
        start = 0
        while (start := self._gathering.put_many(lane, values, key, start, receipts)) < len(values):
            receipt = self._wait(lane, values[start], key, b"", None)
            receipts.add(receipt.batch, receipt.index, 1)
            start += 1
        return receipts

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything given so far has ended. Raises `NotWritten` if something was not written."""
        writing = self._writing
        gathering = writing.gathering
        with gathering.lock:
            gathering.flush()
            if not gathering.room.wait_for(lambda: gathering.is_empty, timeout_s):
                late = OutcomeUnknown(f"not written after {timeout_s} s; the producer goes on trying")
                raise NotWritten([late], gathering.pending)
        writing.raise_failures()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close. After `timeout_s`, what is left is given up. Raises `NotWritten` if something was not
        written. Idempotent."""
        with self._gathering.lock:
            if self._gathering.closed:
                return
            self._gathering.closed = True
            self._gathering.room.notify_all()
        self._background.loop.call_soon_threadsafe(self._stop)
        try:
            self._ran.result(timeout_s)
        except TimeoutError:
            self._background.run(self._give_up())
        self._writing.raise_failures()

    async def _give_up(self) -> None:
        """End the pipeline now; every message that is left gets its error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except NotWritten:
            if error is None:
                raise


class AsyncWriter(DeliveryCount):
    """A producer on the caller's loop."""

    def _begin(self, address: Address, writing: ProducerBase) -> None:
        self._writing = writing
        self._gathering = writing.gathering
        self._address = address
        self._task: asyncio.Task[None] | None = None

    def _running(self) -> Sender:
        """The pipeline, from the first use on: only then there is a loop."""
        if self._pipeline is None:
            self._transport_of_own = AsyncTransport(self._address)
            self._pipeline = self._writing.pipeline(self._transport_of_own)
            self._task = asyncio.get_running_loop().create_task(self._pipeline.run())
        return self._pipeline

    def _wake(self) -> None:
        if self._pipeline is not None:
            self._pipeline.wake()

    async def _wait(self, lane: int, value: bytes, key: bytes, head: bytes, callback: Callback | None) -> Receipt:
        """For a message that found no room: wait for it, or say so."""
        while True:
            self._writing.check_room()
            with self._gathering.lock:
                self._gathering.make_room()
            await self._gathering.drained()
            receipt = self._gathering.put(lane, value, key, head, callback)
            if receipt is not None:
                return receipt

    async def _give_many(self, lane: int, values: Sequence[bytes], key: bytes) -> Receipts:
        """Many at once: as many as find room, then one that waits for it."""
        receipts = Receipts()
        start = 0
        while (start := self._gathering.put_many(lane, values, key, start, receipts)) < len(values):
            receipt = await self._wait(lane, values[start], key, b"", None)
            receipts.add(receipt.batch, receipt.index, 1)
            start += 1
        return receipts

    async def flush(self) -> None:
        """Wait until everything given so far has ended. Raises `NotWritten` if something was not written."""
        gathering = self._gathering
        gathering.flush()
        while not gathering.is_empty:
            await gathering.drained()
        self._writing.raise_failures()

    async def close(self) -> None:
        """Flush and end. Closing twice is as good as once."""
        if self._gathering.closed:
            return
        self._gathering.closed = True
        if self._pipeline is not None and self._task is not None:
            self._pipeline.stop()
            await self._task
            await self._transport_of_own.close()
        self._writing.raise_failures()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except NotWritten:
            if error is None:
                raise
