"""Lets readers and claimers wait for movement instead of polling.

Readers of a log all wake when it moves. Claimers of a group stand in line: one wakes for each message that may have
become claimable, first come first served, so two thousand idle consumers cost nothing when one message arrives.
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
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.core.model.stream_facts import StreamClosed, StreamDeleted
from driftq.core.transitions import claim_selection
from driftq.engine.consumer_window import ConsumerWindows

if TYPE_CHECKING:
    from driftq.core.state.groups import Group
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine


Line = OrderedDict[asyncio.Future[None], None]  # in order of arrival; whoever leaves early is found at once


class Waiter:
    """A claimer's place in the line of a group."""

    __slots__ = ("_group_id", "_lines", "_waiter", "_watch")

    def __init__(self, watch: Watch, lines: dict[int, Line], group_id: int) -> None:
        self._watch = watch
        self._lines = lines
        self._group_id = group_id
        self._waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines.setdefault(group_id, OrderedDict())[self._waiter] = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait to be called. False if nothing happened in time."""
        try:
            return await _wait(self._waiter, timeout_s)
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        """Whoever was called and does not come lets the next one have the call."""
        _leave(self._lines, self._group_id, self._waiter)
        if self._waiter.done() and not self._waiter.cancelled():
            self._watch.wake_group(self._group_id, 1)
        self._waiter.cancel()


class Watch:
    """Who waits for what. Fed with durable facts."""

    def __init__(self, state: State, now_ms: Callable[[], int]) -> None:
        self._state = state
        self._now_ms = now_ms
        self.windows = ConsumerWindows()
        self._logs: dict[int, Line] = {}
        self._groups: dict[int, Line] = {}
        self._choosy: dict[int, Line] = {}  # claimers with a filter: nobody knows whom it suits

    async def log(self, log_id: int, timeout_s: float | None) -> bool:
        """Wait until a log moves (grows, closes, goes away). False if nothing happened in time."""
        return await _wait_in(self._logs, log_id, timeout_s)

    def stand(self, group_id: int, *, choosy: bool = False) -> Waiter:
        """Stand in line for a group, before looking whether there is something: what comes in between is not missed."""
        return Waiter(self, self._choosy if choosy else self._groups, group_id)

    def standing(self, group_id: int) -> int:
        """How many wait for a group."""
        return len(self._groups.get(group_id, ())) + len(self._choosy.get(group_id, ()))

    def wake_log(self, log_id: int) -> None:
        for waiter in self._logs.pop(log_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wake_group(self, group_id: int, count: int) -> None:
        for waiter in self._choosy.pop(group_id, ()):
            if not waiter.done():
                waiter.set_result(None)
        line = self._groups.get(group_id)
        while line and count:
            waiter, _ = line.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        if line is not None and not line:
            self._groups.pop(group_id, None)

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        """Durable facts: wake whoever they concern."""
        if self.windows:
            self.windows.observe(facts, self._now_ms())
        if not (self._groups or self._choosy or self._logs):
            return
        for fact in facts:
            match fact:
                case f.Appended():
                    self._moved(fact.log_id, fact.count)
                case Published():
                    for part in fact.parts:
                        self._moved(part.log_id, part.count)
                case StreamClosed() | StreamDeleted() | f.Trimmed():
                    self.wake_log(fact.log_id)
                case f.Settled() | f.Failed() | f.Released() | f.GroupSought() | f.GroupPaused():
                    # In-flight slots may be free now, or something came back. One is enough: it wakes the next if it
                    # leaves something.
                    self.wake_group(fact.group_id, 1)
                case f.TopicDeleted():
                    for log_id in fact.log_ids:
                        self.wake_log(log_id)
                    self._wake_orphans()
                case f.GroupDeleted():
                    self._wake_orphans()
                case _:
                    pass

    def _moved(self, log_id: int, count: int) -> None:
        if log_id in self._logs:
            self.wake_log(log_id)
        if self._groups or self._choosy:
            log = self._state.logs.get(log_id)
            for group_id in log.readers if log is not None else ():
                self.wake_group(group_id, count)

    def _wake_orphans(self) -> None:
        """Whoever waits for a group that is gone should hear of it."""
        for group_id in {*self._groups, *self._choosy} - self._state.groups.keys():
            self.wake_group(group_id, len(self._groups.get(group_id, ())))


async def _wait_in(lines: dict[int, Line], number: int, timeout_s: float | None) -> bool:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lines.setdefault(number, OrderedDict())[waiter] = None
    try:
        return await _wait(waiter, timeout_s)
    finally:
        _leave(lines, number, waiter)


def _leave(lines: dict[int, Line], number: int, waiter: asyncio.Future[None]) -> None:
    """Nobody stays in a line that they no longer wait in; whoever was woken has left already."""
    line = lines.get(number)
    if line is not None:
        line.pop(waiter, None)
        if not line:
            del lines[number]


async def _wait(waiter: asyncio.Future[None], timeout_s: float | None) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await waiter
    except TimeoutError:
        return False
    return True


# --- A claim that waits for messages: it stands in the line of its group until there may be some ---


CLAIM_AGAIN_S = 5.0  # a claimer looks again at least this often, whatever it was told
DUE_COUNTED_MAX = 256


async def claim_or_wait(
    engine: Engine, command: c.Claim, wait_ms: int, room: Callable[[], int] | None = None
) -> Claimed | Rejected:
    """Claim; if there is nothing, wait for up to `wait_ms` until there is. `room` is given for a connection that
    consumes: it takes its share, and at most so many."""
    until_ms = engine.now_ms() + wait_ms
    turn = _Turn(engine, command, room) if room is not None else None
    try:
        while True:
            place = _stand(engine, command) if wait_ms else None
            try:
                reply = await (turn.submit() if turn is not None else engine.submit(command))
                if not isinstance(reply, Claimed):
                    assert isinstance(reply, Rejected)
                    return reply
                rest_ms = until_ms - engine.now_ms()
                if reply.deliveries or rest_ms <= 0:
                    break
                if reply.next_ms is not None:
                    rest_ms = min(rest_ms, max(1, reply.next_ms - engine.now_ms()))
                if place is not None:
                    if turn is not None:
                        turn.ask()
                    await place.wait(min(CLAIM_AGAIN_S, rest_ms / 1_000))
                    place = None
            finally:
                if place is not None:
                    place.leave()
    finally:
        if turn is not None:
            turn.end()
    if reply.deliveries:
        engine.watch.wake_group(reply.group_id, 1)  # there may be more for the next in line
    return reply


class _Turn:
    """One connection among those of its group that ask for messages."""

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
        """Claim a share. It is decided at once, so this connection stops asking before the reply comes."""
        self.ask()
        most = max(1, self._room())
        sharers = self._engine.watch.windows.asking.get(self._group_id, 1) if self._group_id is not None else 1
        if sharers > 1:
            group = self._engine.latest_state.groups.get(self._group_id or 0)
            count = claimable(self._engine.latest_state, group, self._engine.now_ms()) if group is not None else 0
            most = min(most, max(1, -(-count // sharers)))
        claiming = self._engine.submit(msgspec.structs.replace(self._command, max_messages=most))
        self.end()
        reply = asyncio.shield(claiming)
        claiming.add_done_callback(lambda done: self._give_back(done) if reply.cancelled() else None)
        return reply

    def _give_back(self, claiming: asyncio.Future[Reply]) -> None:
        """The connection ended while its claim was being written: no client has seen these messages."""
        if claiming.cancelled() or claiming.exception() is not None:
            return
        claimed = claiming.result()
        if isinstance(claimed, Claimed) and claimed.deliveries:
            held = tuple(c.Held(each.partition, each.first, each.end, claimed.token) for each in claimed.deliveries)
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
    """How many messages of a group wait for a claim, whatever their lane; of due retries a few hundred are counted."""
    count = 0
    for progress in group.progress:
        unsettled = state.logs[progress.log_id].end - progress.floor - progress.settled.count
        count += unsettled - progress.in_flight - progress.resting
        if progress.resting_heap:
            count += sum(1 for _ in islice(claim_selection.until(progress.resting_heap, now_ms), DUE_COUNTED_MAX))
    return count


def _group_of(state: State, command: c.Claim) -> Group | None:
    topic = state.topics.get(command.topic)
    return topic.groups.get(command.group) if topic is not None else None


def _stand(engine: Engine, command: c.Claim) -> Waiter | None:
    """A place in the line of the claim's group; None while the group is new, and then the claim looks again."""
    group = _group_of(engine.latest_state, command)
    if group is None:
        return None
    return engine.watch.stand(group.group_id, choosy=command.task is not None or command.label is not None)
