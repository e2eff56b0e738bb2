"""The broker as an asyncio service that can be embedded: submit commands, await replies, read, wait, start and stop.

The engine is the outer of three rings: it knows time, threads and wake-ups. The rules are the broker's, the order is
the sequencer's. One event loop owns everything; only the calls of the journal and the steps of a checkpoint run
elsewhere.

    Engine ─┬─ Sequencer ── Broker          decides commands, releases replies when they are durable
            ├─ GroupCommit, CommitLoop      which commands share a sync; runs the syncs (`Journal`, on the committer)
            ├─ DeadlineTimer                wakes up for leases, delays, expiries and schedules
            ├─ SchedulePlanner              computes the next times of schedules
            ├─ Maintenance, Checkpointer    once a second: watermark, spare room, retention, checkpoints
            ├─ LoopMonitor                  which work held the loop for how long
            ├─ Lifetime                     whether it still runs; the calls that a failure must end
            ├─ Queries                      reads of the state, answered when they are durable
            ├─ Watch                        consumers and readers that wait for something to happen
            ├─ ColdReads, ColdCommands      records that are only in the archive: reads and commands wait for them
            └─ Archiver, if there is one    copies the journal and the files to object storage, on threads
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
from driftq.engine.archiver import CLAIM_S, Archiver, ArchiveUnavailable
from driftq.engine.checkpointer import Checkpointer
from driftq.engine.clock import Clock, ClockReading, SystemChance, SystemClock
from driftq.engine.cold_commands import ColdCommands
from driftq.engine.cold_reads import ColdReads
from driftq.engine.committer import CommitLoop, Committer, InlineCommitter, OnFailure, Post, ThreadCommitter
from driftq.engine.folder_storage import Archive, Opened, RecoveryReport, StorageOptions, open_folder
from driftq.engine.group_commit import GroupCommit, PlainMessage
from driftq.engine.lifetime import Lifetime
from driftq.engine.loop_monitor import LoopMonitor
from driftq.engine.maintenance import Maintenance
from driftq.engine.projection import BODIES_BYTES, BodyCache, StoreReader
from driftq.engine.queries import Queries
from driftq.engine.schedule_planner import SchedulePlanner
from driftq.engine.sequencer import Sequencer
from driftq.engine.snapshot_store import NoSnapshots, SnapshotStore
from driftq.engine.synced_journal import SyncedJournal
from driftq.engine.timers import DeadlineTimer
from driftq.engine.waiters import Watch, claim_or_wait
from driftq.storage.data_folder import FolderLock
from driftq.storage.disk import Disk, OsDisk
from driftq.storage.journal import Journal, MemoryJournal
from driftq.storage.log_store import LogStore, MemoryLogStore
from driftq.wire.records import unpack

if TYPE_CHECKING:
    from driftq.core.state.state import State
    from driftq.engine.recovery import Progress
    from driftq.wire.records import Header, Record

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
        monitor: LoopMonitor | None = None,
        archiver: Archiver | None = None,
        cold_reads: ColdReads | None = None,
    ) -> None:
        """`journal` is open and replayed; `broker` and `store` hold the result of the replay."""
        sizes = options or StorageOptions()
        self.monitor = monitor or LoopMonitor()  # accounts for the time of the loop
        committer = new_committer(asyncio.get_running_loop().call_soon_threadsafe, self._fail)
        self.journal = journal  # where every decided frame goes
        self.folder = folder  # the data folder; None in memory
        self.report = report  # what the start found; None in memory
        # The middle ring: the order of commands, and which reply waits for which frame.
        self.sequencer = Sequencer(broker, store, journal.tail_lsn(), sizes.journal_room(journal.room_bytes()))
        self.sequencer.on_caller_error = _log_caller_error
        self.sequencer.monitor = self.monitor
        # Reads of the state; waiters and what connections hold.
        self.cold_reads = cold_reads  # gets records back from the archive; None in memory
        self.queries = Queries(self.sequencer, clock.now_ms, cold_reads)
        self.watch = Watch(broker.state, clock.now_ms)
        self.sequencer.observers.append(self.watch.observe)
        self._bodies = BodyCache(BODIES_BYTES)  # of the compressed batches that were read last
        self._life = Lifetime()  # whether it still runs, and the calls that a failure must end
        self._clock = clock  # the broker's time
        self.archiver = archiver  # ships to the archive; None without one
        # What a commit holds and when it starts.
        self._group = GroupCommit(self.sequencer, clock.now_ms, may_inline=archiver is None or archiver.mode != "sync")
        clock.start_at(broker.state.last_ms)
        self._cold_commands = ColdCommands(cold_reads, store, broker.reader, self._submit) if cold_reads else None
        # Wakes up for deadlines; runs the commits; keeps the journal short.
        self._timer = DeadlineTimer(broker, clock, self._submit_sweep, self.monitor)
        self._planner = SchedulePlanner(broker.state.schedules, clock.now_ms, self._submit_sweep, self.monitor)
        self.commits = CommitLoop(
            self.sequencer, self._group, journal, committer, self._fail, self._after_commit, self.monitor
        )
        checkpointer = Checkpointer(
            journal, store, snapshots, broker.state, lambda: self.sequencer.durable_lsn,
            archive_needs=archiver.needed_lsn if archiver is not None else None,
        )  # fmt: skip
        self._maintenance = Maintenance(
            journal, store, committer, checkpointer, clock,
            submit=self._submit_sweep, regular_sweeps=broker.regular_sweeps,
            on_room=self._set_room, on_failure=self._fail, monitor=self.monitor, free=broker.state.free_discarded,
            wants_checkpoint=archiver.wants_checkpoint if archiver is not None else lambda: False,
        )  # fmt: skip
        if archiver is not None:
            post = asyncio.get_running_loop().call_soon_threadsafe
            archiver.on_failure = lambda error: _ignore(post(self._fail, error))
        self._after_commit()

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
        monitor: LoopMonitor | None = None,
        archive: Archive | None = None,
    ) -> Engine:
        """Open a data folder, or create one. Raises `FolderInUse`, what `storage.corruption` defines, or
        `ArchiveUnavailable` if replies are to wait for an archive that cannot be claimed."""
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
        archiver = opened.archiver(archive) if archive is not None else None
        journal: Journal = opened.journal
        clock = clock or SystemClock()
        if archive is not None and archiver is not None:
            archiver.mover = opened.mover(archive, clock.now_ms, asyncio.get_running_loop().call_soon_threadsafe)
            archiver.start()
            if archiver.mode == "sync":
                await _claimed(archiver, opened)
                journal = SyncedJournal(opened.journal, archiver)
        return cls(
            opened.broker,
            journal,
            opened.store,
            opened.snapshots,
            clock,
            options=options,
            folder=path,
            report=opened.report,
            monitor=monitor,
            archiver=archiver,
            cold_reads=ColdReads(opened.store.tiers, archive.objects if archive is not None else None),
        )

    @classmethod
    def in_memory(
        cls, *, limits: BrokerLimits | None = None, clock: Clock | None = None, monitor: LoopMonitor | None = None
    ) -> Engine:
        """Everything works, nothing is kept."""
        store = MemoryLogStore()
        broker = Broker(limits or BrokerLimits(), StoreReader(store), SystemChance())
        journal = MemoryJournal(retains=False)
        return cls(
            broker,
            journal,
            store,
            NoSnapshots(),
            clock or SystemClock(),
            new_committer=InlineCommitter,
            monitor=monitor,
        )

    # --- commands ---

    def submit(self, command: c.Command) -> asyncio.Future[Reply]:
        """Submit a command. The reply arrives when everything that it depends on is durable."""
        call = self._life.new_call()
        self.submit_to(command, partial(_resolve, call))
        if not call.done():
            self._life.watch(call)
        return call

    def submit_to(self, command: c.Command, on_reply: Callable[[Reply], None]) -> None:
        """`submit` with a callback instead of a future. It is not called if the engine fails: see `stopped`."""
        if self._cold_commands is not None:
            self._cold_commands.submit(command, on_reply)
        else:
            self._submit(command, on_reply)

    def _submit(self, command: c.Command, on_reply: Callable[[Reply], None]) -> None:
        if self._life.is_over:
            self._life.raise_stopped()
        self._group.submit(command, self._clock.now_ms(), on_reply)
        if not self.commits.is_busy:
            self.commits.wake()

    def produce_to(
        self, topic: str, value: bytes, key: bytes, on_reply: Callable[[Reply], None], partition: int | None = None
    ) -> None:
        """`submit_to` for a message with nothing but a key and a value: it may share an append with others."""
        if self._life.is_over:
            self._life.raise_stopped()
        self._group.produce(PlainMessage(topic, value, key, on_reply, partition))
        if not self.commits.is_busy:
            self.commits.wake()

    def claim_to(self, command: c.Claim, on_reply: Callable[[Claimed | Rejected], None]) -> None:
        """`submit_to` for a claim that does not wait for messages."""

        def on_claimed(reply: Reply) -> None:
            assert isinstance(reply, Claimed | Rejected)
            if isinstance(reply, Claimed) and reply.deliveries:
                self.watch.wake_group(reply.group_id, 1)  # there may be more for the next claimer
            on_reply(reply)

        self.submit_to(command, on_claimed)

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
        return self.sequencer.room.free_bytes

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches that cover a range of a log. The log store holds only what is durable. Raises `ColdRange` if
        they are only in the archive."""
        return self.sequencer.store.read(log_id, offset, end_offset, max_bytes)

    async def read_cold(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """`read`, also of records that are only in the archive. Raises `RecordsAway` if they cannot be had."""
        if self.cold_reads is None:
            return self.read(log_id, offset, end_offset, max_bytes)
        return await self.cold_reads.read(self.sequencer.store, log_id, offset, end_offset, max_bytes)

    def unpack(self, log_id: int, batch: bytes, header: Header, first_offset: int, end_offset: int) -> list[Record]:
        """The records [first_offset, end_offset) of a batch that `read` returned. Many small claims of one compressed
        batch decompress it once."""
        first, raw = first_offset - header.first_offset, self._bodies.get(log_id, batch, header)
        return unpack(batch, header, first=first, count=end_offset - first_offset, raw=raw)

    def durable_end(self, log_id: int) -> int:
        return max(self.sequencer.store.end(log_id), self.latest_state.logs[log_id].start)

    # --- time ---

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def read_clock(self) -> ClockReading:
        return self._clock.read()

    def accept_clock(self, command: c.SetClock | None = None) -> asyncio.Future[Reply]:
        """Take over the machine's time, even if it is earlier than the broker's."""
        at_ms = command.at_ms if command is not None else self._clock.read().machine_ms
        accepted = self.submit(command or c.SetClock(at_ms))
        if self.latest_state.last_ms == at_ms:  # not refused for lack of room
            self._clock.set_to(at_ms)
            self._timer.rearm()
        return accepted

    def _after_commit(self) -> None:
        self._timer.arm()
        self._planner.wake()

    def _submit_sweep(self, command: c.Command) -> None:
        self.submit_to(command, self._swept)

    def _swept(self, reply: Reply) -> None:
        if isinstance(reply, Swept):
            for group_id in reply.group_ids:
                self.watch.wake_group(group_id, 1)

    def _set_room(self, room_bytes: int) -> None:
        self.sequencer.room.free_bytes = room_bytes

    # --- stop ---

    @property
    def stopped(self) -> asyncio.Future[None]:
        """Done when the engine is closed; raises `EngineStopped` when it failed."""
        return self._life.stopped

    async def close(self) -> None:
        """Answer and make durable what was submitted, and leave a short journal. What is due is left to the next start:
        a stop does not wait for a hundred thousand leases to expire."""
        self._timer.stop()
        self._planner.stop()
        await self._maintenance.stop()
        if self.archiver is not None:
            self.archiver.begin_stop()
        await self.commits.drain()
        is_clean = self._life.close()
        self.commits.close()
        if is_clean:
            self._maintenance.finish(self.sequencer.broker, self.sequencer.durable_lsn)
        if self.archiver is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.archiver.close)
        if self.cold_reads is not None:
            self.cold_reads.close()
        self.sequencer.store.close()
        self.journal.close()

    def _fail(self, error: BaseException) -> None:
        """Stop at once: no waiting reply may leave, and nothing may be written any more."""
        if self._life.is_over:
            return
        logger.critical("stopped: %s", error)
        self.commits.stop()
        self._timer.stop()
        self._planner.stop()
        self._life.fail(error)


async def _claimed(archiver: Archiver, opened: Opened) -> None:
    """Wait until the archive is claimed and has all that the journal has: what is not there yet was not acknowledged,
    and must not be shown before it is. Raises `ArchiveUnavailable`; the folder is closed then."""
    loop = asyncio.get_running_loop()
    reason = await loop.run_in_executor(None, archiver.wait_ready, opened.journal.tail_lsn(), CLAIM_S)
    if reason:
        await loop.run_in_executor(None, archiver.close)
        opened.store.close()
        opened.journal.close()
        raise ArchiveUnavailable(reason)


def _ignore(result: object) -> None:
    pass


def _log_caller_error(error: Exception) -> None:
    logger.error("a reply could not be delivered to its caller", exc_info=error)


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)
