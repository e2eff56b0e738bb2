"""A claim that waits for messages: it stands in the line of its group until there may be some.

A wake-up is a hint, not a promise: whoever is woken claims again, and looks again after a while in any case.

Connections that consume share what there is: each takes its part of the messages that wait, divided by the connections
that have room and ask at the same moment. A lone connection takes as much as it has room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from driftq.core import choosing
from driftq.core import commands as c
from driftq.core.groups import Group
from driftq.core.replies import Claimed, Rejected, Reply
from driftq.core.state import State

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.engine.watch import Place

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
            self._engine.submit_to(c.Release(*names, held, sent=False), lambda _: None)

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
            count += sum(1 for _ in islice(choosing.until(progress.resting_heap, now_ms), DUE_COUNTED_MAX))
    return count


def _group_of(state: State, command: c.Claim) -> Group | None:
    topic = state.topics.get(command.topic)
    return topic.groups.get(command.group) if topic is not None else None


def _stand(engine: Engine, command: c.Claim) -> Place | None:
    """A place in the line of the claim's group; None while the group is new, and then the claim looks again."""
    group = _group_of(engine.latest_state, command)
    if group is None:
        return None
    return engine.watch.stand(group.group_id, choosy=command.task is not None or command.label is not None)
