"""One simulated machine: the real sequencer, broker, journal, log store and checkpoint on a simulated disk.

A run is a sequence of steps. A step lets a client send a command, advances a commit or a checkpoint by one phase, or
does maintenance. A crash at any disk call ends the process, and a new one starts from what the disk kept. The world
knows time, order and processes; the clients are in `actors`, the checks in `checks`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from driftq.core.model import commands as c
from driftq.core.model.facts import Fact
from driftq.core.model.frames import decode
from driftq.core.model.replies import Reply
from driftq.engine.consumer_window import ConsumerWindow, ConsumerWindows
from driftq.engine.folder_storage import Opened, open_folder
from driftq.engine.frame_queue import CommitBatch
from driftq.engine.group_commit import DELAY_MAX_S, GroupCommit, PlainMessage
from driftq.engine.journal_room import NEW_WORK
from driftq.engine.queries import Queries
from driftq.engine.sequencer import OnReply, Sequencer
from driftq.engine.snapshot_store import snapshot_frames
from driftq.storage.corruption import Damaged
from driftq.storage.disk import DiskFailed, DiskFull
from driftq.storage.journal import AppendUnknown, JournalUnavailable
from driftq.testing.clock import START_MS
from driftq.wire.errors import Code
from tests.simulation.checkpoint import Checkpoint
from tests.simulation.checks.audit import Audit
from tests.simulation.checks.violation import Violation
from tests.simulation.checks.windows import Connection
from tests.simulation.faults import Faults
from tests.simulation.operation import PLAIN, Operation
from tests.simulation.queries import Question, shown
from tests.simulation.swarm import Swarm
from tests.simulation.trace import Trace
from tests.support.simdisk import Crash, SimDisk

FOLDER = "d"
STARTS_MAX = 12


class SimChance:
    """Tokens that never repeat, and jitter, both from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"chance {seed}")
        self._tokens = 0
        self.uniform = self._random.random

    def token(self) -> str:
        self._tokens += 1
        return f"k{self._tokens}"


class Keeps(Protocol):
    """The server's end of a consumer's connection."""

    window: ConsumerWindow

    def keep(self) -> None: ...


class OpReply:
    """The reply callback of an operation."""

    __slots__ = ("inbox", "op")

    op: Operation

    def __init__(self, inbox: list[tuple[Operation, Reply]], op: Operation | None = None) -> None:
        self.inbox = inbox
        if op is not None:
            self.op = op

    def __call__(self, reply: Reply) -> None:
        self.inbox.append((self.op, reply))


class NotedSequencer(Sequencer):
    """The real sequencer. It reports which operation was decided with which command."""

    on_decided: Callable[[c.Command, list[Operation], int], None]

    def submit(self, command: c.Command, now_ms: int, on_reply: OnReply) -> None:
        before_lsn = self.decided_lsn
        super().submit(command, now_ms, on_reply)
        callbacks = (
            on_reply.args[0] if isinstance(on_reply, partial) else (on_reply,)
        )  # a coalesced append has many operations
        self.on_decided(command, [callback.op for callback in callbacks], before_lsn)


