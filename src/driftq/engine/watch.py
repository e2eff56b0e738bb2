"""Lets readers and claimers wait for movement instead of polling.

Readers of a log all wake when it moves. Claimers of a group stand in line: one wakes for each message that may have
become claimable, first come first served, so two thousand idle consumers cost nothing when one message arrives.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from driftq.core import facts as f
from driftq.core.state import State
from driftq.engine.consumer_window import ConsumerWindows

Line = OrderedDict[asyncio.Future[None], None]  # in order of arrival; whoever leaves early is found at once


class Place:
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

    def stand(self, group_id: int, *, choosy: bool = False) -> Place:
        """Stand in line for a group, before looking whether there is something: what comes in between is not missed."""
        return Place(self, self._choosy if choosy else self._groups, group_id)

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
                case f.Published():
                    for part in fact.parts:
                        self._moved(part.log_id, part.count)
                case f.StreamClosed() | f.StreamDeleted() | f.Trimmed():
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
