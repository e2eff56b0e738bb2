"""Reorders appends that overtook each other on the way.

Theory of operation. An idempotent producer numbers its batches: seq 0, 1, 2, … With several batches in flight on
several connections they arrive in any order, and the broker would refuse a batch whose predecessor is missing (a gap):

    arrives   seq 3    seq 5    seq 4
              │        │        │
    submit ───┴─ ok    │        └─ ok, then release seq 5 ──> ok
                       └─ early: parked until its turn comes, at most `streams.park_ms`

    1. `submit` compares the sequence with the state of the producer. An early append is parked, if there is room.
    2. Every append that is submitted may make parked ones of the same producer due: `_release` submits them in order.
    3. After `park_ms` the append is submitted anyway, and the broker refuses it and names the gap.

The check reads the latest state, where the effect of a submitted command shows at once, so no reply has to be awaited.
Parking is bounded per producer and in bytes; without room an append is submitted at once. Nothing here is durable and
nothing decides: the broker judges every append again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model.replies import Reply
from driftq.core.state.producers import SequenceVerdict
from driftq.engine.lifetime import EngineStopped

if TYPE_CHECKING:
    from driftq.core.model.commands import AppendStream
    from driftq.engine.engine import Engine

PER_PRODUCER_MAX = 16  # parked appends of one producer of one stream
BYTES_MAX = 64 << 20  # parked bytes in all

OnReply = Callable[[Reply], None]
Key = tuple[str, str]  # stream path, producer
_EARLY = (SequenceVerdict.GAP, SequenceVerdict.EPOCH_NOT_AT_ZERO)


class ParkedAppend:
    """One append that waits for its predecessor."""

    __slots__ = ("command", "on_reply", "timer")

    def __init__(self, command: AppendStream, on_reply: OnReply) -> None:
        self.command = command
        self.on_reply = on_reply
        self.timer: asyncio.TimerHandle | None = None


class ReorderBuffer:
    """Submits appends in the order of their producers' sequences, as far as they arrive in time."""

    def __init__(self, engine: Engine, park_ms: int) -> None:
        self._engine = engine
        self._park_s = park_ms / 1_000
        self._parked: dict[Key, list[ParkedAppend]] = {}
        self._bytes = 0

    def submit(self, command: AppendStream, on_reply: OnReply) -> None:
        """Like `Engine.submit_to`, but an early append may be submitted a little later."""
        producer = command.producer
        if producer is None:
            self._engine.submit_to(command, on_reply)
            return
        key = (command.path, producer.producer)
        if self._park_s and self._is_early(command) and self._has_room(key, command):
            self._park(key, ParkedAppend(command, on_reply))
            return
        self._engine.submit_to(command, on_reply)
        if key in self._parked:
            self._release(key)

    def _park(self, key: Key, parked: ParkedAppend) -> None:
        parked.timer = asyncio.get_running_loop().call_later(self._park_s, self._on_timeout, key, parked)
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
        """An append of this producer was submitted: submit the parked ones that are due now, one after the other."""
        moved = True
        while moved and key in self._parked:
            moved = False
            for parked in sorted(self._parked[key], key=_seq_of):
                if not self._is_early(parked.command):
                    self._remove(key, parked)
                    self._engine.submit_to(parked.command, parked.on_reply)
                    moved = True

    def _on_timeout(self, key: Key, parked: ParkedAppend) -> None:
        """The predecessor did not arrive in time: let the broker refuse the append and name the gap."""
        self._remove(key, parked)
        with contextlib.suppress(EngineStopped):  # then no client gets a response any more
            self._engine.submit_to(parked.command, parked.on_reply)

    def _remove(self, key: Key, parked: ParkedAppend) -> None:
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
