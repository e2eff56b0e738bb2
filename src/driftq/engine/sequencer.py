"""The synchronous heart: decides commands in order, journals their facts and lets replies go when they are durable.

It knows order, the journal's room and who waits for which frame. It does not know asyncio, threads or the clock:
whoever drives it passes the time, takes batches of frames to the journal and says what became durable. The simulation
drives it with a simulated disk; `engine.Engine` with a thread.
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

FRAMES_AT_ONCE = 2_048  # all that become durable together are answered in one go, while nobody else is served

T = TypeVar("T")
OnReply = Callable[[Reply], None]
Observer = Callable[[int, list[Fact]], None]
ReplyObserver = Callable[[c.Command, Reply], None]

# Refused when the disk is nearly full; what ends old work (claims, acks, deletes, sweeps) goes on longer.
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
    """Frames for one append to the journal, behind `expected_lsn`."""

    expected_lsn: int
    frames: list[bytes]


class Sequencer:
    """One broker, one order."""

    def __init__(
        self,
        broker: Broker,
        store: LogStore,
        tail_lsn: int,
        room_bytes: Callable[[], int],
        *,
        block_bytes: int = 4 << 20,
        reserve_bytes: int = 8 << 20,
        segment_bytes: int = 0,
        unsynced_bytes_max: int = 64 << 20,
        keeps: bool = True,
    ) -> None:
        self.broker = broker
        self.store = store
        self.decided_lsn = tail_lsn  # the last frame that exists
        self.durable_lsn = tail_lsn  # the last one that cannot be lost
        self.observers: list[Observer] = []
        self.reply_observers: list[ReplyObserver] = []  # told of what leaves no fact: refusals and repeats
        self.on_caller_error: Callable[[Exception], None] = _raise
        self._room_bytes = room_bytes
        self._block_bytes = block_bytes
        self._reserve_bytes = reserve_bytes
        self._keeps = keeps  # a journal takes the frames; without one they need not be made
        self._segment_bytes = segment_bytes  # of frames, in an empty segment of the journal
        self.unsynced_bytes_max = unsynced_bytes_max
        self._frames: deque[bytes] = deque()  # decided, not yet given to the journal
        self._frames_bytes = 0  # with the length that a block puts before each
        self._in_journal_bytes = 0  # given to the journal, not yet durable
        self._largest_bytes = 0  # the largest waiting frame that has a block of its own
        self._facts: deque[tuple[int, list[Fact]]] = deque()  # decided, not yet durable
        self._unshown: list[tuple[int, list[Fact]]] = []  # durable, and readers do not know it yet
        self._replies: deque[tuple[int, Callable[[Any], None], Any]] = deque()  # the lsn that each waits for

    def submit(self, command: c.Command, now_ms: int, on_reply: OnReply) -> None:
        """Decide a command. Its reply, a refusal too, goes out when everything decided so far is durable."""
        if self._unshown:
            self.show()
        size_bytes = len(command.batch) if type(command) is c.Produce else _size_of(command)
        refused = self._no_room(command, size_bytes)
        if refused is not None:
            self._tell(command, refused)
            on_reply(refused)
            return
        try:
            facts, reply = self.broker.decide(command, now_ms)
        except Unreadable as error:
            facts, reply = [], Rejected(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder")
        if facts:
            frame = encode(facts) if self._keeps else b""
            if len(frame) > self._block_bytes:
                # Only now it is known how much is buried, say. Nothing was changed yet, so it can still be refused.
                refused = self._no_room(command, len(frame))
                if refused is not None:
                    self._tell(command, refused)
                    on_reply(refused)
                    return
                self._largest_bytes = max(self._largest_bytes, len(frame))
            self.broker.apply_all(facts)
            self._frames.append(frame)
            self._frames_bytes += LENGTH.size + len(frame)
            self.decided_lsn += 1
            self._facts.append((self.decided_lsn, facts))
        if self.reply_observers and _leaves_no_fact(reply):
            self._tell(command, reply)
        if self.decided_lsn <= self.durable_lsn:
            on_reply(reply)
        else:
            self._replies.append((self.decided_lsn, on_reply, reply))

    def query(self, look: Callable[[], T], on_response: Callable[[T], None]) -> None:
        """Look at the state as of the last decision. The answer goes out when everything decided so far is durable."""
        if self._unshown:
            self.show()
        answer = look()
        if self.decided_lsn <= self.durable_lsn:
            on_response(answer)
        else:
            self._replies.append((self.decided_lsn, on_response, answer))

    def refuses(self, command: c.Produce, now_ms: int) -> bool:
        """Whether `submit` would refuse it now. Nothing is changed, and nobody is told."""
        if self._no_room(command, len(command.batch)) is not None:
            return True
        return type(self.broker.decide(command, now_ms).reply) is Rejected

    def _tell(self, command: c.Command, reply: Reply) -> None:
        for observer in self.reply_observers:
            observer(command, reply)

    def _no_room(self, command: c.Command, size_bytes: int) -> Rejected | None:
        """A full disk is noticed before a byte is written; what ends old work may use the reserve."""
        is_new = type(command) in NEW_WORK
        waiting_bytes = self._frames_bytes + self._in_journal_bytes
        if is_new and waiting_bytes > self.unsynced_bytes_max:
            details = {"reason": "slow_disk", "retry_after_ms": 1_000}
            return Rejected(Code.OVERLOADED, "the disk does not keep up; nothing was changed", details)
        # A block that does not fit goes to the next segment and wastes the rest of this one: room for one more of it.
        largest_bytes = self._largest_bytes
        wasted_bytes = self._block_bytes + (size_bytes if size_bytes > largest_bytes else largest_bytes)
        needed = waiting_bytes + wasted_bytes + (self._reserve_bytes if is_new else 0)
        room_bytes = self._room_bytes()
        # Or the spare segment is there and takes all of this alone, whatever is left of the other.
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
        refused = self._no_room(_SMALLEST_WORK, 0)
        return refused is not None and refused.code is Code.DISK_FULL

    def waiting_frames(self) -> int:
        return len(self._frames)

    def waiting_replies(self) -> int:
        return len(self._replies)

    def waiting_bytes(self) -> int:
        """Decided and not durable: what a slow disk makes grow."""
        return self._frames_bytes + self._in_journal_bytes

    def take_batch(self) -> CommitBatch | None:
        """The frames of the next append, as many as one block holds; None if there are none or one is under way."""
        if not self._frames or self._in_journal_bytes:
            return None
        frames: list[bytes] = []
        size = 0
        if self._frames_bytes <= self._block_bytes and len(self._frames) <= FRAMES_AT_ONCE:
            frames, size = list(self._frames), self._frames_bytes
            self._frames.clear()
        while self._frames and (not frames or size + LENGTH.size + len(self._frames[0]) <= self._block_bytes):
            if len(frames) == FRAMES_AT_ONCE:
                break
            size += LENGTH.size + len(self._frames[0])
            frames.append(self._frames.popleft())
        expected_lsn = self.decided_lsn - len(self._frames) - len(frames)
        self._frames_bytes -= size
        self._in_journal_bytes = size
        return CommitBatch(expected_lsn, frames)

    def on_durable(self, lsn: int) -> None:
        """Everything up to `lsn` is on disk: show it to readers, and let the replies go, in order.

        A lone producer is told first, since it needs to know nothing else; it has its answer a tenth sooner.
        """
        assert lsn >= self.durable_lsn
        self._in_journal_bytes = 0
        if not self._frames:
            self._largest_bytes = 0
        waiting = self._facts
        while waiting and waiting[0][0] <= lsn:
            self._unshown.append(waiting.popleft())
        self.durable_lsn = lsn
        if len(self._replies) != 1 or type(self._replies[0][2]) is not Produced:
            self.show()
        while self._replies and self._replies[0][0] <= lsn:
            _, on_reply, reply = self._replies.popleft()
            try:
                on_reply(reply)
            except Exception as error:
                self.on_caller_error(error)  # one caller's bug is not the others' end
        self.show()

    def show(self) -> None:
        """Let readers see all that is durable. Called by whoever asks or reads, who may do so from inside a reply."""
        if not self._unshown:
            return
        shown, self._unshown = self._unshown, []
        project(self.store, [fact for _, facts in shown for fact in facts])
        for observer in self.observers:
            for lsn, facts in shown:
                observer(lsn, facts)


def _raise(error: Exception) -> None:
    raise error


def _leaves_no_fact(reply: Reply) -> bool:
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
