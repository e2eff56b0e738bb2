"""The loop of a worker: claims messages, runs the handler, settles them, and renews their leases in the meantime.

                    claim loop                runners (concurrency)              `settle_queue`
    broker ──claim──▶ _enqueue ──▶ _ready ──▶ _handle ──▶ _running ──▶ _to_settle ──▶ ack · nack · reject · release
                                      └───────────┬───────────┘          one call for each kind of settlement
                                             lease loop
                              extends all leases in one call each lease_ms / 3,
                              aborts what is lost or has run for too long

The tasks run on one event loop. `_held` is every message that is claimed and not settled; the claim loop claims when a
part of its window (`prefetch_window`) is free, so that claims are few and large. A claim also acks what is done by
then, and what is done counts as free: a busy worker makes one call for many messages.

**A message** is in exactly one of `_ready` (it waits for a runner), `_running` and `_to_settle` (it waits for a call,
or is part of the current one).

**An async handler** is awaited by a runner. **A plain one** gets a blocking `Message`, and its runners are threads
(`handler_threads`). A thread cannot be stopped: if its message is lost or times out, it runs on and its result is
ignored.

**Losing a lease**: an extend names the messages that are lost, because the lease ran out or the job was cancelled. They
are dropped from `_ready`, or their handler is aborted. They are not settled: another worker holds them now.

**Draining** (`stop` is set, or with `drain` nothing is left): no more claims; `_ready` is released without counting an
attempt; running handlers get `drain_ms`, then they are aborted and released; the last settlements get `LAST_SETTLE_S`.
`abort` ends the wait for running handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.client.claims import (
    ACK,
    RELEASE,
    Claiming,
    HandlerResult,
    LeaseHolder,
    SettleAction,
    claim_flow,
    settle,
    settlement_for,
    token_ranges,
)
from driftq.client.errors import DriftQError
from driftq.client.message import async_messages, sync_messages
from driftq.client.transport.sync_transport import Transport
from driftq.client.worker.attempt import AnyMessage, AttemptResult, RunningAttempt, awaited, log_failure
from driftq.client.worker.claim_errors import AwaitedTopics, ClaimErrors
from driftq.client.worker.handler_threads import HandlerThreads
from driftq.client.worker.options import WorkerCounts
from driftq.client.worker.prefetch_window import PrefetchWindow
from driftq.client.worker.settle_queue import SETTLE_MAX, SettleQueue, position

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.client.claim_result import ClaimResult
    from driftq.client.worker.hooks import HookChain
    from driftq.client.worker.options import Handler, WorkerOptions, WorkerSubscription

logger = logging.getLogger("driftq.worker")

CLAIM_WAIT_MS = 20_000  # long poll of a claim
CLAIM_MAX = 10_000  # messages in one claim
RETRY_S = 1.0  # after a claim that failed
TICK_S = 0.1  # how often time limits are checked
LAST_SETTLE_S = 5.0
YIELD_EVERY = 100


class WorkerLoop:
    """One run of a worker."""

    def __init__(
        self,
        subscription: WorkerSubscription,
        options: WorkerOptions,
        handler: Handler,
        client: AsyncDriftQ,
        *,
        is_async: bool,
        hooks: HookChain | None = None,
    ) -> None:
        self.counts = WorkerCounts()
        self._subscription = subscription
        self._options = options
        self._transport = client._transport
        self._holder = LeaseHolder(subscription.topic, subscription.group, client.owner)
        self._hooks = hooks  # None: the handler is called directly
        if hooks is not None:
            handler = hooks.wrapped(handler, is_async=is_async)
        self._handler = handler
        self._sync_transport = None if is_async else Transport(self._transport.address, self._transport.retry)
        self._ready: deque[AnyMessage] = deque()  # claimed, waiting for a runner
        self._running: set[RunningAttempt] = set()
        self._taking = threading.Lock()  # held while a thread moves a message from `_ready` to `_running`
        self._to_settle = SettleQueue(self._transport, self.counts, self._release_slot, self._claims_next, hooks)
        self._held: set[AnyMessage] = set()  # claimed and not settled: bounded by the window
        self._window = PrefetchWindow(options, time.monotonic())
        self._threads: HandlerThreads | None = None  # of a plain handler
        if not is_async:
            waiting = (self._ready, self._running, self._taking)
            self._threads = HandlerThreads(handler, options.concurrency, *waiting, self._on_done)
        self._ready_event = asyncio.Event()  # `_ready` is not empty
        self._room_event = asyncio.Event()  # `_held` has shrunk; `_running` is polled
        self._waits_for_room = False
        self._abort_event = asyncio.Event()  # handlers that run get no more time
        self._claim_errors = ClaimErrors(subscription.topic, self._transport.peer)

    @property
    def busy(self) -> int:
        """Handlers that run now."""
        return len(self._running)

    @property
    def held(self) -> int:
        """Messages that are claimed and not settled."""
        return len(self._held)

    async def run(
        self,
        stop: asyncio.Event,
        *,
        drain: bool = False,
        abort: asyncio.Event | None = None,
        awaited_topics: AwaitedTopics | None = None,
    ) -> WorkerCounts:
        """Until `stop`, or with `drain` until nothing is left to claim. With `awaited_topics`, a topic that does not
        exist is waited for instead of an error."""
        self._abort_event = abort or self._abort_event
        self._claim_errors.awaited_topics = awaited_topics
        count = self._options.concurrency if self._threads is None else 0
        runners = [asyncio.create_task(self._run_handlers(stop)) for _ in range(count)]
        others = [asyncio.create_task(self._to_settle.run()), asyncio.create_task(self._lease_loop())]
        try:
            try:
                await self._claim_loop(stop, drain)
            finally:
                await self._shut_down()
        finally:
            for task in (*runners, *others):
                task.cancel()
            await asyncio.gather(*runners, *others, return_exceptions=True)
            if self._hooks is not None:
                await self._hooks.finish()
            if self._threads is not None:
                self._threads.close()
            if self._sync_transport is not None:
                self._sync_transport.close()
        return self.counts

    # --- claiming ---

    async def _claim_loop(self, stop: asyncio.Event, drain: bool) -> None:
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                self._window.measure(time.monotonic())
                room = self._room()
                if room < self._window.claim_min:
                    await self._wait_for_room(stopping)
                    continue
                claimed = await self._claim(min(room, CLAIM_MAX), drain, stopping)
                self._enqueue(claimed)
                if drain and not claimed:
                    if not self._held:
                        return
                    await self._wait_for_room(stopping)
        finally:
            stopping.cancel()

    def _room(self) -> int:
        """How many messages fit into the window. The claim acks those that are done."""
        return self._window.size - len(self._held) + self._to_settle.acks

    def _claims_next(self) -> bool:
        """Acks wait: whether they go with a claim, which then follows at once."""
        follows = self._waits_for_room and self._room() >= self._window.claim_min
        if follows:
            self._room_event.set()
        return follows

    async def _wait_for_room(self, stopping: asyncio.Task[Any]) -> None:
        self._room_event.clear()
        self._waits_for_room = True
        self._to_settle.wake()  # acks that were left to this claim
        room = asyncio.create_task(self._room_event.wait())
        try:
            await asyncio.wait((room, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits_for_room = False
            room.cancel()

    async def _claim(self, room: int, drain: bool, stopping: asyncio.Task[Any]) -> list[AnyMessage]:
        """Claim messages, and ack those that are done, in one call. Returns none if the worker is to stop, or the
        broker cannot be reached."""
        transport = self._transport
        _, _, task, label, start = self._subscription
        claiming = Claiming(self._holder, room, self._options.lease_ms, start, task, label)
        done = self._to_settle.take_acks()
        acks, wait_ms = token_ranges(done, ACK.verb), 0 if drain else CLAIM_WAIT_MS
        flow = claim_flow(claiming, wait_ms, acks, transport.retry, transport.peer)
        claim_task = asyncio.create_task(transport.execute(flow))
        # Cancelling a claim closes its connection; the broker then takes back what it may have delivered on it.
        await asyncio.wait((claim_task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not claim_task.done():
            claim_task.cancel()
            await asyncio.gather(claim_task, return_exceptions=True)
            self._to_settle.put_back(done)
            return []
        error = claim_task.exception()
        if error is None:
            if done:
                self._to_settle.settled(ACK, done, claim_task.result().refused)
            self._claim_errors.on_success()
            return self._messages(claim_task.result())
        self._to_settle.put_back(done)
        self._claim_errors.check(error, drain=drain)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), RETRY_S)
        return []

    def _messages(self, result: ClaimResult, holder: LeaseHolder | None = None) -> list[AnyMessage]:
        if self._sync_transport is not None:
            return [*sync_messages(self._sync_transport, holder or self._holder, result)]
        return [*async_messages(self._transport, holder or self._holder, result)]

    def _enqueue(self, messages: list[AnyMessage]) -> None:
        self._held.update(messages)
        self._ready.extend(messages)
        if messages and self._threads is not None:
            self._threads.wake()
        elif messages:
            self._ready_event.set()

    # --- running ---

    async def _run_handlers(self, stop: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        streak = 0
        while not stop.is_set():
            if not self._ready:
                self._ready_event.clear()
                await self._ready_event.wait()
                continue
            running = RunningAttempt(self._ready.popleft(), task)
            self._running.add(running)
            try:
                await self._handle(running)
            finally:
                self._running.discard(running)
            streak += 1
            if streak % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # a handler that never awaits must not starve the other tasks

    async def _handle(self, running: RunningAttempt) -> None:
        result = AttemptResult()
        try:
            result = await awaited(self._handler, running.message)
        except asyncio.CancelledError as cancelled:
            assert running.task is not None
            if running.aborted_as is not None:
                running.task.uncancel()
            elif running.task.cancelling():
                raise
            else:  # what the handler waited for was cancelled
                result = AttemptResult(None, cancelled)
        self._on_done(running, result)

    def _on_done(self, running: RunningAttempt, result: AttemptResult) -> None:
        """A handler has returned or raised, or was aborted."""
        message = running.message
        self._window.on_handled()
        if running.aborted_as is not None or message.lost:
            return  # settled when it was aborted, or another worker holds it now
        if message.settled:
            self.counts.count(message.settled_as, 1)
            self._release_slot(message)
            return
        error = result.error
        settlement = settlement_for(error)
        if error is not None and settlement.verb == "nack/batch" and not isinstance(error, HandlerResult):
            log_failure(message, settlement.reason, error)
        self._queue_settlement(message, settlement)

    def _queue_settlement(self, message: AnyMessage, settlement: SettleAction) -> None:
        self._to_settle.add(message, settlement)  # overridden by the tests of users, see `testing.chaos`

    def _release_slot(self, message: AnyMessage) -> None:
        self._held.discard(message)
        self._room_event.set()

    # --- leases and time limits ---

    async def _lease_loop(self) -> None:
        renew_s = self._options.lease_ms / 3_000
        next_renewal_s = time.monotonic() + renew_s
        renewal: asyncio.Task[None] | None = None  # its call may wait for a broker that is away; time limits do not
        try:
            while True:
                await asyncio.sleep(min(TICK_S, renew_s))
                now_s = time.monotonic()
                self._check_time_limits(now_s)
                with self._taking:
                    self._give_back(self._window.excess(len(self._ready), now_s))
                if renewal is not None and renewal.done():
                    renewal.result()
                    renewal = None
                if renewal is None and now_s >= next_renewal_s:
                    next_renewal_s = now_s + renew_s
                    renewal = asyncio.create_task(self._extend())
        finally:
            if renewal is not None:
                renewal.cancel()
                await asyncio.gather(renewal, return_exceptions=True)

    def _check_time_limits(self, now_s: float) -> None:
        for running in list(self._running):
            limit_ms = running.message.timeout_ms or self._options.timeout_ms
            if running.aborted_as is None and now_s - running.started_s > limit_ms / 1_000:
                self.counts.timed_out += 1
                reason = f"timeout: longer than {limit_ms} ms"
                self._abort(running, SettleAction("nack/batch", reason))
                if self._hooks is not None:
                    self._hooks.notify(self._hooks.on_failure, running.message, TimeoutError(reason))

    def _abort(self, running: RunningAttempt, settlement: SettleAction | None) -> None:
        """End a handler from outside and settle its message, or with None drop it as lost."""
        running.aborted_as = settlement.verb if settlement is not None else "lost"
        message = running.message
        if settlement is None:
            message.lost = True
            self.counts.lost += 1
            self._release_slot(message)
        else:
            message.lost = self._threads is not None
            self._queue_settlement(message, settlement)
        if running.task is not None:
            running.task.cancel()

    async def _extend(self) -> None:
        with self._taking:
            running = list(self._running)
            held = [*self._ready, *(attempt.message for attempt in running if attempt.aborted_as is None)]
        held.sort(key=position)
        for at in range(0, len(held), SETTLE_MAX):
            part = held[at : at + SETTLE_MAX]
            try:
                reply = await self._transport.execute(settle("extend", part, lease_ms=self._options.lease_ms))
            except DriftQError as error:
                logger.warning("cannot renew %d leases: %s", len(part), error)
                continue
            if reply.refused:
                refused = {(item.partition, item.offset) for item in reply.refused}
                self._drop_lost({message for message in part if position(message) in refused})

    def _drop_lost(self, lost: set[AnyMessage]) -> None:
        """Another worker holds these now, or their jobs were cancelled. A later delivery of one of them is not lost."""
        for running in list(self._running):
            message = running.message
            if message in lost and running.aborted_as is None:
                logger.warning("%r was lost while it ran", message)
                self._abort(running, None)
        with self._taking:
            for message in [waiting for waiting in self._ready if waiting in lost]:
                self._ready.remove(message)
                self.counts.lost += 1
                self._release_slot(message)

    def _give_back(self, count: int) -> None:
        """The messages that came last go to other workers. `_taking` is held."""
        for _ in range(count):
            self._queue_settlement(self._ready.pop(), RELEASE)

    # --- stopping ---

    async def _shut_down(self) -> None:
        with self._taking:
            self._give_back(len(self._ready))
        self._to_settle.wake()
        await self._wait_until(lambda: not self._running or self._abort_event.is_set(), self._options.drain_ms / 1_000)
        for running in list(self._running):
            if running.aborted_as is None:
                self._abort(running, RELEASE)
        await self._wait_until(lambda: not self._held, LAST_SETTLE_S)

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:
            self._room_event.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room_event.wait(), min(TICK_S, timeout_s))
