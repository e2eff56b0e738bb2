"""Lets readers, claimers and callers of jobs wait for something to happen instead of polling.

    durable facts ──▶ Watch.observe ─┬─▶ readers of a log: all of them wake when it grows, closes or is deleted
                                     ├─▶ callers that wait for a job: all of them wake when it may have ended
                                     └─▶ claimers of a group: a queue; one wakes per message that may be claimable

Claimers are served in order of arrival, so two thousand idle consumers cost nothing when one message arrives. A claimer
that was woken and does not use its turn (its connection ended) passes the wake-up to the next one. A claimer with a
filter (task or label) always wakes: only its claim can tell whether a message suits it.

A waiter must join the queue *before* it looks whether there is something: what arrives in between is then not missed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.job_batch_facts import JobBatchEnded
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.core.model.stream_facts import StreamClosed, StreamDeleted
from driftq.engine.consumer_window import ConsumerWindows

if TYPE_CHECKING:
    from driftq.core.state.groups import Group
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine


JOB_BATCHES = -1  # instead of a log, for callers that wait for the end of a job batch

WaitQueue = OrderedDict[asyncio.Future[None], None]  # in order of arrival; a waiter in the middle leaves in O(1)


class Waiter:
    """A claimer in the queue of a group."""

    __slots__ = ("_group_id", "_queues", "_waiter", "_watch")

    def __init__(self, watch: Watch, queues: dict[int, WaitQueue], group_id: int) -> None:
        self._watch = watch
        self._queues = queues
        self._group_id = group_id
        self._waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queues.setdefault(group_id, OrderedDict())[self._waiter] = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait to be woken. False if nothing happened in time."""
        try:
            return await _wait(self._waiter, timeout_s)
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        """If this waiter was already woken, pass the wake-up to the next."""
        _leave(self._queues, self._group_id, self._waiter)
        if self._waiter.done() and not self._waiter.cancelled():
            self._watch.wake_group(self._group_id, 1)
        self._waiter.cancel()


