"""The sequencer: decides commands in order, puts their facts into frames, and releases replies when they are durable.

It is the second of three rings. The broker inside it knows the rules; the engine around it knows time and threads. The
sequencer knows the order, the journal's room, and which reply waits for which frame. It does not know asyncio, threads
or the clock, so the simulation drives this very class with a simulated disk.

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
- Room in the journal is checked before a command is decided: a full disk refuses work, it never fails a write.

What the driver must do:

1. Call `submit` and `query` with the present time, from one thread.
2. Call `take_batch(frames_max)`; append the frames to the journal after `expected_lsn`; only one batch at a time.
3. Set `room_bytes` to what the journal reports after the append, and call `on_durable(lsn)`.
4. If the append fails, stop and drop the sequencer. No reply that still waits may leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from driftq.core.context import Unreadable
from driftq.core.model import commands as c
from driftq.core.model.facts import Fact
from driftq.core.model.frames import encode
from driftq.core.model.replies import Produced, Rejected, Reply, Settlement
from driftq.engine.projection import project
from driftq.storage.blocks import LENGTH
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.storage.log_store import LogStore

T = TypeVar("T")
OnReply = Callable[[Reply], None]
Observer = Callable[[int, list[Fact]], None]
ReplyObserver = Callable[[c.Command, Reply], None]

# Refused when the disk is nearly full. What ends old work (claims, acks, deletes, sweeps) may use the reserve.
NEW_WORK = frozenset(
    (
        c.Produce,
        c.CreateTopic,
        c.CreateStream,
        c.AppendStream,
        c.Stage,
        c.Publish,
        c.CommitOutcome,
        c.CreateGroup,
        c.BeginEffect,
    )
)

_SMALLEST_WORK = c.CreateGroup("", "", "latest")
_WITH_BATCH = (c.Produce, c.AppendStream, c.CreateStream, c.Stage)


class CommitBatch(NamedTuple):
    """Frames for one append to the journal, after `expected_lsn`."""

    expected_lsn: int
    frames: list[bytes]


class Sequencer:
    """The order of one broker's commands."""

    def __init__(
        self,
        broker: Broker,
        store: LogStore,
        tail_lsn: int,
        room_bytes: int,
        *,
        block_bytes: int = 4 << 20,
        reserve_bytes: int = 8 << 20,
        segment_bytes: int = 0,
        unsynced_bytes_max: int = 64 << 20,
    ) -> None:
        self.broker = broker
        self.store = store
        self.decided_lsn = tail_lsn  # the last frame that exists
        self.durable_lsn = tail_lsn  # the last frame that a crash cannot take back
        self.room_bytes = room_bytes  # what the journal can take; the driver updates it after every append
        self.observers: list[Observer] = []  # get all durable facts, in order, before the replies leave
        self.reply_observers: list[ReplyObserver] = []  # get replies with what no fact shows: refusals and repeats
        self.on_caller_error: Callable[[Exception], None] = _raise  # a reply callback raised
        self.unsynced_bytes_max = unsynced_bytes_max  # more than this waiting for the disk: new work is refused
        self._block_bytes = block_bytes  # what one append takes, unless a single frame is larger
        self._reserve_bytes = reserve_bytes  # room that only the end of old work may use
        self._segment_bytes = segment_bytes  # what an empty segment of the journal takes; 0: it has no segments
        self._frames: deque[bytes] = deque()  # decided, not yet taken
        self._frames_bytes = 0  # of `_frames`, with the length that a block puts before each
        self._taken_bytes = 0  # taken for the journal, not yet durable; 0: no append is under way
        self._largest_bytes = 0  # the largest waiting frame that needs a block of its own
        self._facts: deque[tuple[int, list[Fact]]] = deque()  # decided, not yet durable, with their lsn
        self._replies: deque[tuple[int, Callable[[Any], None], Any]] = deque()  # (lsn it waits for, callback, reply)

    def submit(self, command: c.Command, now_ms: int, on_reply: OnReply) -> None:
        """Decide a command. Its reply, a refusal too, goes out when everything decided so far is durable."""
        size_bytes = len(command.batch) if type(command) is c.Produce else _size_of(command)
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
            if len(frame) > self._block_bytes:
                # Its size is known only now (a sweep may move many dead letters). Nothing was changed yet, so it can
                # still be refused.
                refused = self._capacity_refusal(command, len(frame))
                if refused is not None:
                    self._notify(command, refused)
                    on_reply(refused)
                    return
                self._largest_bytes = max(self._largest_bytes, len(frame))
            self.broker.apply_all(facts)
            self._frames.append(frame)
            self._frames_bytes += LENGTH.size + len(frame)
            self.decided_lsn += 1
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
        waiting_bytes = self._frames_bytes + self._taken_bytes
        if is_new and waiting_bytes > self.unsynced_bytes_max:
            details = {"reason": "slow_disk", "retry_after_ms": 1_000}
            return Rejected(Code.OVERLOADED, "the disk does not keep up; nothing was changed", details)
        # Frames are never split. A block that does not fit into the rest of a segment goes to the next one and wastes
        # that rest, which is smaller than the block. So there are two ways to be sure that everything fits:
        # (a) the room takes all of it and the waste once more, or
        # (b) an empty segment is ready that takes all of it alone, whatever is left of the current one.
        largest_bytes = self._largest_bytes
        wasted_bytes = self._block_bytes + (size_bytes if size_bytes > largest_bytes else largest_bytes)
        needed = waiting_bytes + wasted_bytes + (self._reserve_bytes if is_new else 0)
        room_bytes = self.room_bytes
        is_room = needed + wasted_bytes <= room_bytes or needed <= self._segment_bytes <= room_bytes
        if is_room and not (is_new and self.store.is_full()):
            return None
        return Rejected(
            Code.DISK_FULL,
            "the disk is full: nothing was changed; free some space, service resumes by itself",
            {"reason": "disk_full", "retry_after_ms": 1_000},
        )

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
        return self._frames_bytes + self._taken_bytes

    def take_batch(self, frames_max: int) -> CommitBatch | None:
        """The frames of the next append, up to `frames_max` and as many as one block holds; None if there are none, or
        an append is under way."""
        if not self._frames or self._taken_bytes:
            return None
        frames: list[bytes] = []
        size = 0
        if self._frames_bytes <= self._block_bytes and len(self._frames) <= frames_max:
            frames, size = list(self._frames), self._frames_bytes
            self._frames.clear()
        while self._frames and (not frames or size + LENGTH.size + len(self._frames[0]) <= self._block_bytes):
            if len(frames) == frames_max:
                break
            size += LENGTH.size + len(self._frames[0])
            frames.append(self._frames.popleft())
        expected_lsn = self.decided_lsn - len(self._frames) - len(frames)
        self._frames_bytes -= size
        self._taken_bytes = size
        return CommitBatch(expected_lsn, frames)

    def on_durable(self, lsn: int) -> None:
        """Everything up to `lsn` is on disk: let readers see it, then release its replies, in order."""
        assert lsn >= self.durable_lsn
        self._taken_bytes = 0
        if not self._frames:
            self._largest_bytes = 0
        durable: list[tuple[int, list[Fact]]] = []
        while self._facts and self._facts[0][0] <= lsn:
            durable.append(self._facts.popleft())
        self.durable_lsn = lsn
        project(self.store, [fact for _, facts in durable for fact in facts])
        for observer in self.observers:
            for fact_lsn, facts in durable:
                observer(fact_lsn, facts)
        while self._replies and self._replies[0][0] <= lsn:
            _, on_reply, reply = self._replies.popleft()
            try:
                on_reply(reply)
            except Exception as error:
                self.on_caller_error(error)  # a bug of one caller must not affect the others


def _raise(error: Exception) -> None:
    raise error


def _has_refusal_or_repeat(reply: Reply) -> bool:
    """Refusals, of a call or of some of its messages, and repeats."""
    if type(reply) is Produced:
        return reply.duplicate
    if type(reply) is Settlement:
        return bool(reply.refused)
    return type(reply) is Rejected


def _size_of(command: c.Command) -> int:
    """About how large a command's frame is, beyond its fixed part."""
    if isinstance(command, _WITH_BATCH):
        return len(command.batch)
    if isinstance(command, c.CommitOutcome):
        batches = [part.batch for part in command.produces] + [part.batch for part in command.appends]
        return sum(map(len, batches))
    return 0
