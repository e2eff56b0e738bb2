"""The sequencer: decides commands in order, puts their facts into frames, and releases replies when they are durable.

It is the second of three rings. The broker inside it knows the rules; the engine around it knows time and threads. The
sequencer knows the order, and which reply waits for which frame. It does not know asyncio, threads or the clock, so the
simulation drives this very class with a simulated disk. Its two parts are `JournalRoom`, which refuses what the journal
has no room for, and `FrameQueue`, the frames that are not durable yet.

    submit(command)
        │ decide                              decided_lsn ─────────┐
        ▼                                                          ▼
    facts ── apply ──▶ state         frames: | 1 | 2 | 3 | 4 | 5 | 6 |
        └─── encode ──▶ frame ─────────────────────────▲───────▲
        reply ──▶ waits for decided_lsn       durable_lsn      taken by take_batch(), in the journal

- A command is decided at once, on the state that includes everything decided before it.
- Its reply, a refusal too, was decided on state that a crash may take back. So it waits until everything that was
  decided up to then is durable. Queries wait in the same way.
- `on_durable(lsn)` first writes the facts to the log store and shows them to the observers, then releases the replies,
  in order. So a client that has its reply can read what it wrote.
- Room in the journal is checked before a command is decided (`engine.journal_room`): a full disk refuses work, it never
  fails a write.

What the driver must do:

1. Call `submit` and `query` with the present time, from one thread.
2. Call `take_batch(frames_max)`; append the frames to the journal after `expected_lsn`; only one batch at a time.
3. Set `room.free_bytes` to what the journal reports after the append, and call `on_durable(lsn)`.
4. If the append fails, stop and drop the sequencer. No reply that still waits may leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from driftq.core.context import Unreadable
from driftq.core.model import commands as c
from driftq.core.model.facts import Fact
from driftq.core.model.frames import encode
from driftq.core.model.replies import Claimed, Produced, RedriveResult, Rejected, Reply, Settlement
from driftq.engine.frame_queue import CommitBatch, FrameQueue
from driftq.engine.journal_room import NEW_WORK, JournalRoom, disk_full, size_of
from driftq.engine.loop_monitor import LoopMonitor
from driftq.engine.projection import project
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.storage.log_store import LogStore

T = TypeVar("T")
OnReply = Callable[[Reply], None]
Observer = Callable[[int, list[Fact]], None]
ReplyObserver = Callable[[c.Command, Reply], None]

_SMALLEST_WORK = c.CreateGroup("", "", "latest")


class Sequencer:
    """The order of one broker's commands."""

    def __init__(self, broker: Broker, store: LogStore, tail_lsn: int, room: JournalRoom) -> None:
        self.broker = broker
        self.store = store
        self.room = room  # the driver sets its `free_bytes` after every append
        self.decided_lsn = tail_lsn  # the last frame that exists
        self.durable_lsn = tail_lsn  # the last frame that a crash cannot take back
        self.observers: list[Observer] = []  # get all durable facts, in order, before the replies leave
        self.reply_observers: list[ReplyObserver] = []  # get replies with what no fact shows: refusals and repeats
        self.on_caller_error: Callable[[Exception], None] = _raise  # a reply callback raised
        self.monitor = LoopMonitor(clock=_no_time)  # the driver may set one that knows the time
        self._frames = FrameQueue(tail_lsn, room.block_bytes)  # decided, not yet durable
        self._facts: deque[tuple[int, list[Fact]]] = deque()  # of these frames, with their lsn
        self._replies: deque[tuple[int, Callable[[Any], None], Any]] = deque()  # (lsn it waits for, callback, reply)

    def submit(self, command: c.Command, now_ms: int, on_reply: OnReply) -> None:
        """Decide a command. Its reply, a refusal too, goes out when everything decided so far is durable."""
        size_bytes = len(command.batch) if type(command) is c.Produce else size_of(command)
        refused = self._capacity_refusal(command, size_bytes)
        if refused is not None:
            self._notify(command, refused)
            on_reply(refused)
            return
        try:
            facts, reply = self.broker.decide(command, now_ms)
        except Unreadable as error:
            facts, reply = [], Rejected(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder")
        if facts:
            frame = encode(facts)
            if len(frame) > self.room.block_bytes:
                # Its size is known only now (a sweep may move many dead letters). Nothing was changed yet, so it can
                # still be refused.
                refused = self._capacity_refusal(command, len(frame))
                if refused is not None:
                    self._notify(command, refused)
                    on_reply(refused)
                    return
            self.broker.apply_all(facts)
            self.decided_lsn = self._frames.append(frame)
            self._facts.append((self.decided_lsn, facts))
        if self.reply_observers and _has_refusal_or_repeat(reply):
            self._notify(command, reply)
        if self.decided_lsn <= self.durable_lsn:
            on_reply(reply)
        else:
            self._replies.append((self.decided_lsn, on_reply, reply))

    def query(self, look: Callable[[], T], on_response: Callable[[T], None]) -> None:
        """Look at the state as of the last decision. The answer goes out when everything decided so far is durable."""
        answer = look()
        if self.decided_lsn <= self.durable_lsn:
            on_response(answer)
        else:
            self._replies.append((self.decided_lsn, on_response, answer))

    def refuses(self, command: c.Produce, now_ms: int) -> bool:
        """Whether `submit` would refuse it now. Changes nothing and notifies no observer."""
        if self._capacity_refusal(command, len(command.batch)) is not None:
            return True
        return type(self.broker.decide(command, now_ms).reply) is Rejected

    def _notify(self, command: c.Command, reply: Reply) -> None:
        for observer in self.reply_observers:
            observer(command, reply)

    def _capacity_refusal(self, command: c.Command, size_bytes: int) -> Rejected | None:
        """The refusal if the disk is full or does not keep up; None if the command may be decided."""
        is_new = type(command) in NEW_WORK
        frames = self._frames
        refused = self.room.refusal(is_new, size_bytes, frames.unsynced_bytes, frames.largest_bytes)
        if refused is None and is_new and self.store.is_full():
            return disk_full()
        return refused

    def is_full(self) -> bool:
        """Whether new work is refused because the disk is full."""
        refused = self._capacity_refusal(_SMALLEST_WORK, 0)
        return refused is not None and refused.code is Code.DISK_FULL

    def waiting_frames(self) -> int:
        return len(self._frames)

    def waiting_replies(self) -> int:
        return len(self._replies)

    def waiting_bytes(self) -> int:
        """Bytes of frames that are decided and not durable. A slow disk makes them grow."""
        return self._frames.unsynced_bytes

    def take_batch(self, frames_max: int) -> CommitBatch | None:
        """The frames of the next append, up to `frames_max` and as many as one block holds; None if there are none, or
        an append is under way."""
        return self._frames.take_batch(frames_max)

    def on_durable(self, lsn: int) -> None:
        """Everything up to `lsn` is on disk: let readers see it, then release its replies, in order."""
        assert lsn >= self.durable_lsn
        self._frames.on_durable()
        durable: list[tuple[int, list[Fact]]] = []
        while self._facts and self._facts[0][0] <= lsn:
            durable.append(self._facts.popleft())
        self.durable_lsn = lsn
        started_s = self.monitor.begin()
        project(self.store, [fact for _, facts in durable for fact in facts])
        self.monitor.end("projection", started_s)
        started_s = self.monitor.begin()
        for observer in self.observers:
            for fact_lsn, facts in durable:
                observer(fact_lsn, facts)
        self.monitor.end("observers", started_s)
        self._release_replies(lsn)

    def _release_replies(self, lsn: int) -> None:
        started_s = self.monitor.begin()
        while self._replies and self._replies[0][0] <= lsn:
            _, on_reply, reply = self._replies.popleft()
            try:
                on_reply(reply)
            except Exception as error:
                self.on_caller_error(error)  # a bug of one caller must not affect the others
        self.monitor.end("replies", started_s)


def _no_time() -> float:
    return 0.0


def _raise(error: Exception) -> None:
    raise error


def _has_refusal_or_repeat(reply: Reply) -> bool:
    """Refusals, of a call or of some of its messages, and repeats."""
    if type(reply) is Produced:
        return reply.duplicate
    if type(reply) is Settlement or type(reply) is Claimed:
        return bool(reply.refused)
    if type(reply) is RedriveResult:
        return any(type(part) is Rejected for part in reply.parts)
    return type(reply) is Rejected