class JobWaiter:
    """A caller that waits for the end of a job, or of a job batch."""

    __slots__ = ("_jobs", "_log_id", "_offset", "_waiter")

    def __init__(self, jobs: dict[int, dict[int, WaitQueue]], log_id: int, offset: int) -> None:
        self._jobs = jobs
        self._log_id, self._offset = log_id, offset
        self._waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        jobs.setdefault(log_id, {}).setdefault(offset, OrderedDict())[self._waiter] = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the job may have ended. False if nothing happened in time."""
        try:
            return await _wait(self._waiter, timeout_s)
        finally:
            self.leave()

    def leave(self) -> None:
        jobs = self._jobs.get(self._log_id)
        if jobs is not None:
            _leave(jobs, self._offset, self._waiter)
            if not jobs:
                del self._jobs[self._log_id]


class Watch:
    """The waiters of one engine. Gets every durable fact."""

    def __init__(self, state: State, now_ms: Callable[[], int]) -> None:
        self._state = state
        self._now_ms = now_ms
        self.windows = ConsumerWindows()
        self._logs: dict[int, WaitQueue] = {}  # readers, by log
        self._groups: dict[int, WaitQueue] = {}  # claimers that take any message, by group
        self._filtered: dict[int, WaitQueue] = {}  # claimers of a group with a filter
        self._jobs: dict[int, dict[int, WaitQueue]] = {}  # callers that wait for the end of a job, by log and offset

    async def log(self, log_id: int, timeout_s: float | None) -> bool:
        """Wait until a log grows, closes or is deleted. False if nothing happened in time."""
        return await _wait_in(self._logs, log_id, timeout_s)

    def join_job(self, log_id: int, offset: int) -> JobWaiter:
        """Wait for the end of a job. Do it before looking at its state: an end in between is not missed."""
        return JobWaiter(self._jobs, log_id, offset)

    def join_job_batch(self, number: int) -> JobWaiter:
        """Wait for the end of a job batch, in the same way."""
        return JobWaiter(self._jobs, JOB_BATCHES, number)

    def join(self, group_id: int, *, filtered: bool = False) -> Waiter:
        """Join the queue of a group. Do it before looking for messages: what arrives in between is not missed."""
        return Waiter(self, self._filtered if filtered else self._groups, group_id)

    def waiting(self, group_id: int) -> int:
        """How many claimers wait for a group."""
        return len(self._groups.get(group_id, ())) + len(self._filtered.get(group_id, ()))

    def wake_log(self, log_id: int) -> None:
        for waiter in self._logs.pop(log_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_group(self, group_id: int, count: int) -> None:
        for waiter in self._filtered.pop(group_id, ()):
            if not waiter.done():
                waiter.set_result(None)
        queue = self._groups.get(group_id)
        while queue and count:
            waiter, _ = queue.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        if queue is not None and not queue:
            self._groups.pop(group_id, None)

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        """Durable facts: wake the waiters that they concern."""
        if self.windows:
            self.windows.observe(facts, self._now_ms())
        if self._jobs:
            self._wake_jobs(facts)
        if not (self._groups or self._filtered or self._logs):
            return
        for fact in facts:
            match fact:
                case f.Appended():
                    self._grew(fact.log_id, fact.count)
                case Published():
                    for part in fact.parts:
                        self._grew(part.log_id, part.count)
                case StreamClosed() | StreamDeleted() | f.Trimmed():
                    self.wake_log(fact.log_id)
                case f.Settled() | f.Failed() | f.Released() | f.GroupSought() | f.GroupPaused():
                    # In-flight slots may be free now, or a message is claimable again. One claimer is enough: it wakes
                    # the next one if it leaves something.
                    self.wake_group(fact.group_id, 1)
                case f.TopicDeleted():
                    for log_id in fact.log_ids:
                        self.wake_log(log_id)
                    self._wake_orphans()
                case f.GroupDeleted():
                    self._wake_orphans()
                case _:
                    pass

    def _wake_jobs(self, facts: list[f.Fact]) -> None:
        """Wake the callers of jobs that were settled, or that something else may have ended."""
        for fact in facts:
            match fact:
                case f.Settled():
                    jobs = self._jobs.get(fact.log_id)
                    for first, end in fact.ranges if jobs is not None else ():
                        self._wake_ended(fact.log_id, first, end)
                case f.Cancelled():
                    self._wake_ended(fact.log_id, fact.offset, fact.offset + 1)
                case JobBatchEnded():
                    self._wake_ended(JOB_BATCHES, fact.number, fact.number + 1)
                case f.Trimmed() | f.GroupSought():
                    self._wake_ended(fact.log_id, 0, 1 << 62)
                case f.TopicDeleted() | f.GroupDeleted() | f.FilterNoted():
                    for log_id in list(self._jobs):
                        self._wake_ended(log_id, 0, 1 << 62)
                case _:
                    pass

    def _wake_ended(self, log_id: int, first: int, end: int) -> None:
        jobs = self._jobs.get(log_id, {})
        offsets = range(first, end) if end - first < len(jobs) else list(jobs)
        for offset in offsets:
            for waiter in jobs.pop(offset, ()) if first <= offset < end else ():
                if not waiter.done():
                    waiter.set_result(None)
        if not jobs:
            self._jobs.pop(log_id, None)

    def _grew(self, log_id: int, count: int) -> None:
        if log_id in self._logs:
            self.wake_log(log_id)
        if self._groups or self._filtered:
            log = self._state.logs.get(log_id)
            for group_id in log.readers if log is not None else ():
                self.wake_group(group_id, count)

    def _wake_orphans(self) -> None:
        """Claimers of a deleted group wake, claim and get the refusal."""
        for group_id in {*self._groups, *self._filtered} - self._state.groups.keys():
            self.wake_group(group_id, len(self._groups.get(group_id, ())))


async def _wait_in(queues: dict[int, WaitQueue], number: int, timeout_s: float | None) -> bool:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queues.setdefault(number, OrderedDict())[waiter] = None
    try:
        return await _wait(waiter, timeout_s)
    finally:
        _leave(queues, number, waiter)


def _leave(queues: dict[int, WaitQueue], number: int, waiter: asyncio.Future[None]) -> None:
    """Remove a waiter from its queue, if it is still there: one that was woken has left already."""
    queue = queues.get(number)
    if queue is not None:
        queue.pop(waiter, None)
        if not queue:
            del queues[number]


async def _wait(waiter: asyncio.Future[None], timeout_s: float | None) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await waiter
    except TimeoutError:
        return False
    return True


# --- claims that wait for messages ---


RECLAIM_S = 5.0  # a waiting claimer retries at least this often
DUE_COUNTED_MAX = 256


async def claim_or_wait(
    engine: Engine, command: c.Claim, wait_ms: int, room: Callable[[], int] | None = None
) -> Claimed | Rejected:
    """Claim messages; if there are none, wait for up to `wait_ms` until there are. A connection that consumes passes
    `room`, how many it may take: it then claims a fair share, and at most that many."""
    until_ms = engine.now_ms() + wait_ms
    share = _Share(engine, command, room) if room is not None else None
    try:
        while True:
            waiter = _join_queue(engine, command) if wait_ms else None
            try:
                reply = await (share.submit() if share is not None else engine.submit(command))
                if not isinstance(reply, Claimed):
                    assert isinstance(reply, Rejected)
                    return reply
                left_ms = until_ms - engine.now_ms()
                if reply.deliveries or left_ms <= 0:
                    break
                if reply.next_ms is not None:
                    left_ms = min(left_ms, max(1, reply.next_ms - engine.now_ms()))
                if waiter is not None:
                    if share is not None:
                        share.ask()
                    await waiter.wait(min(RECLAIM_S, left_ms / 1_000))
                    waiter = None
            finally:
                if waiter is not None:
                    waiter.leave()
    finally:
        if share is not None:
            share.end()
    if reply.deliveries:
        engine.watch.wake_group(reply.group_id, 1)  # there may be more for the next claimer
    return reply


class _Share:
    """The fair share of one connection among those of its group that ask for messages."""

    def __init__(self, engine: Engine, command: c.Claim, room: Callable[[], int]) -> None:
        self._engine = engine
        self._command = command
        self._room = room
        self._group_id: int | None = None
        self.ask()

    def ask(self) -> None:
        if self._group_id is None:
            group = _group_of(self._engine.latest_state, self._command)
            if group is not None:
                self._group_id = group.group_id
                asking = self._engine.watch.windows.asking
                asking[group.group_id] = asking.get(group.group_id, 0) + 1

    def submit(self) -> asyncio.Future[Reply]:
        """Claim a share. It is decided at once, so this connection stops asking before the reply arrives."""
        self.ask()
        max_messages = max(1, self._room())
        sharers = self._engine.watch.windows.asking.get(self._group_id, 1) if self._group_id is not None else 1
        if sharers > 1:
            group = self._engine.latest_state.groups.get(self._group_id or 0)
            count = claimable(self._engine.latest_state, group, self._engine.now_ms()) if group is not None else 0
            max_messages = min(max_messages, max(1, -(-count // sharers)))
        claiming = self._engine.submit(msgspec.structs.replace(self._command, max_messages=max_messages))
        self.end()
        reply = asyncio.shield(claiming)
        claiming.add_done_callback(lambda done: self._give_back(done) if reply.cancelled() else None)
        return reply

    def _give_back(self, claiming: asyncio.Future[Reply]) -> None:
        """The connection ended before its claim was durable: no client has seen these messages."""
        if claiming.cancelled() or claiming.exception() is not None:
            return
        claimed = claiming.result()
        if isinstance(claimed, Claimed) and claimed.deliveries:
            held = tuple(c.Held(run.partition, run.first, run.end, claimed.token) for run in claimed.deliveries)
            names = self._command.topic, self._command.group, self._command.owner
            self._engine.submit_to(c.ReleaseMessages(*names, held, sent=False), lambda _: None)

    def end(self) -> None:
        if self._group_id is not None:
            asking = self._engine.watch.windows.asking
            asking[self._group_id] -= 1
            if not asking[self._group_id]:
                del asking[self._group_id]
            self._group_id = None


def claimable(state: State, group: Group, now_ms: int) -> int:
    """How many messages of a group can be claimed, in all lanes. At most a few hundred due retries are counted."""
    count = 0
    for progress in group.progress:
        unsettled = state.logs[progress.log_id].end - progress.floor - progress.settled.count
        count += unsettled - progress.in_flight - progress.resting
        if progress.retry_timers:
            count += sum(1 for _ in islice(progress.retry_timers.until(now_ms), DUE_COUNTED_MAX))
    return count


def _group_of(state: State, command: c.Claim) -> Group | None:
    topic = state.topics.get(command.topic)
    return topic.groups.get(command.group) if topic is not None else None


def _join_queue(engine: Engine, command: c.Claim) -> Waiter | None:
    """Join the queue of the claim's group. None while the group does not exist: the claim creates it and retries."""
    group = _group_of(engine.latest_state, command)
    if group is None:
        return None
    return engine.watch.join(group.group_id, filtered=command.task is not None or command.label is not None)
