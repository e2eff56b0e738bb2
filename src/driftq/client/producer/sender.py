"""The sender of a producer: moves batches from the accumulator through the windows to one pipelined connection.

    Accumulator ──take()──▶ Window (one per partition) ──due()──▶ encode, write ──▶ AsyncConnection
                                   ▲                                                      │
                                   └────────── stored() · refused() · unknown() ◀── answer or error
                                   │
                                   └── settled ──▶ batch.end(): receipts resolve, callbacks run

It runs on an event loop as one task. Each step of `run`:

1. Close the connection if its oldest request has waited for `request_timeout_ms`: all its requests become *unknown*.
2. Fill: each window with room takes the batches of its partition that are full, have lingered, or are flushed.
3. Connect if a batch waits and there is no connection; after a failure, with backoff.
4. Write what the windows say is due. Without a connection it is refused as `NotConnected`, which the window retries.
5. Settle what the windows have finished, also batches that expired.
6. Sleep until `wake` (a new batch, an answer), or until the earliest time at which something becomes due by itself.

The windows decide what an answer means; how a batch looks on the wire is an argument (`encode`). When `run` ends, by
`stop` or by cancellation, every remaining batch fails, so no receipt waits forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client.errors import Closed, DriftQError, NotConnected, OutcomeUnknown, Refused
from driftq.client.producer.producer_batch import ProducerBatch
from driftq.client.producer.window import IN_FLIGHT_MAX, SettledBatch, Window, WindowEntry
from driftq.client.transport.http import HttpReply, request_bytes
from driftq.client.transport.sansio import BackoffWarning, Call, RetryOptions, random_fraction

if TYPE_CHECKING:
    from driftq.client.producer.accumulator import Accumulator
    from driftq.client.transport.async_transport import AsyncConnection, AsyncTransport

CONNECT_MIN_S = 0.1  # a connection attempt gets at least this long

Encode = Callable[[ProducerBatch, int, int], Call[Any]]  # (batch, epoch, seq)


class SenderOptions(NamedTuple):
    """How a producer writes; see `ProducerOptions`."""

    linger_ms: int = 5
    batch_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    in_flight_max: int = IN_FLIGHT_MAX
    compress: bool = False
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000


class Sender:
    """The one task that writes for a producer."""

    def __init__(
        self,
        transport: AsyncTransport,
        encode: Encode,
        accumulator: Accumulator,
        options: SenderOptions,
        *,
        epoch: int,
        epoch_is_fixed: bool,
        on_settled: Callable[[SettledBatch], None],
    ) -> None:
        self._transport = transport
        self._encode = encode
        self._accumulator = accumulator
        self._options = options
        self._epoch = epoch
        self._epoch_is_fixed = epoch_is_fixed
        self._on_settled = on_settled
        self._retry = RetryOptions(backoff_ms=20, backoff_max_ms=1_000)
        self._warning = BackoffWarning()
        self._windows: dict[int, Window[ProducerBatch]] = {}  # by partition
        self._connection: AsyncConnection | None = None
        self._sent_s: dict[WindowEntry[ProducerBatch], float] = {}  # when each request in flight was written
        self._wakeup = asyncio.Event()
        self._failures = 0  # to connect, in a row
        self._connect_at_s = 0.0  # not before this time
        self._closing = False

    def wake(self) -> None:
        """There is something to do. Call it on the sender's loop."""
        self._wakeup.set()

    def stop(self) -> None:
        """Write what is buffered, then end. Call it on the sender's loop."""
        self._closing = True
        self._accumulator.flushing = True
        self._wakeup.set()

    @property
    def in_flight(self) -> int:
        return len(self._sent_s)

    async def run(self) -> None:
        try:
            while True:
                self._wakeup.clear()
                await self._step()
                if self._closing and self._accumulator.is_empty:
                    return
                await self._wait_for_work()
        finally:
            self._fail_remaining(Closed("the producer was closed before this was written"))

    async def _step(self) -> None:
        now_s = time.monotonic()
        self._check_timeouts(now_s)
        self._fill(now_s)
        if any(len(window) > window.in_flight for window in self._windows.values()):
            await self._ensure_connected(now_s)
        now_s = time.monotonic()
        for window in self._windows.values():
            # Also without a connection: `due` is what makes expired batches fail.
            for entry in window.due(now_s):
                self._write(window, entry, now_s)
            self._settle_batches(window)

    def _fill(self, now_s: float) -> None:
        linger_s = self._options.linger_ms / 1_000
        for partition in self._accumulator.partitions():
            window = self._windows.get(partition)
            if window is None:
                window = self._windows[partition] = Window(
                    self._epoch,
                    in_flight_max=self._options.in_flight_max,
                    epoch_is_fixed=self._epoch_is_fixed,
                    backoff_s=lambda failures: self._retry.backoff_s(failures, random_fraction()),
                )
            while window.has_room() or window.fatal is not None:
                batch = self._accumulator.take(partition, now_s, linger_s)
                if batch is None:
                    break
                window.add(batch, batch.opened_s + self._options.delivery_timeout_ms / 1_000)

    async def _ensure_connected(self, now_s: float) -> None:
        if self._connection is not None and self._connection.usable:
            return
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if now_s < self._connect_at_s:
            return
        try:
            timeout_s = self._options.request_timeout_ms / 1_000
            expires_s = self._expires_s()
            if expires_s is not None:  # a batch that expires in the meantime must not wait for the connection
                timeout_s = min(timeout_s, max(expires_s - now_s, CONNECT_MIN_S))
            self._connection = await self._transport.connect(timeout_s)
            self._failures = 0
        except NotConnected:
            self._failures += 1
            self._connect_at_s = time.monotonic() + self._retry.backoff_s(self._failures, random_fraction())

    def _write(self, window: Window[ProducerBatch], entry: WindowEntry[ProducerBatch], now_s: float) -> None:
        if self._connection is None:
            window.refused(entry, NotConnected("no broker answers"), now_s)
            return
        call = self._encode(entry.batch, entry.epoch, entry.seq)
        self._sent_s[entry] = now_s
        answer = self._connection.send(request_bytes(self._transport.address, call))
        answer.add_done_callback(partial(self._answered, window, entry, call))

    def _answered(
        self,
        window: Window[ProducerBatch],
        entry: WindowEntry[ProducerBatch],
        call: Call[Any],
        answer: asyncio.Future[HttpReply],
    ) -> None:
        self._sent_s.pop(entry, None)
        now_s = time.monotonic()
        if answer.cancelled():
            window.unknown(entry, OutcomeUnknown("no reply"), now_s)
        elif (error := answer.exception()) is not None:
            window.unknown(entry, error if isinstance(error, DriftQError) else OutcomeUnknown(str(error)), now_s)
        else:
            reply = answer.result()
            try:
                if reply.status >= 300:
                    raise call.refusal(reply)
                window.stored(entry, call.read(reply))
            except Refused as refusal:
                self._warning.backing_off(refusal)
                window.refused(entry, refusal, now_s)
        self._settle_batches(window)
        self._wakeup.set()

    def _settle_batches(self, window: Window[ProducerBatch]) -> None:
        batches, window.settled = window.settled, []
        for settled in batches:
            self._settle(settled)

    def _settle(self, settled: SettledBatch) -> None:
        settled.batch.end(settled.reply, settled.error)
        self._on_settled(settled)
        self._accumulator.batch_ended(settled.batch)

    def _check_timeouts(self, now_s: float) -> None:
        oldest_s = min(self._sent_s.values(), default=now_s)
        if self._connection is not None and now_s - oldest_s > self._options.request_timeout_ms / 1_000:
            self._connection.close()
            self._connection = None

    async def _wait_for_work(self) -> None:
        """Until `wake`, or until something becomes due by itself."""
        now_s = time.monotonic()
        times = [window.next_due_s() for window in self._windows.values()]
        times += [self._partition_due_s(partition) for partition in self._accumulator.partitions()]
        if self._sent_s:
            times.append(min(self._sent_s.values()) + self._options.request_timeout_ms / 1_000)
        wait_s = min((at_s - now_s for at_s in times if at_s is not None), default=None)
        if wait_s is not None and self._connection is None:
            wait_s = max(wait_s, self._connect_at_s - now_s)
            expires_s = self._expires_s()
            if expires_s is not None:
                wait_s = min(wait_s, expires_s - now_s)
        if wait_s is None:
            await self._wakeup.wait()
        elif wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()
        else:
            await asyncio.sleep(0)

    def _expires_s(self) -> float | None:
        """When the next batch expires: it fails then, with or without a connection."""
        times = [at_s for window in self._windows.values() if (at_s := window.expires_s()) is not None]
        return min(times, default=None)

    def _partition_due_s(self, partition: int) -> float | None:
        window = self._windows.get(partition)
        if window is not None and not window.has_room():
            return None
        return self._accumulator.next_due_s(partition, self._options.linger_ms / 1_000)

    def _fail_remaining(self, error: DriftQError) -> None:
        if self._connection is not None:
            self._connection.close()
        for window in self._windows.values():
            window.close(error)
            self._settle_batches(window)
        for batch in self._accumulator.take_all():
            self._settle(SettledBatch(batch, None, error))
