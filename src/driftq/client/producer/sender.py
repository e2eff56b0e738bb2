"""Writes batches on one pipelined connection and brings their answers to the windows. Runs on a loop.

Owns the connection, the timers and the order of writing. What a batch looks like on the wire is an argument (`encode`);
what to do about an answer is the window's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client.errors import Closed, DriftQError, NotConnected, OutcomeUnknown
from driftq.client.producer.accumulator import Accumulator, ProducerBatch
from driftq.client.producer.window import IN_FLIGHT_MAX, InFlightBatch, SettledBatch, Window
from driftq.client.transport.http import HttpReply, request_bytes
from driftq.client.transport.sansio import Call, RetryOptions, WaitNotice, chance

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncConnection, AsyncTransport

CONNECT_MIN_S = 0.1  # a connection is given at least this long

Encode = Callable[[ProducerBatch, int, int], Call[Any]]  # a batch, its epoch and its seq


class SenderOptions(NamedTuple):
    """How a producer writes. Bounds come last in the name, units too."""

    linger_ms: int = 5
    batch_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    in_flight_max: int = IN_FLIGHT_MAX
    compress: bool = False
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000


class Sender:
    """One producer's way to the broker."""

    def __init__(
        self,
        transport: AsyncTransport,
        encode: Encode,
        gathering: Accumulator,
        options: SenderOptions,
        *,
        epoch: int,
        is_fixed: bool,
        on_done: Callable[[SettledBatch], None],
    ) -> None:
        self._transport = transport
        self._encode = encode
        self._gathering = gathering
        self._options = options
        self._epoch = epoch
        self._is_fixed = is_fixed
        self._on_done = on_done
        self._patience = RetryOptions(backoff_ms=20, backoff_max_ms=1_000)
        self._notice = WaitNotice()
        self._windows: dict[int, Window[ProducerBatch]] = {}
        self._wire: AsyncConnection | None = None
        self._sent_s: dict[InFlightBatch[ProducerBatch], float] = {}
        self._woken = asyncio.Event()
        self._failures = 0
        self._connect_at_s = 0.0
        self._closing = False

    def wake(self) -> None:
        """On the loop."""
        self._woken.set()

    def stop(self) -> None:
        """On the loop: write what is there, then end."""
        self._closing = True
        self._gathering.flushing = True
        self._woken.set()

    @property
    def in_flight(self) -> int:
        return len(self._sent_s)

    async def run(self) -> None:
        try:
            while True:
                self._woken.clear()
                await self._turn()
                if self._closing and self._gathering.is_empty:
                    return
                await self._sleep()
        finally:
            self._abandon(Closed("the producer was closed before this was written"))

    async def _turn(self) -> None:
        now_s = time.monotonic()
        self._check_timeouts(now_s)
        self._fill(now_s)
        if any(len(window) > window.in_flight for window in self._windows.values()):
            await self._connected(now_s)
        now_s = time.monotonic()
        for window in self._windows.values():
            # Without a connection nothing is due, but what is out of time must still be told.
            due = window.due(now_s)
            for sending in due:
                self._write(window, sending, now_s)
            self._deliver(window)

    def _fill(self, now_s: float) -> None:
        linger_s = self._options.linger_ms / 1_000
        for lane in self._gathering.lanes():
            window = self._windows.get(lane)
            if window is None:
                window = self._windows[lane] = Window(
                    self._epoch,
                    in_flight_max=self._options.in_flight_max,
                    is_fixed=self._is_fixed,
                    pause_s=lambda failures: self._patience.pause_s(failures, chance()),
                )
            while window.has_room() or window.fatal is not None:
                batch = self._gathering.take(lane, now_s, linger_s)
                if batch is None:
                    break
                window.add(batch, batch.opened_s + self._options.delivery_timeout_ms / 1_000)

    async def _connected(self, now_s: float) -> None:
        if self._wire is not None and self._wire.usable:
            return
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if now_s < self._connect_at_s:
            return
        try:
            timeout_s = self._options.request_timeout_ms / 1_000
            expires_s = self._expires_s()
            if expires_s is not None:  # a batch that expires while the connection is made must not wait for it
                timeout_s = min(timeout_s, max(expires_s - now_s, CONNECT_MIN_S))
            self._wire = await self._transport.connect(timeout_s)
            self._failures = 0
        except NotConnected:
            self._failures += 1
            self._connect_at_s = time.monotonic() + self._patience.pause_s(self._failures, chance())

    def _write(self, window: Window[ProducerBatch], sending: InFlightBatch[ProducerBatch], now_s: float) -> None:
        if self._wire is None:
            window.refused(sending, NotConnected("no broker answers"), now_s)
            return
        call = self._encode(sending.batch, sending.epoch, sending.seq)
        self._sent_s[sending] = now_s
        answer = self._wire.send(request_bytes(self._transport.address, call))
        answer.add_done_callback(partial(self._answered, window, sending, call))

    def _answered(
        self,
        window: Window[ProducerBatch],
        sending: InFlightBatch[ProducerBatch],
        call: Call[Any],
        answer: asyncio.Future[HttpReply],
    ) -> None:
        self._sent_s.pop(sending, None)
        now_s = time.monotonic()
        if answer.cancelled():
            window.unknown(sending, OutcomeUnknown("no answer"), now_s)
        elif (error := answer.exception()) is not None:
            window.unknown(sending, error if isinstance(error, DriftQError) else OutcomeUnknown(str(error)), now_s)
        else:
            reply = answer.result()
            if reply.status < 300:
                window.stored(sending, call.read(reply))
            else:
                refusal = call.refusal(reply)
                self._notice.waits(refusal)
                window.refused(sending, refusal, now_s)
        self._deliver(window)
        self._woken.set()

    def _deliver(self, window: Window[ProducerBatch]) -> None:
        done, window.done = window.done, []
        for each in done:
            self._end(each)

    def _end(self, done: SettledBatch) -> None:
        done.batch.end(done.reply, done.error)
        self._on_done(done)
        self._gathering.ended(done.batch)

    def _check_timeouts(self, now_s: float) -> None:
        oldest_s = min(self._sent_s.values(), default=now_s)
        if self._wire is not None and now_s - oldest_s > self._options.request_timeout_ms / 1_000:
            self._wire.close()
            self._wire = None

    async def _sleep(self) -> None:
        """Until somebody wakes us, or the next thing is due by itself."""
        now_s = time.monotonic()
        times = [window.next_s() for window in self._windows.values()]
        times += [self._lane_s(lane) for lane in self._gathering.lanes()]
        if self._sent_s:
            times.append(min(self._sent_s.values()) + self._options.request_timeout_ms / 1_000)
        wait_s = min((at_s - now_s for at_s in times if at_s is not None), default=None)
        if wait_s is not None and self._wire is None:
            wait_s = max(wait_s, self._connect_at_s - now_s)
            expires_s = self._expires_s()
            if expires_s is not None:
                wait_s = min(wait_s, expires_s - now_s)
        if wait_s is None:
            await self._woken.wait()
        elif wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
        else:
            await asyncio.sleep(0)

    def _expires_s(self) -> float | None:
        """When the next batch expires: it is reported then, whether there is a connection or not."""
        times = [at_s for window in self._windows.values() if (at_s := window.expires_s()) is not None]
        return min(times, default=None)

    def _lane_s(self, lane: int) -> float | None:
        window = self._windows.get(lane)
        if window is not None and not window.has_room():
            return None
        return self._gathering.next_s(lane, self._options.linger_ms / 1_000)

    def _abandon(self, error: DriftQError) -> None:
        if self._wire is not None:
            self._wire.close()
        for window in self._windows.values():
            window.close(error)
            self._deliver(window)
        for batch in self._gathering.take_all():
            self._end(SettledBatch(batch, None, error))
