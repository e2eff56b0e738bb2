"""What all producers share, blocking or async, of a topic or of a stream.

    send(), append() ──▶ Accumulator ──▶ Sender ──▶ Window ──▶ connection
       (callers)          batches        (event loop)             │
                             ▲                                    │ answer
                             └──────── batch ended ◀──────────────┘
                                       Receipt.result() returns

`DeliveryState` owns the accumulator and the counts. `SyncProducerBase` runs the sender on the background event loop, on
a thread that all blocking producers of a process share, and blocks. `AsyncProducerBase` runs it on the caller's loop
and awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

from driftq.client.errors import BufferFull, Closed, DriftQError, InvalidCall, NotWritten, OutcomeUnknown
from driftq.client.event_loop import background_loop
from driftq.client.pending_call import ForgottenCalls
from driftq.client.producer.accumulator import OVERHEAD_BYTES, Accumulator
from driftq.client.producer.producer_batch import Callback, ProducerBatch, Receipt, Receipts
from driftq.client.producer.sender import Encode, Sender, SenderOptions
from driftq.client.producer.window import IN_FLIGHT_MAX, SettledBatch
from driftq.client.transport.async_transport import AsyncTransport

if TYPE_CHECKING:
    from driftq.client.transport.http import Address

T = TypeVar("T")

FAILURES_KEPT = 1_000


class ProducerOptions(TypedDict, total=False):
    """The options of a producer.

    A batch waits up to `linger_ms` for more messages and grows up to `batch_bytes`. At most `buffer_bytes` wait in all;
    then `when_full` chooses between blocking and raising `BufferFull`. After `delivery_timeout_ms` a message fails.
    `on_ack` and `on_error` are called for every batch, on the producer's thread.
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


def sender_options(options: ProducerOptions) -> SenderOptions:
    """The options that concern the sender, checked."""
    unknown = options.keys() - set(ProducerOptions.__annotations__)
    if unknown:
        raise InvalidCall(f"a producer has no option {', '.join(sorted(unknown))}")
    fields: dict[str, Any] = {name: value for name, value in options.items() if name in SenderOptions._fields}
    checked = SenderOptions()._replace(**fields)
    if not 1 <= checked.in_flight_max <= IN_FLIGHT_MAX:
        raise InvalidCall(f"in_flight_max must be 1 to {IN_FLIGHT_MAX}: the broker remembers only a few batches")
    return checked


class DeliveryState:
    """The accumulator, the counts and the callbacks of one producer."""

    def __init__(
        self,
        encode: Encode,
        options: ProducerOptions,
        *,
        epoch: int,
        epoch_is_fixed: bool,
        wake: Callable[[], None],
    ) -> None:
        self.options = sender_options(options)
        self.accumulator = Accumulator(self.options.batch_bytes, self.options.buffer_bytes, wake)
        self.encode = encode
        self.epoch = epoch
        self.epoch_is_fixed = epoch_is_fixed
        self.when_full = options.get("when_full", "block")
        self.written = 0
        self.failed = 0
        self._on_ack = options.get("on_ack")
        self._on_error = options.get("on_error")
        self._failures: list[DriftQError] = []
        self._unreported = 0

    def sender(self, transport: AsyncTransport) -> Sender:
        return Sender(
            transport, self.encode, self.accumulator, self.options,
            epoch=self.epoch, epoch_is_fixed=self.epoch_is_fixed, on_settled=self._batch_settled,
        )  # fmt: skip

    def _batch_settled(self, settled: SettledBatch) -> None:
        """Called on the sender's loop when a batch is written or has failed."""
        batch: ProducerBatch = settled.batch
        # Most replies are about the whole batch. One about each message has errors of its own.
        results = getattr(settled.reply, "results", ())
        errors = [result.error for result in results if result.error is not None]
        failed = batch.count if settled.error is not None else len(errors)
        self.written += batch.count - failed
        self.failed += failed
        self._unreported += failed
        for error in [settled.error] if settled.error is not None else errors:
            if len(self._failures) < FAILURES_KEPT:
                self._failures.append(error)
            if self._on_error is not None:
                self._on_error(error, batch)
        if settled.error is None and self._on_ack is not None:
            self._on_ack(batch)

    def check_room(self) -> None:
        """Called when the accumulator did not take a message. Raises if waiting for room makes no sense."""
        if self.accumulator.closed:
            raise Closed("this producer was closed")
        if self.when_full == "raise":
            raise BufferFull(
                f"{self.accumulator.buffered_bytes} bytes wait to be written "
                f"(buffer_bytes={self.options.buffer_bytes}); send slower, or raise buffer_bytes"
            )

    def raise_failures(self) -> None:
        """Raise `NotWritten` if messages failed since the last call."""
        failures, self._failures = self._failures, []
        count, self._unreported = self._unreported, 0
        if count:
            raise NotWritten(failures, count)


class ProducerStats:
    """The counts that every producer shows."""

    _state: DeliveryState
    _sender: Sender | None = None
    _keyed: ProducerStats | None = None  # the part that sends messages with keys of their own

    @property
    def pending_count(self) -> int:
        """Messages that are neither written nor failed."""
        return self._state.accumulator.pending + (self._keyed.pending_count if self._keyed else 0)

    @property
    def in_flight_count(self) -> int:
        """Batches that were sent and are not answered."""
        own = self._sender.in_flight if self._sender is not None else 0
        return own + (self._keyed.in_flight_count if self._keyed else 0)

    @property
    def written_count(self) -> int:
        """Messages that are on disk."""
        return self._state.written + (self._keyed.written_count if self._keyed else 0)

    @property
    def failed_count(self) -> int:
        """Messages that were not written."""
        return self._state.failed + (self._keyed.failed_count if self._keyed else 0)


