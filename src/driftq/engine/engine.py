"""The asyncio face of a broker: submit commands, await replies, read, wait, start and stop. It can be embedded.

It knows time, the thread and wake-ups; the rules are the broker's, the order is the sequencer's. One loop owns
everything; only the journal's writes and syncs (but see `engine.inline_sync`), and the checkpoint's, happen elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected, Reply, Swept
from driftq.engine.clock import Clock, ClockReading, SystemChance, SystemClock
from driftq.engine.coalescer import Coalescer, PlainMessage
from driftq.engine.commit_delay import CommitDelay
from driftq.engine.committer import Committer
from driftq.engine.inline_sync import InlineSync
from driftq.engine.maintenance import Maintenance
from driftq.engine.projection import StoreReader
from driftq.engine.queries import Queries
from driftq.engine.recovery import Opened, Progress, RecoveryReport, StorageOptions, open_folder
from driftq.engine.sequencer import CommitBatch, Sequencer
from driftq.engine.waiters import Watch, claim_or_wait
from driftq.storage.data_folder import FolderLock
from driftq.storage.disk import Disk, OsDisk
from driftq.storage.journal import ROOM_BYTES
from driftq.storage.log_store import LogStore, MemoryLogStore

if TYPE_CHECKING:
    from driftq.core.state.state import State

logger = logging.getLogger("driftq.engine")

OnCommit = Callable[[int, float, float], None]  # frames, seconds until durable, seconds of writing and syncing


class EngineStopped(Exception):
    """The engine has ended, or a disk failure ended it: nothing is known about what was not answered."""


class Engine:
    """A broker that runs. Made by `open` or `in_memory`, inside a running loop."""

    def __init__(
        self, broker: Broker, store: LogStore, clock: Clock, opened: Opened | None, lock: FolderLock | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._store = store
        self._opened = opened
        self._room_bytes = opened.journal.room_bytes() if opened is not None else ROOM_BYTES
        tail_lsn = opened.journal.tail_lsn() if opened is not None else 0
        options = opened.options if opened is not None else StorageOptions()
        self.sequencer = Sequencer(
            broker,
            store,
            tail_lsn,
            lambda: self._room_bytes,
            block_bytes=options.block_bytes(),
            reserve_bytes=options.reserve_bytes(),
            segment_bytes=options.segment_room_bytes(),
            keeps=opened is not None,
        )
        self.sequencer.on_caller_error = _log_caller_error
        self.queries = Queries(self.sequencer, clock.now_ms)
        self._joiner = Coalescer(self.sequencer, clock.now_ms)
        self.watch = Watch(broker.state, clock.now_ms)
        self.sequencer.observers.append(self.watch.observe)
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        self.on_commit: OnCommit | None = None
        self._commit_began_s = 0.0
        self._failure: BaseException | None = None
        self._ended = False  # as `stopped` says, in less
        self._kicked = False
        self._committing = False
        self._haste = InlineSync()
        self._gathering = CommitDelay(self._haste.note_idle)
        self._drained: asyncio.Future[None] | None = None  # for `close`, which waits until nothing is under way
        self._open_calls: set[asyncio.Future[Reply]] = set()
        self._committer = Committer(self._loop.call_soon_threadsafe, self._fail) if opened is not None else None
        self._lock = lock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        clock.start_at(broker.state.last_ms)
        self._maintenance = Maintenance(
            opened, self._committer, lambda command: self.submit_to(command, self._swept), self._tended, self._fail,
            clock, lock,
        )  # fmt: skip
        self._arm_timer()

    # --- making ---

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        limits: BrokerLimits | None = None,
        options: StorageOptions | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """Open a data folder, or make one. Raises `FolderInUse` or what `storage.corruption` defines."""
        lock = FolderLock(path)
        try:
            opened = await asyncio.get_running_loop().run_in_executor(
                None,
                partial(
                    open_folder,
                    disk or OsDisk(),
                    path,
                    os.urandom(16),
                    limits or BrokerLimits(),
                    SystemChance(),
                    options or StorageOptions(),
                    progress,
                ),
            )
        except BaseException:
            lock.release()
            raise
        return cls(opened.broker, opened.store, clock or SystemClock(), opened, lock)

    @classmethod
    def in_memory(cls, *, limits: BrokerLimits | None = None, clock: Clock | None = None) -> Engine:
        """Everything works and nothing is kept."""
        store = MemoryLogStore()
        broker = Broker(limits or BrokerLimits(), StoreReader(store), SystemChance())
        return cls(broker, store, clock or SystemClock(), None)

    # --- asking ---

    @property
    def latest_state(self) -> State:
        """It may be ahead of the disk: to prepare a command with. Answers come from `queries`."""
        return self.sequencer.broker.state

    @property
    def report(self) -> RecoveryReport | None:
        """What the start found; None in memory."""
        return self._opened.report if self._opened is not None else None

    @property
    def folder(self) -> str | None:
        """The data folder; None in memory."""
        return self._opened.folder.path if self._opened is not None else None

    @property
    def room_bytes(self) -> int:
        """What the journal can take before it needs more of the disk."""
        return self._room_bytes

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def read_clock(self) -> ClockReading:
        return self._clock.read()

    def accept_clock(self) -> asyncio.Future[Reply]:
        """Take over the machine's time, be it earlier or later than the broker's."""
        at_ms = self._clock.read().machine_ms
        accepted = self.submit(c.SetClock(at_ms))
        if self.sequencer.broker.state.last_ms == at_ms:  # not refused for lack of room
            self._clock.set_to(at_ms)
            self._timer_ms = -1  # it was armed by the old time
            self._arm_timer()
        return accepted

    def submit(self, command: c.Command) -> asyncio.Future[Reply]:
        """Ask for something. The reply comes when everything it rests on is durable."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.submit_to(command, partial(_answer, future))
        if not future.done():
            self._open_calls.add(future)
            future.add_done_callback(self._open_calls.discard)
        return future

    def submit_to(self, command: c.Command, on_reply: Callable[[Reply], None]) -> None:
        """`submit` for those who have no use for a future. Not called back if the engine fails: see `stopped`."""
        if self._ended:
            raise EngineStopped("the engine has stopped") from self._failure
        if self._joiner:
            self._joiner.flush()  # they were asked before
        self.sequencer.submit(command, self._clock.now_ms(), on_reply)
        if not (self._kicked or self._committing):
            self._after_decision()

    def produce_to(
        self, topic: str, value: bytes, key: bytes, on_reply: Callable[[Reply], None], partition: int | None = None
    ) -> None:
        """`submit_to` for a message of which there is nothing else to say: it may be written down with others."""
        if self._ended:
            raise EngineStopped("the engine has stopped") from self._failure
        self._joiner.add(PlainMessage(topic, value, key, on_reply, partition))
        if not (self._kicked or self._committing):
            self._after_decision()

    def _callers(self) -> int:
        """How many wait for the next commit, or will."""
        return self.sequencer.waiting_replies() + self._joiner.callers()

    def _after_decision(self) -> None:
        if (self._joiner or self.sequencer.waiting_frames()) and not self._kicked and not self._committing:
            # At the end of this turn of the loop: whatever else arrived in the same turn shares the sync.
            self._kicked = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Commit when those who were answered by the last commit have come again, or after a moment."""
        if self._failure is not None:
            return
        if self._gathering.waits(self._callers()):
            self._loop.call_soon(self._gather)
        else:
            self._joiner.flush()
            self._commit()

    async def claim(self, command: c.Claim, wait_ms: int = 0) -> Claimed | Rejected:
        """Claim; if there is nothing, wait for up to `wait_ms` until there is."""
        return await claim_or_wait(self, command, wait_ms)

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches that cover a range of a log; only what is durable is there."""
        self._haste.note_read()
        self.sequencer.show()
        return self._store.read(log_id, offset, end_offset, max_bytes)

    def durable_end(self, log_id: int) -> int:
        self.sequencer.show()
        return max(self._store.end(log_id), self.latest_state.logs[log_id].start)

    # --- committing ---

    def _commit(self) -> None:
        self._kicked = False
        batch = self.sequencer.take_batch()
        if batch is None or self._opened is None or self._committer is None:
            if batch is not None:
                self.sequencer.on_durable(batch.expected_lsn + len(batch.frames))
            self._go_on()
            self._arm_timer()
            return
        self._commit_began_s = time.perf_counter()
        callers = self._callers()
        everybody = not self.sequencer.waiting_frames() and self._gathering.has_all(callers)
        if not (everybody and self._haste.allows(callers, batch.frames)) or self._committer.busy:
            self._committing = True
            self._committer.call(partial(self._append, batch), self._committed)
            self._arm_timer()  # a deadline need not wait for the disk
            return
        self._haste.begin()
        try:
            result = self._append(batch)
        except BaseException as error:
            self._fail(error)
        else:
            self._committed(result, callers)

    def _append(self, batch: CommitBatch) -> tuple[int, int, float]:
        """On the committer's thread, or in the loop while that has nothing to do."""
        assert self._opened is not None
        journal = self._opened.journal
        began_s = time.perf_counter()
        lsn = journal.append(batch.expected_lsn, batch.frames)
        return lsn, journal.room_bytes(), time.perf_counter() - began_s

    def _committed(self, result: tuple[int, int, float], callers: int = 0) -> None:
        """`callers`, if the loop did it by itself: then nobody can have come meanwhile."""
        lsn, self._room_bytes, append_s = result
        took_s = time.perf_counter() - self._commit_began_s
        self._haste.note(append_s, by_loop=callers > 0)
        self._committing = False
        frames = lsn - self.sequencer.durable_lsn
        expected = callers or self._callers()
        try:
            self.sequencer.on_durable(lsn)
        except BaseException as error:  # the log store's disk failed
            self._fail(error)
            return
        if self.on_commit is not None:
            self.on_commit(frames, took_s, append_s)
        self._gathering.note(expected, append_s)
        self._go_on()
        self._arm_timer()

    def _go_on(self) -> None:
        """With what came meanwhile, or tell `close` that nothing did."""
        self._after_decision()
        if not self._kicked:
            self._tell_drained()

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Stop at once: nothing that is waiting may be answered, nothing may be written any more."""
        if self._failure is None:
            self._failure = error
            self._ended = True
            logger.critical("stopped: %s", error)
            self._tell_drained()
            for call in list(self._open_calls):
                if not call.done():  # a cancelled one leaves the set a little later
                    call.set_exception(EngineStopped(str(error)))
            if not self.stopped.done():
                stopped = EngineStopped(str(error))
                stopped.__cause__ = error
                self.stopped.set_exception(stopped)
                self.stopped.exception()  # looked at: whoever awaits it still gets it

    # --- time ---

    def _arm_timer(self) -> None:
        next_ms = self.sequencer.broker.next_deadline_ms()
        if next_ms == self._timer_ms or self.stopped.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        self._timer = None
        if next_ms is not None:
            delay_s = max(0, next_ms - self._clock.now_ms()) / 1_000
            self._timer = self._loop.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = self._timer_ms = None
        command = self.sequencer.broker.due(self._clock.now_ms())
        if command is not None and not self.stopped.done():
            self.submit_to(command, self._swept)
        self._arm_timer()

    def _swept(self, reply: Reply) -> None:
        if isinstance(reply, Swept):
            for group_id in reply.group_ids:
                self.watch.wake_group(group_id, 1)

    def _tended(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes

    # --- stopping ---

    async def close(self) -> None:
        """Answer what was asked, make it durable, leave a short journal behind."""
        await self._maintenance.stop()
        if self._failure is None and (self._committing or self._joiner or self.sequencer.waiting_frames()):
            self._drained = self._loop.create_future()
            await self._drained
        if self._timer is not None:
            self._timer.cancel()
        self._ended = True
        if not self.stopped.done():
            self.stopped.set_result(None)
        if self._opened is not None and self._committer is not None:
            self._committer.stop()
            if self._failure is None:
                self._maintenance.save_last_snapshot(self.sequencer.durable_lsn)
            self._opened.journal.close()
            self._opened.store.close()
        if self._lock is not None:
            self._lock.release()


def _log_caller_error(error: Exception) -> None:
    logger.error("a reply could not be delivered to its caller", exc_info=error)


def _answer(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
