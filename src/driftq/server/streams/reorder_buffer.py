"""Holds appends that came before their turn.

A producer with five batches in flight on several connections sees them arrive in any order. Whoever is early waits
here for the batch before, briefly and in bounded number, instead of being refused. Looks at the broker's state, where
a decision shows at once, and changes nothing in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model.replies import Reply
from driftq.core.state.producers import SequenceVerdict
from driftq.engine.engine import Engine, EngineStopped

if TYPE_CHECKING:
    from driftq.core.model.commands import AppendStream

PER_PRODUCER_MAX = 16
BYTES_MAX = 64 << 20

OnReply = Callable[[Reply], None]
Key = tuple[str, str]
_EARLY = (SequenceVerdict.GAP, SequenceVerdict.EPOCH_NOT_AT_ZERO)


class ParkedAppend:
    """One append that waits."""

    __slots__ = ("command", "on_reply", "timer")

    def __init__(self, command: AppendStream, on_reply: OnReply) -> None:
        self.command = command
        self.on_reply = on_reply
        self.timer: asyncio.TimerHandle | None = None


class ReorderBuffer:
    """Submits appends, in the order of their producers' sequences as far as patience goes."""

    def __init__(self, engine: Engine, park_ms: int) -> None:
        self._engine = engine
        self._park_s = park_ms / 1_000
        self._parked: dict[Key, list[ParkedAppend]] = {}
        self._bytes = 0

    def submit(self, command: AppendStream, on_reply: OnReply) -> None:
        """As `Engine.submit_to`, only that an early batch may be decided a little later."""
        by = command.producer
        if by is None:
            self._engine.submit_to(command, on_reply)
            return
        key = (command.path, by.producer)
        if self._park_s and self._is_early(command) and self._has_room(key, command):
            self._park(key, ParkedAppend(command, on_reply))
            return
        self._engine.submit_to(command, on_reply)
        if key in self._parked:
            self._release(key)

    def _park(self, key: Key, parked: ParkedAppend) -> None:
        parked.timer = asyncio.get_running_loop().call_later(self._park_s, self._give_up, key, parked)
        self._parked.setdefault(key, []).append(parked)
        self._bytes += len(parked.command.batch)

    def _has_room(self, key: Key, command: AppendStream) -> bool:
        waiting = self._parked.get(key, ())
        return len(waiting) < PER_PRODUCER_MAX and self._bytes + len(command.batch) <= BYTES_MAX

    def _is_early(self, command: AppendStream) -> bool:
        state = self._engine.latest_state
        stream = state.streams.by_path.get(command.path)
        if stream is None or stream.closed or stream.soft_deleted or command.producer is None:
            return False
        producers = state.logs[stream.log_id].producers
        return producers.judge(command.producer, gaps_allowed=stream.created.gaps_allowed).verdict in _EARLY

    def _release(self, key: Key) -> None:
        """Something was decided for this producer: submit whoever's turn it is now, one after the other."""
        moved = True
        while moved and key in self._parked:
            moved = False
            for parked in sorted(self._parked[key], key=_seq_of):
                if not self._is_early(parked.command):
                    self._leave(key, parked)
                    self._engine.submit_to(parked.command, parked.on_reply)
                    moved = True

    def _give_up(self, key: Key, parked: ParkedAppend) -> None:
        """Nobody came before it: the broker says what is missing."""
        self._leave(key, parked)
        with contextlib.suppress(EngineStopped):  # then nobody is answered any more
            self._engine.submit_to(parked.command, parked.on_reply)

    def _leave(self, key: Key, parked: ParkedAppend) -> None:
        if parked.timer is not None:
            parked.timer.cancel()
        self._bytes -= len(parked.command.batch)
        waiting = self._parked[key]
        waiting.remove(parked)
        if not waiting:
            del self._parked[key]


def _seq_of(parked: ParkedAppend) -> int:
    assert parked.command.producer is not None
    return parked.command.producer.seq