class SyncProducerBase(ProducerStats):
    """A producer for blocking programs; threads may share it."""

    _state: DeliveryState
    _task: asyncio.Task[None] | None = None  # the sender's, on the background loop

    def _start(self, address: Address, state: DeliveryState) -> None:
        self._state = state
        self._accumulator = state.accumulator
        self._background = background_loop()
        transport = AsyncTransport(address)
        sender = self._sender = state.sender(transport)
        self._finished: Future[None] = self._background.submit(self._run(transport, sender))

    async def _run(self, transport: AsyncTransport, sender: Sender) -> None:
        self._task = asyncio.current_task()
        try:
            await sender.run()
        finally:
            await transport.close()

    def _wake(self) -> None:
        if self._sender is not None:
            self._background.loop.call_soon_threadsafe(self._sender.wake)

    def _put_when_room(
        self, partition: int, value: bytes, key: bytes, head: bytes, callback: Callback | None
    ) -> Receipt:
        """Wait until the accumulator has room for a message, or raise `BufferFull`."""
        accumulator = self._accumulator
        size_bytes = len(value) + len(key) + len(head) + OVERHEAD_BYTES
        while True:
            self._state.check_room()
            with accumulator.lock:
                accumulator.seal_lingering()
                accumulator.room.wait_for(lambda: accumulator.has_room_for(size_bytes) or accumulator.closed)
            receipt = accumulator.put(partition, value, key, head, callback)
            if receipt is not None:
                return receipt

    def _put_many(self, partition: int, values: Sequence[bytes], key: bytes) -> Receipts:
        """Put many messages: as many as there is room for under one lock, then one that waits."""
        receipts = Receipts()
        start = 0
        while (start := self._accumulator.put_many(partition, values, key, start, receipts)) < len(values):
            receipt = self._put_when_room(partition, values[start], key, b"", None)
            receipts.add(receipt.batch, receipt.index, 1)
            start += 1
        return receipts

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent so far is written or has failed. Raises `NotWritten` if something failed."""
        state = self._state
        accumulator = state.accumulator
        with accumulator.lock:
            accumulator.flush()
            if not accumulator.room.wait_for(lambda: accumulator.is_empty, timeout_s):
                late = OutcomeUnknown(f"not written after {timeout_s} s; the producer keeps trying")
                raise NotWritten([late], accumulator.pending)
        state.raise_failures()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close. What is not written after `timeout_s` fails. Raises `NotWritten` if something failed.
        Idempotent."""
        with self._accumulator.lock:
            if self._accumulator.closed:
                return
            self._accumulator.closed = True
            self._accumulator.room.notify_all()
        self._background.loop.call_soon_threadsafe(self._stop)
        try:
            self._finished.result(timeout_s)
        except TimeoutError:
            self._background.run(self._cancel_sender())
        self._state.raise_failures()

    async def _cancel_sender(self) -> None:
        """End the sender now; the remaining messages fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _stop(self) -> None:
        if self._sender is not None:
            self._sender.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except NotWritten:
            if error is None:
                raise


class AsyncProducerBase(ProducerStats):
    """A producer on the caller's event loop."""

    def _init(self, address: Address, state: DeliveryState) -> None:
        self._state = state
        self._accumulator = state.accumulator
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._forgotten = ForgottenCalls()

    def _ensure_sender(self) -> Sender:
        """Start the sender at the first use: only then is there a running loop."""
        if self._sender is None:
            self._sender_transport = AsyncTransport(self._address)
            self._sender = self._state.sender(self._sender_transport)
            self._task = asyncio.get_running_loop().create_task(self._sender.run())
        return self._sender

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    async def _put_when_room(
        self, partition: int, value: bytes, key: bytes, head: bytes, callback: Callback | None
    ) -> Receipt:
        """Wait until the accumulator has room for a message, or raise `BufferFull`."""
        while True:
            self._state.check_room()
            with self._accumulator.lock:
                self._accumulator.seal_lingering()
            await self._accumulator.wait_for_batch_end()
            receipt = self._accumulator.put(partition, value, key, head, callback)
            if receipt is not None:
                return receipt

    async def _put_many(self, partition: int, values: Sequence[bytes], key: bytes) -> Receipts:
        """Put many messages: as many as there is room for under one lock, then one that waits."""
        receipts = Receipts()
        start = 0
        while (start := self._accumulator.put_many(partition, values, key, start, receipts)) < len(values):
            receipt = await self._put_when_room(partition, values[start], key, b"", None)
            receipts.add(receipt.batch, receipt.index, 1)
            start += 1
        return receipts

    async def flush(self) -> None:
        """Wait until everything sent so far is written or has failed. Raises `NotWritten` if something failed."""
        self._forgotten.check()
        accumulator = self._accumulator
        accumulator.flush()
        while not accumulator.is_empty:
            await accumulator.wait_for_batch_end()
        self._state.raise_failures()

    async def close(self) -> None:
        """Flush and close. Raises `NotWritten` if something failed. Idempotent."""
        if self._accumulator.closed:
            return
        self._accumulator.closed = True
        if self._sender is not None and self._task is not None:
            self._sender.stop()
            await self._task
            await self._sender_transport.close()
        self._state.raise_failures()
        self._forgotten.check()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except (NotWritten, InvalidCall):
            if error is None:
                raise
