"""How the messages of a worker move: claimed, run, settled, kept alive meanwhile. On one loop.

    claimer ──▶ ready ──▶ runners (concurrency) ──▶ settler (what has ended, in one call for each kind of end)
                   └────────── keeper: renews every lease in one call, notices what is lost or takes too long

Stopping goes the same way: no more claims, what was not begun is given back uncounted, what runs may end, then the last
settling. Nothing here knows signals or decorators.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from driftq.client.calls import queue
from driftq.client.errors import DriftQError, Refused
from driftq.client.message import AsyncMessage, Message
from driftq.client.transport.sync_transport import Transport
from driftq.client.worker.handler_results import RELEASE, AttemptEnd, HandlerResult, MessagePlace, ending_of, settle

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.wire.queue import Delivered
from collections.abc import Awaitable
from typing import NamedTuple

from driftq.client.errors import InvalidCall

logger = logging.getLogger("driftq.worker")

Handled = Message | AsyncMessage

CLAIM_WAIT_MS = 20_000
CLAIM_MAX = 10_000
SETTLE_MAX = 5_000
RETRY_S = 1.0
TICK_S = 0.1
LAST_SETTLE_S = 5.0
YIELD_EVERY = 100


class RunningAttempt:
    """A message that somebody works on."""

    __slots__ = ("began_s", "broken_off", "message", "task")

    def __init__(self, message: Handled, task: asyncio.Task[None]) -> None:
        self.message = message
        self.task = task
        self.began_s = time.monotonic()
        self.broken_off: str | None = None  # why it was cancelled by us


class WorkerLoop:
    """One run of a worker."""

    def __init__(
        self,
        subscription: WorkerSubscription,
        options: WorkOptions,
        handler: Handler,
        client: AsyncDriftQ,
        *,
        is_async: bool,
    ) -> None:
        self.counts = WorkerCounts()
        self._subscription = subscription
        self._options = options
        self._handler = handler
        self._transport = client._transport
        self._place = MessagePlace(subscription.topic, subscription.group, client.owner)
        self._is_async = is_async
        self._blocking = None if is_async else Transport(self._transport.address, self._transport.patience)
        self._threads = None if is_async else ThreadPoolExecutor(options.concurrency, "driftq-worker")
        self._ready: deque[Handled] = deque()
        self._running: set[RunningAttempt] = set()
        self._ended: list[tuple[Handled, AttemptEnd]] = []
        self._held: set[Handled] = set()  # claimed and not settled: what the room is counted by
        self._work = asyncio.Event()  # something is ready
        self._ends = asyncio.Event()  # something has ended
        self._moved = asyncio.Event()  # there is more room than before

    async def run(self, stop: asyncio.Event, *, drain: bool = False) -> WorkerCounts:
        """Until `stop`, or with `drain` until nothing is left now."""
        runners = [asyncio.create_task(self._run_on(stop)) for _ in range(self._options.concurrency)]
        others = [asyncio.create_task(self._settle_on()), asyncio.create_task(self._keep_on())]
        try:
            try:
                await self._claim_on(stop, drain)
            finally:
                await self._wind_down()
        finally:
            for task in (*runners, *others):
                task.cancel()
            await asyncio.gather(*runners, *others, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            if self._blocking is not None:
                self._blocking.close()
        return self.counts

    # --- claiming ---

    async def _claim_on(self, stop: asyncio.Event, drain: bool) -> None:
        stopping = asyncio.create_task(stop.wait())
        least = max(1, self._options.held_max // 4)
        try:
            while not stop.is_set():
                room = self._options.held_max - len(self._held)
                if room < least:
                    await self._until_moved(stopping)
                    continue
                claimed = await self._claim(min(room, CLAIM_MAX), 0 if drain else CLAIM_WAIT_MS, stopping)
                self._arrive(claimed)
                if drain and not claimed:
                    if not self._held:
                        return
                    await self._until_moved(stopping)
        finally:
            stopping.cancel()

    async def _until_moved(self, stopping: asyncio.Task[Any]) -> None:
        self._moved.clear()
        moved = asyncio.create_task(self._moved.wait())
        await asyncio.wait((moved, stopping), return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()

    async def _claim(self, room: int, wait_ms: int, stopping: asyncio.Task[Any]) -> list[Handled]:
        """What there is; nothing if we are to stop, or if the broker cannot be reached now."""
        of = self._subscription
        call = queue.claim(
            of.topic, of.group, self._place.owner,
            max=room, wait_ms=wait_ms, lease_ms=self._options.lease_ms, start=of.start, task=of.task, label=of.label,
        )  # fmt: skip
        asking = asyncio.create_task(self._transport.ask(call))
        # A claim that is broken off closes its connection, and the broker takes back what it gave to nobody.
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return []
        error = asking.exception()
        if error is None:
            return [self._message(each) for each in asking.result().messages]
        if not isinstance(error, DriftQError) or (isinstance(error, Refused) and not error.retryable):
            raise error
        logger.warning("cannot claim from %s, trying again: %s", of.topic, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), RETRY_S)
        return []

    def _message(self, delivered: Delivered, place: MessagePlace | None = None) -> Handled:
        if self._blocking is not None:
            return Message(self._blocking, place or self._place, delivered)
        return AsyncMessage(self._transport, place or self._place, delivered)

    def _arrive(self, messages: list[Handled]) -> None:
        self._held.update(messages)
        self._ready.extend(messages)
        if messages:
            self._work.set()

    # --- running ---

    async def _run_on(self, stop: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        streak = 0
        while not stop.is_set():
            if not self._ready:
                self._work.clear()
                await self._work.wait()
                continue
            running = RunningAttempt(self._ready.popleft(), task)
            self._running.add(running)
            try:
                await self._handle(running)
            finally:
                self._running.discard(running)
            streak += 1
            if streak % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # handlers that never wait must not keep the others from it

    async def _handle(self, running: RunningAttempt) -> None:
        message = running.message
        if message.delivered.error:  # what the producer said about it cannot be read back: no handler can be right
            self._end(message, AttemptEnd("reject", message.delivered.message))
            return
        error: BaseException | None = None
        try:
            if self._threads is None:
                await self._handler(message)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, message)
        except asyncio.CancelledError:
            if running.broken_off is None:
                raise
            running.task.uncancel()
        except Exception as raised:
            error = raised
        if running.broken_off is not None or message.lost:
            return  # its end was said when it was broken off, or is not ours to say
        if message.settled:
            self.counts.count(message.settled_as, 1)
            self._forget(message)
            return
        how = ending_of(error)
        if error is not None and how.verb == "nack/batch" and not isinstance(error, HandlerResult):
            logger.warning("%r failed: %s", message, how.reason, exc_info=error)
        self._end(message, how)

    def _end(self, message: Handled, how: AttemptEnd) -> None:
        self._ended.append((message, how))
        self._ends.set()

    def _forget(self, message: Handled) -> None:
        self._held.discard(message)
        self._moved.set()

    # --- settling ---

    async def _settle_on(self) -> None:
        """Whatever ended while the last call was under way shares the next one."""
        while True:
            await self._ends.wait()
            self._ends.clear()
            while self._ended:
                ended, self._ended = self._ended, []
                for how, messages in _by_ending(ended):
                    for at in range(0, len(messages), SETTLE_MAX):
                        await self._settle(how, messages[at : at + SETTLE_MAX])

    async def _settle(self, how: AttemptEnd, messages: list[Handled]) -> None:
        messages.sort(key=lambda message: (message.partition, message.offset))
        try:
            reply = await self._transport.ask(settle(how.verb, messages, **how.words()))
            lost = len(reply.refused)
            for refused in reply.refused[:1]:
                logger.warning("%d messages were lost before they were settled: %s", lost, refused.message)
        except DriftQError as error:
            lost = len(messages)
            logger.warning("%d messages could not be settled and will come again: %s", lost, error)
        self.counts.count(how.verb, len(messages) - lost)
        self.counts.lost += lost
        for message in messages:
            message.end(how.verb)
            self._forget(message)

    # --- keeping ---

    async def _keep_on(self) -> None:
        beat_s = self._options.lease_ms / 3_000
        next_s = time.monotonic() + beat_s
        while True:
            await asyncio.sleep(min(TICK_S, beat_s))
            now_s = time.monotonic()
            for running in list(self._running):
                limit_ms = running.message.timeout_ms or self._options.timeout_ms
                if running.broken_off is None and now_s - running.began_s > limit_ms / 1_000:
                    self.counts.timed_out += 1
                    self._break_off(running, AttemptEnd("nack/batch", f"timeout: longer than {limit_ms} ms"))
            if now_s >= next_s:
                next_s = now_s + beat_s
                await self._extend()

    def _break_off(self, running: RunningAttempt, how: AttemptEnd | None) -> None:
        """End a call from outside. A thread cannot be stopped: it goes on, and what it returns is ignored."""
        running.broken_off = how.verb if how is not None else "lost"
        message = running.message
        if how is None:
            message.lost = True
            self.counts.lost += 1
            self._forget(message)
        else:
            message.lost = self._threads is not None
            self._end(message, how)
        if self._threads is None:
            running.task.cancel()

    async def _extend(self) -> None:
        held = [*self._ready, *(each.message for each in self._running if each.broken_off is None)]
        held.sort(key=lambda message: (message.partition, message.offset))
        for at in range(0, len(held), SETTLE_MAX):
            part = held[at : at + SETTLE_MAX]
            try:
                reply = await self._transport.ask(settle("extend", part, lease_ms=self._options.lease_ms))
            except DriftQError as error:
                logger.warning("cannot renew %d leases: %s", len(part), error)
                continue
            if reply.refused:
                self._lose({(each.partition, each.offset) for each in reply.refused})

    def _lose(self, places: set[tuple[int, int]]) -> None:
        """Somebody else has these now, or they were cancelled."""
        for running in list(self._running):
            message = running.message
            if (message.partition, message.offset) in places and running.broken_off is None:
                logger.warning("%r was lost while it ran", message)
                self._break_off(running, None)
        for message in [each for each in self._ready if (each.partition, each.offset) in places]:
            self._ready.remove(message)
            self.counts.lost += 1
            self._forget(message)

    # --- stopping ---

    async def _wind_down(self) -> None:
        while self._ready:
            self._end(self._ready.popleft(), RELEASE)
        await self._until(lambda: not self._running, self._options.drain_ms / 1_000)
        for running in list(self._running):
            if running.broken_off is None:
                self._break_off(running, RELEASE)
        await self._until(lambda: not self._held, LAST_SETTLE_S)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), min(TICK_S, timeout_s))


def _by_ending(ended: list[tuple[Handled, AttemptEnd]]) -> list[tuple[AttemptEnd, list[Handled]]]:
    found: dict[tuple[str, str, int | None], tuple[AttemptEnd, list[Handled]]] = {}
    for message, how in ended:
        found.setdefault(how.key, (how, []))[1].append(message)
    return list(found.values())


# --- What a worker claims, how it works, and what it did: data, for the decorator and for the machinery behind it ---


Handler = Callable[[Any], Awaitable[Any] | Any]


class WorkerSubscription(NamedTuple):
    """What a worker claims."""

    topic: str
    group: str
    task: str | None = None
    label: str | None = None
    start: str = "earliest"


class WorkOptions(NamedTuple):
    """How a worker works; see `driftq.worker`."""

    concurrency: int = 1
    prefetch: int | None = None
    lease_ms: int = 30_000
    timeout_ms: int = 300_000
    drain_ms: int = 30_000

    def check(self) -> None:
        if self.concurrency < 1 or (self.prefetch is not None and self.prefetch < 0):
            raise InvalidCall("concurrency is at least 1, prefetch at least 0")
        if self.lease_ms < 100:
            raise InvalidCall("a lease shorter than 100 ms cannot be kept alive")

    @property
    def held_max(self) -> int:
        """Messages that run or wait here at the same time."""
        return self.concurrency + (self.concurrency if self.prefetch is None else self.prefetch)


class WorkerCounts:
    """What a run did."""

    __slots__ = ("acked", "failed", "lost", "rejected", "released", "timed_out")

    def __init__(self) -> None:
        self.acked = self.failed = self.rejected = self.released = self.lost = self.timed_out = 0

    def count(self, verb: str, many: int) -> None:
        match verb:
            case "ack/batch":
                self.acked += many
            case "nack/batch":
                self.failed += many
            case "reject":
                self.rejected += many
            case _:
                self.released += many

    def __repr__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