class World:
    """A disk, a process on it, its clients, and the checks that watch them."""

    def __init__(self, swarm: Swarm, trace: Trace) -> None:
        self.swarm = swarm
        self.trace = trace
        self.random = Random(f"world {swarm.seed}")
        self.disk = SimDisk(swarm.seed)
        self.disk.make_folder("world", FOLDER)
        self.disk.sync_folder("world", "")
        self.faults = Faults(swarm.faults, swarm.seed)
        self.chance = SimChance(swarm.seed)
        self.audit = Audit(swarm)
        self.counts: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self.steps = 0
        self.operations = 0
        self.passed_ms = 0
        self.now_ms = START_MS
        self.frames: list[bytes] = []  # every frame that was given to the journal and may exist
        self.op_at: dict[int, Operation] = {}  # the operation that made a frame
        self.open_ops: deque[Operation] = deque()
        self.durable_lsn = 0  # the lsn that was reported to the sequencer as durable
        self.promised_lsn = 0  # the lsn that the journal returned as durable
        self.full_until = 0
        self.connections: dict[Keeps, Connection] = {}
        self._moved: dict[Keeps, None] = {}  # connections whose windows changed in this commit
        self._append_times = Random(
            f"append times {swarm.seed}"
        )  # its own generator, so that other seeds keep their runs
        quick_disk = self._append_times.random() < 0.5
        self._append_choices = (0.0,) if quick_disk else (0.0, DELAY_MAX_S, 5 * DELAY_MAX_S)  # seconds
        self._inbox: list[tuple[Operation, Reply]] = []
        self._new_frames: deque[tuple[int, list[Fact]]] = deque()

    # ------------------------------------------------------------------------------------------------ the life of a
    # process

    def start(self) -> None:
        """Start a process on the content of the disk. A crash can interrupt the start too."""
        for attempt in range(STARTS_MAX):
            if attempt < STARTS_MAX - 2 and self.faults.in_recovery():
                self.faults.arm(self.disk)
            struck = self.errors_injected()
            try:
                opened = open_folder(
                    self.disk, FOLDER, bytes(range(16)), self.swarm.limits, self.chance, self.swarm.options
                )
            except Crash as crash:
                self.counts["crashes while starting"] += 1
                self.trace.say(f"  crash while starting, at {crash}")
                self._lose_power()
                continue
            except (DiskFailed, DiskFull) as error:
                if self.errors_injected() == struck and self.disk.capacity_bytes is None:
                    raise Violation("start", f"a healthy disk stopped the start: {error}") from error
                self.counts["stops while starting"] += 1
                self.trace.say(f"  stopped while starting: {error}")
                self.relieve()
                self.disk.restart()
                continue
            except Damaged as error:
                raise Violation("L1", f"an undamaged folder was refused: {error}") from error
            self._begin(opened)
            return
        raise Violation("liveness", f"{STARTS_MAX} starts failed")

    def _begin(self, opened: Opened) -> None:
        self.opened = opened
        tail = opened.journal.tail_lsn()
        hook, self.disk.on_call = (
            self.disk.on_call,
            None,
        )  # the checks may open logs, and no fault strikes in the meantime
        self._take_over(opened, tail)
        self.disk.on_call = hook
        self.now_ms = max(self.now_ms, opened.broker.state.last_ms)
        self.sequencer = NotedSequencer(
            opened.broker,
            opened.store,
            tail,
            opened.options.journal_room(opened.journal.room_bytes()),
        )
        self.sequencer.on_decided = self._decided
        self.group = GroupCommit(self.sequencer, lambda: self.now_ms)
        self.committed_s = 0.0
        self.sequencer.observers.append(lambda lsn, facts: self._new_frames.append((lsn, facts)))
        self.windows = ConsumerWindows()
        self.connections.clear()
        self._moved.clear()
        self.sequencer.observers.append(self._observe_windows)
        self.batch: CommitBatch | None = None
        self.stored_lsn: int | None = None
        self.checkpoint = Checkpoint(opened)
        self.faults.arm(self.disk)

    def _take_over(self, opened: Opened, tail: int) -> None:
        """Decide what happened before the stop: frames in the journal happened, all others did not."""
        ends = {self.promised_lsn, len(self.frames)}
        if tail not in ends:
            raise Violation("L1", f"the journal ends at {tail}; it may end only at one of {sorted(ends)}")
        for lsn in range(self.audit.lsn + 1, tail + 1):
            self.audit.frame(lsn, decode(self.frames[lsn - 1]), self.op_at[lsn])
        del self.frames[tail:]
        self.durable_lsn = self.promised_lsn = tail
        self.trace.say(
            f"start: tail {tail}, snapshot {opened.report.snapshot_lsn}, replayed {opened.report.replayed}"
            f"{', torn' if opened.report.journal.torn else ''}"
        )
        self.counts["torn tails"] += opened.report.journal.torn is not None
        # A log is opened at its first use. Often enough, leave that to the clients.
        self.audit.restarted(opened, self.frames, self.now_ms, reads=self.random.random() < 0.6)
        unknown, self.open_ops = list(self.open_ops), deque()
        for op in unknown:
            if op.own and op.lsn > tail:
                op.own = False
            op.is_unknown = True
            self.audit.unknown(op)
            op.actor.on_unknown(op)
        self.op_at.clear()

    def _lose_power(self) -> None:
        if self.faults.cuts_power():
            keep = self.faults.keep()
            self.faults.counts[f"power cut, keep {keep}"] += 1
            self.disk.crash(keep)
        else:
            self.faults.counts["kill"] += 1
            self.disk.restart()

    def die(self, why: str) -> None:
        """The process ends here. Replies that were not sent are lost."""
        self.counts["crashes"] += 1
        self.trace.say(f"{self.steps}: dies: {why}")
        self._inbox.clear()
        self._new_frames.clear()
        self._lose_power()
        self.now_ms += self.faults.jump_ms() + self.random.randrange(2_000)
        self.start()

    def stop(self, error: Exception) -> None:
        """A disk error reached the engine: it must stop, and its journal must not be usable if that failed."""
        if not self.errors_injected():
            raise Violation("disk", f"a disk that never failed stopped the engine: {error}")
        self.counts["stops"] += 1
        if isinstance(error, AppendUnknown):
            try:
                self.opened.journal.append(self.opened.journal.tail_lsn(), [b"x"])
            except AppendUnknown:
                pass
            else:
                raise Violation("fail-stop", f"the journal still accepted frames after {error}")
        self.die(f"disk error: {error}")

    def errors_injected(self) -> int:
        counts = self.disk.fault_counts
        return counts.get("eio", 0) + counts.get("enospc", 0) + counts.get("short", 0)

    def _observe_windows(self, lsn: int, facts: list[Fact]) -> None:
        for connection in self.connections.values():
            connection.observed(facts, self.now_ms)
        self.windows.observe(facts, self.now_ms)

    def note_moved(self, consumer: Keeps) -> Callable[[], None]:
        """Called by the window of a consumer."""
        return lambda: self._moved.update({consumer: None})

    def keep_leases(self) -> None:
        """At the end of each turn of the loop: connections renew the leases that they must."""
        moved, self._moved = self._moved, {}
        for consumer in list(self.connections):
            next_ms = consumer.window.next_ms()
            if consumer in moved or (next_ms is not None and next_ms <= self.now_ms):
                consumer.keep()
        for connection in self.connections.values():
            connection.judge(self.opened.broker.state, self.now_ms)

    def clean_stop(self) -> None:
        """What `Engine.close` does: finish, trim the journal, save the watermark."""
        self.commit_all()
        opened = self.opened
        if not self.checkpoint.is_syncing():
            try:
                opened.store.sync()
                lsn = self.sequencer.durable_lsn
                opened.snapshots.save(lsn, opened.journal.crc_at(lsn) or 0, snapshot_frames(opened.broker))
            except DiskFull:
                pass
        opened.journal.close()
        opened.store.close()
        self.audit.watermark_lsn = self.durable_lsn
        self.counts["clean stops"] += 1
        self.trace.say(f"{self.steps}: stops in order at lsn {self.durable_lsn}")
        if self.faults.cuts_power():
            self.disk.crash(self.faults.keep())
        else:
            self.disk.restart()
        self.now_ms += self.faults.jump_ms()
        self.start()

    # ------------------------------------------------------------------------------------------------------- one step

    def guarded(self, work: Callable[[], object]) -> None:
        """Run something that may end the process."""
        try:
            work()
        except Crash as crash:
            self.die(f"crash at {crash}")
        except (DiskFailed, DiskFull, AppendUnknown, JournalUnavailable) as error:
            self.stop(error)

    def pass_time(self) -> None:
        pace = self.swarm.pace_ms
        passed = int(self.random.random() * pace)
        if self.random.random() < self.swarm.long_pause:
            passed += self.random.choice((500, 3_000, 30_000))
        self.passed_ms += passed
        self.now_ms += passed

    def work(self) -> None:
        """The part of a step that no client does."""
        chance = self.random.random
        if chance() < self.swarm.commit_chance:
            self.commit(at_once=chance() >= self.swarm.slow_commit)
        if self.connections:
            self.keep_leases()
        deadline_ms = self.opened.broker.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms and chance() < 0.6:
            self.sweep()
        roll = chance()
        if roll < 0.02:
            self.tend()
        elif roll < 0.17:
            self.checkpoint.advance(self)
        elif roll < 0.19 and self.is_quiet():
            self.audit.compare(self.opened.broker.state, self.now_ms)
        if self.full_until and self.steps >= self.full_until:
            self.relieve()
        elif not self.full_until and self.faults.enabled and self.faults.fills():
            self.fill()
        if self.faults.enabled and self.faults.kills():
            if chance() < 0.5:
                self.clean_stop()
            else:
                self.die("killed")

    def is_quiet(self) -> bool:
        return self.sequencer.decided_lsn == self.durable_lsn and not self._inbox

    def submit(self, command: c.Command, actor: object, note: object = None) -> Operation:
        op = Operation(command, actor, note, self.now_ms, self.steps, self.durable_lsn)
        self._note(op)
        self.group.submit(command, self.now_ms, OpReply(self._inbox, op))
        if isinstance(command, c.SetClock) and op.own:
            self.now_ms = command.at_ms
            for connection in self.connections.values():
                connection.clock_moves += 1
        if self._inbox:
            self._hand_out()
        return op

    def produce(self, topic: str, value: bytes, key: bytes, partition: int | None, actor: object) -> None:
        """A plain message, as the server produces it: it may be coalesced with others."""
        callback = OpReply(self._inbox)
        message = PlainMessage(topic, value, key, callback, partition)
        callback.op = op = Operation(message.command(), actor, PLAIN, self.now_ms, self.steps, self.durable_lsn)
        self._note(op)
        self.group.produce(message)
        self.counts["plain messages"] += 1
        if self._inbox:
            self._hand_out()

    def _note(self, op: Operation) -> None:
        self.open_ops.append(op)
        self.operations += 1
        self.commands[type(op.command).__name__] += 1
        if self.trace.talks:
            self.trace.show(f"{self.steps}: {op.actor} {_short(op.command)}")

    def _decided(self, command: c.Command, ops: list[Operation], before_lsn: int) -> None:
        """A command was decided, for one operation or for many plain messages together."""
        lsn = self.sequencer.decided_lsn
        for op in ops:
            op.lsn, op.own = lsn, lsn > before_lsn
        if lsn > before_lsn:
            joined = ops[0]
            if len(ops) > 1:
                joined = Operation(command, self, None, self.now_ms, self.steps, self.durable_lsn)
                joined.lsn, joined.own = lsn, True
                self.counts["coalesced appends"] += 1
            self.op_at[lsn] = joined

    def query(self, question: Question, actor: object) -> None:
        """A read of the state, as the server does it. It is not an operation and changes nothing."""
        op = Operation(question, actor, None, self.now_ms, self.steps, self.durable_lsn)
        op.lsn = self.sequencer.decided_lsn
        inbox = self._inbox
        self.open_ops.append(op)
        queries = Queries(self.sequencer, lambda: self.now_ms)
        queries.run(lambda view: shown(question, view.state), lambda reply: inbox.append((op, reply)), _raise)
        if inbox:
            self._hand_out()

    def _hand_out(self) -> None:
        """Check frames and replies in the order of decision, then give the replies to the clients."""
        inbox, frames = self._inbox, self._new_frames
        for op, reply in inbox:
            while frames and frames[0][0] <= op.lsn:
                lsn, facts = frames.popleft()
                self.audit.frame(lsn, facts, self.op_at.pop(lsn))
            if op.lsn > self.durable_lsn and getattr(reply, "code", None) is not Code.DISK_FULL:
                raise Violation("ack", f"{op} was answered at lsn {op.lsn}; durable is {self.durable_lsn}")
            first = self.open_ops.popleft()
            if first is not op:
                self.open_ops.appendleft(first)
                self.open_ops.remove(op)
            name = type(reply).__name__
            self.replies[name] += 1
            self.trace.add(b"%d %d %s;" % (self.steps, op.lsn, name.encode()))
            if self.trace.talks:
                self.trace.show(f"{self.steps}: {op.actor} <- {_short(reply)}")
            op.reply = reply
            self.audit.reply(op, reply)
            if self.disk.capacity_bytes is not None:
                self._count_while_full(op, reply)
        answered = list(inbox)
        inbox.clear()
        for op, reply in answered:
            op.actor.on_reply(op, reply)

    def _count_while_full(self, op: Operation, reply: Reply) -> None:
        """A full disk refuses new work; settlements continue."""
        if type(op.command) in NEW_WORK:
            self.counts["new work refused while full"] += getattr(reply, "code", None) is Code.DISK_FULL
        elif op.own:
            self.counts["old work done while full"] += 1

    def _see_frames(self) -> None:
        frames = self._new_frames
        while frames:
            lsn, facts = frames.popleft()
            self.audit.frame(lsn, facts, self.op_at.pop(lsn))

    # ---------------------------------------------------------------------------------------- the work of the engine

    def commit(self, *, at_once: bool) -> None:
        """One phase of a commit, or all of them: take, append, report. It may be delayed before it starts."""
        if self.batch is None and self.stored_lsn is None:
            if self.group.has_work() and self.group.is_delayed(self.now_ms / 1_000):
                if self.now_ms / 1_000 > self.committed_s + DELAY_MAX_S:
                    raise Violation(
                        "delay", f"a commit still waits {self.now_ms / 1_000 - self.committed_s:.3f} s later"
                    )
                self.counts["commits delayed"] += 1
                return
            self._take_batch()
            if self.batch is None:
                return
            assert self.batch.expected_lsn == len(self.frames)
            self.frames.extend(self.batch.frames)
            for frame in self.batch.frames:
                self.trace.add(frame)
            if self.group.is_inline(self.batch):
                if self.group.callers() > 1:
                    raise Violation("inline", f"{self.group.callers()} callers wait while the loop appends by itself")
                self.counts["commits inline"] += 1
                at_once = True
            if not at_once:
                return
        if self.batch is not None:
            self.stored_lsn = self.opened.journal.append(self.batch.expected_lsn, self.batch.frames)
            self.promised_lsn = self.stored_lsn
            self.sequencer.room.free_bytes = self.opened.journal.room_bytes()
            self.batch = None
            self.counts["commits"] += 1
            if not at_once:
                return
        assert self.stored_lsn is not None
        lsn, self.stored_lsn = self.stored_lsn, None
        self.durable_lsn = lsn
        self.group.on_durable(lsn)
        self.committed_s = self.now_ms / 1_000
        if self.swarm.coalesces:
            self.group.start_delay(self._append_times.choice(self._append_choices), self.committed_s)
        self._hand_out()
        self._see_frames()

    def _take_batch(self) -> None:
        self.batch = self.group.take_batch()
        if self._inbox:
            self._hand_out()  # plain messages that were refused at once

    def commit_all(self) -> None:
        while self.batch is not None or self.stored_lsn is not None or self.group.has_work():
            if self.batch is None and self.stored_lsn is None and self.group.is_delayed(self.now_ms / 1_000):
                self.now_ms += 1 + int(1_000 * DELAY_MAX_S)
            self.commit(at_once=True)

    def kept_lsn(self) -> int:
        """The journal is kept from here on for an archive."""
        return 1 << 62

    def sweep(self) -> None:
        if (command := self.opened.broker.due(self.now_ms)) is not None:
            self.submit(command, self)

    def tend(self) -> None:
        """Regular maintenance: work that a full disk refused, the watermark, the spare segment, retention."""
        self.opened.store.make_room()
        self.opened.store.tidy()
        if self.steps % 7 == 0:
            self.opened.journal.close_segment()
        self.opened.journal.save_watermark()
        self.audit.watermark_lsn = self.opened.journal.tail_lsn()
        self.opened.journal.make_room()
        self.sequencer.room.free_bytes = self.opened.journal.room_bytes()
        for command in self.opened.broker.regular_sweeps() if self.random.random() < 0.3 else ():
            self.submit(command, self)

    # ----------------------------------------------------------------------------------------------------- a full disk

    def fill(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + self.random.randrange(3_000)
        self.full_until = self.steps + self.random.randrange(20, 250)
        self.counts["times full"] += 1

    def relieve(self) -> None:
        self.disk.capacity_bytes = None
        self.full_until = 0

    def heal(self) -> None:
        """No more faults: all remaining work must complete now."""
        self.faults.enabled = False
        self.faults.stop()
        self.disk.on_call = None
        self.relieve()

    # ------------------------------------------------------------------------------------- the world as a client

    def on_reply(self, op: Operation, reply: Reply) -> None:
        pass

    def on_unknown(self, op: Operation) -> None:
        pass

    def __str__(self) -> str:
        return "timer"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 240 else f"{text[:200]}… ({len(text)} characters)"


def _raise(error: Exception) -> None:
    raise error
