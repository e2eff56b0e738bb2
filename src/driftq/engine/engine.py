"""The broker as an asyncio service that can be embedded: submit commands, await replies, read, wait, start and stop.

The engine is the outer of three rings: it knows time, threads and wake-ups. The rules are the broker's, the order is
the sequencer's. One event loop owns everything; only the calls of the journal and the steps of a checkpoint run
elsewhere.

    Engine ─┬─ Sequencer ── Broker          decides commands, releases replies when they are durable
            ├─ GroupCommit, CommitLoop      which commands share a sync; runs the syncs (`Journal`, on the committer)
            ├─ DeadlineTimer                wakes up for leases, delays and expiries
            ├─ Maintenance, Checkpointer    once a second: watermark, spare room, retention, checkpoints
            ├─ Queries                      reads of the state, answered when they are durable
            └─ Watch                        consumers and readers that wait for something to happen
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected, Reply, Swept
from driftq.engine.checkpointer import Checkpointer, FolderSnapshots, NoSnapshots, SnapshotStore
from driftq.engine.clock import Clock, ClockReading, SystemChance, SystemClock
from driftq.engine.commit_loop import CommitLoop
from driftq.engine.committer import Committer, InlineCommitter, OnFailure, Post, ThreadCommitter
from driftq.engine.errors import EngineStopped
from driftq.engine.group_commit import GroupCommit, PlainMessage
from driftq.engine.maintenance import Maintenance
from driftq.engine.projection import StoreReader
from driftq.engine.queries import Queries
from driftq.engine.recovery import Progress, RecoveryReport, StorageOptions, open_folder
from driftq.engine.sequencer import Sequencer
from driftq.engine.timers import DeadlineTimer
from driftq.engine.waiters import Watch, claim_or_wait
from driftq.storage.data_folder import FolderLock
from driftq.storage.disk import Disk, OsDisk
from driftq.storage.journal import Journal, MemoryJournal
from driftq.storage.log_store import LogStore, MemoryLogStore

if TYPE_CHECKING:
    from driftq.core.state.state import State

logger = logging.getLogger("driftq.engine")


class Engine:
    """A running broker. Made by `open` or `in_memory`, inside a running event loop."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        store: LogStore,
        snapshots: SnapshotStore,
        clock: Clock,
        *,
        options: StorageOptions | None = None,
        new_committer: Callable[[Post, OnFailure], Committer] = ThreadCommitter,
        folder: str | None = None,
        report: RecoveryReport | None = None,
    ) -> None:
        """`journal` is open and replayed; `broker` and `store` hold the result of the replay."""
        self._loop = asyncio.get_running_loop()
        sizes = options or StorageOptions()
        committer = new_committer(self._loop.call_soon_threadsafe, self._fail)
        self.journal = journal  # where every decided frame goes
        self.folder = folder  # the data folder; None in memory
        self.report = report  # what the start found; None in memory
        # The middle ring: the order of commands, and which reply waits for which frame.
        self.sequencer = Sequencer(
            broker,
            store,
            journal.tail_lsn(),
            journal.room_bytes(),
            block_bytes=sizes.block_bytes(),
            reserve_bytes=sizes.reserve_bytes(),
            segment_bytes=sizes.segment_room_bytes(),
        )
        self.sequencer.on_caller_error = _log_caller_error
        # Reads of the state; waiters and what connections hold.
        self.queries = Queries(self.sequencer, clock.now_ms)
        self.watch = Watch(broker.state, clock.now_ms)
        self.sequencer.observers.append(self.watch.observe)
        self.stopped: asyncio.Future[None] = self._loop.create_future()  # done when closed, raises when failed
        self._is_stopped = False  # cached `stopped.done()`: checked on every submit
        self._open_calls: set[asyncio.Future[Reply]] = set()  # futures of `submit` that a failure must end
        self._clock = clock  # the broker's time
        self._committer = committer  # where the journal's calls run
        self._group = GroupCommit(self.sequencer, clock.now_ms)  # what a commit holds and when it starts
        clock.start_at(broker.state.last_ms)
        # Wakes up for deadlines; runs the commits; keeps the journal short.
        self._timer = DeadlineTimer(broker, clock, self._submit_sweep)
        self.commits = CommitLoop(self.sequencer, self._group, journal, committer, self._fail, self._timer.arm)
        self._checkpointer = Checkpointer(journal, store, snapshots)
        self._maintenance = Maintenance(
            journal, store, committer, self._checkpointer, clock,
            submit=self._submit_sweep, on_room=self._set_room, on_failure=self._fail,
        )  # fmt: skip
        self._timer.arm()

    # --- start ---

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
        """Open a data folder, or create one. Raises `FolderInUse` or what `storage.corruption` defines."""
        disk = disk or OsDisk()
        options = options or StorageOptions()
        lock = FolderLock(path)
        try:
            opened = await asyncio.get_running_loop().run_in_executor(
                None,
                partial(
                    open_folder,
                    disk,
                    path,
                    os.urandom(16),
                    limits or BrokerLimits(),
                    SystemChance(),
                    options,
                    progress,
                    lock=lock,
                ),
            )
        except BaseException:
            lock.release()
            raise
        snapshots = FolderSnapshots(disk, opened.folder, opened.report.snapshot_lsn)
        return cls(
            opened.broker,
            opened.journal,
            opened.store,
            snapshots,
            clock or SystemClock(),
            options=options,
            folder=path,
            report=opened.report,
        )

    @classmethod
    def in_memory(cls, *, limits: BrokerLimits | None = None, clock: Clock | None = None) -> Engine:
        """Everything works, nothing is kept."""
        store = MemoryLogStore()
        broker = Broker(limits or BrokerLimits(), StoreReader(store), SystemChance())
        journal = MemoryJournal(retains=False)
        return cls(broker, journal, store, NoSnapshots(), clock or SystemClock(), new_committer=InlineCommitter)

    # --- commands ---

    def submit(self, command: c.Command) -> asyncio.Future[Reply]:
        """Submit a command. The reply arrives when everything that it depends on is durable."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.submit_to(command, partial(_resolve, future))
        if not future.done():
            self._open_calls.add(future)
            future.add_done_callback(self._open_calls.discard)
        return future

    def submit_to(self, command: c.Command, on_reply: Callable[[Reply], None]) -> None:
        """`submit` with a callback instead of a future. It is not called if the engine fails: see `stopped`."""
        if self._is_stopped:
            self._raise_stopped()
        self._group.submit(command, self._clock.now_ms(), on_reply)
        if not self.commits.is_busy:
            self.commits.wake()

    def produce_to(
        self, topic: str, value: bytes, key: bytes, on_reply: Callable[[Reply], None], partition: int | None = None
    ) -> None:
        """`submit_to` for a message with nothing but a key and a value: it may share an append with others."""
        if self._is_stopped:
            self._raise_stopped()
        self._group.produce(PlainMessage(topic, value, key, on_reply, partition))
        if not self.commits.is_busy:
            self.commits.wake()

    async def claim(self, command: c.Claim, wait_ms: int = 0) -> Claimed | Rejected:
        """Claim messages; if there are none, wait for up to `wait_ms` until there are."""
        return await claim_or_wait(self, command, wait_ms)

    # --- reads ---

    @property
    def latest_state(self) -> State:
        """The state as of the last decision, to prepare commands with. It may be ahead of the disk, so replies to
        clients come from `queries` instead."""
        return self.sequencer.broker.state

    @property
    def room_bytes(self) -> int:
        """What the journal can take before it needs more of the disk."""
        return self.sequencer.room_bytes

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches that cover a range of a log. The log store holds only what is durable."""
        return self.sequencer.store.read(log_id, offset, end_offset, max_bytes)

    def durable_end(self, log_id: int) -> int:
        return max(self.sequencer.store.end(log_id), self.latest_state.logs[log_id].start)

    # --- time ---

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def read_clock(self) -> ClockReading:
        return self._clock.read()

    def accept_clock(self) -> asyncio.Future[Reply]:
        """Take over the machine's time, even if it is earlier than the broker's."""
        at_ms = self._clock.read().machine_ms
        accepted = self.submit(c.SetClock(at_ms))
        if self.latest_state.last_ms == at_ms:  # not refused for lack of room
            self._clock.set_to(at_ms)
            self._timer.rearm()
        return accepted

    def _submit_sweep(self, command: c.Command) -> None:
        self.submit_to(command, self._swept)

    def _swept(self, reply: Reply) -> None:
        if isinstance(reply, Swept):
            for group_id in reply.group_ids:
                self.watch.wake_group(group_id, 1)

    def _set_room(self, room_bytes: int) -> None:
        self.sequencer.room_bytes = room_bytes

    # --- stop ---

    async def close(self) -> None:
        """Answer and make durable what was submitted, and leave a short journal."""
        await self._maintenance.stop()
        await self.commits.drain()
        self._timer.stop()
        self._is_stopped = True
        failed = self.stopped.done() and self.stopped.exception() is not None
        if not self.stopped.done():
            self.stopped.set_result(None)
        self._committer.stop()
        if not failed:
            self._checkpointer.finish(self.sequencer.broker, self.sequencer.durable_lsn)
        self.sequencer.store.close()
        self.journal.close()

    def _fail(self, error: BaseException) -> None:
        """Stop at once: no waiting reply may leave, and nothing may be written any more."""
        if self.stopped.done():
            return
        logger.critical("stopped: %s", error)
        self._is_stopped = True
        self.commits.stop()
        self._timer.stop()
        for call in list(self._open_calls):
            if not call.done():  # a cancelled one leaves the set a little later
                call.set_exception(EngineStopped(str(error)))
        stopped = EngineStopped(str(error))
        stopped.__cause__ = error
        self.stopped.set_exception(stopped)
        self.stopped.exception()  # mark it as retrieved: asyncio must not log it if nothing awaits it

    def _raise_stopped(self) -> None:
        raise EngineStopped("the engine has stopped") from self.stopped.exception()


def _log_caller_error(error: Exception) -> None:
    logger.error("a reply could not be delivered to its caller", exc_info=error)


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
