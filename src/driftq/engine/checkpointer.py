"""Checkpoints keep the journal short: a snapshot replaces the frames up to an lsn, and then those frames go.

    1. sync the log store           everything that frames up to the lsn wrote is on the device
    2. fold                         old snapshot + closed part of the journal = new snapshot, saved durably
    3. trim the journal             below the older of the two kept snapshots
    4. collect in the log store     delete the files that those frames had trimmed or dropped

The order is the proof. A crash between any two steps leaves a folder that opens: before step 2 is complete the old
snapshot and the whole journal are there, after it the new one is.

The snapshot is made by folding the files, not by copying live state: the event loop never pauses, and the fold runs in
a process of its own (`python -m driftq.engine.checkpointer FOLDER LSN PARENT_PID`). That process reads only closed
segments, which nothing writes to any more.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from driftq.core.broker import Broker
from driftq.core.model.frames import decode, encode_one, join
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.storage import snapshots
from driftq.storage.data_folder import DataFolder, find_folder
from driftq.storage.disk import Disk, DiskFull, NoDescriptors, OsDisk
from driftq.storage.journal_files import frames_between
from driftq.storage.log_store import MemoryLogStore

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.engine.committer import Committer
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore, SyncWork

logger = logging.getLogger("driftq.checkpoint")

FINISH_FRAMES_MIN = 20_000  # fewer are folded in a tenth of a second at the next start
FINISH_KEYS_MAX = 300_000  # a stop must not take long; with more keys the next start folds the journal instead
RETRY_S = 30.0  # after a failed checkpoint
DESCRIPTORS_RETRY_S = 1.0
SYNC_THREADS = 16  # a log's sync waits for the disk; sixteen that wait together take a tenth of the time
FACTS_PER_FRAME = 64
FRAME_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


class FoldFailed(Exception):
    """No snapshot was made. Nothing has changed."""


class SnapshotStore(Protocol):
    """Where checkpoints keep their snapshots."""

    def newest_lsn(self) -> int:
        """The lsn of the newest snapshot; 0 if there is none."""

    async def fold(self, upto_lsn: int) -> None:
        """Make the snapshot at `upto_lsn` from the last one and the journal. Raises `FoldFailed`."""

    def save(self, broker: Broker, lsn: int, chain_crc: int) -> None:
        """Save the state of a stopped broker. Raises `DiskFull`."""

    def first_needed_lsn(self) -> int:
        """The first lsn that a kept snapshot still needs the journal for."""


class Checkpointer:
    """When the checkpoints of one running engine happen, and in which order their steps."""

    def __init__(self, journal: Journal, store: LogStore, snapshots: SnapshotStore) -> None:
        self._journal = journal
        self._store = store
        self._snapshots = snapshots
        self._snapshot_lsn = snapshots.newest_lsn()
        self._sync_unfinished = False  # a sync was started and may not have ended
        self._not_before_s = 0.0  # the loop's time; later than now after a failure

    def is_due(self) -> bool:
        """Whenever the journal closed a segment since the last checkpoint."""
        is_time = asyncio.get_running_loop().time() >= self._not_before_s
        return is_time and self._journal.closed_lsn() > self._snapshot_lsn

    async def run(self, committer: Committer) -> None:
        lsn = self._journal.closed_lsn()
        loop = asyncio.get_running_loop()
        try:
            work = self._store.begin_sync()
        except DiskFull as error:
            self._not_before_s = loop.time() + RETRY_S
            logger.warning("checkpoint postponed: %s", error)
            return
        self._sync_unfinished = True
        await _sync_until_done(work)
        self._sync_unfinished = False
        try:
            await self._snapshots.fold(lsn)
        except FoldFailed as error:
            self._not_before_s = loop.time() + RETRY_S
            logger.error("checkpoint at lsn %d failed, the journal is not trimmed: %s", lsn, error)
            return
        self._snapshot_lsn = lsn
        needed_lsn = self._snapshots.first_needed_lsn()
        committer.call(lambda: self._journal.trim(needed_lsn), lambda _: None)
        self._store.collect(self._journal.tail_lsn(), needed_lsn - 1)
        logger.info("checkpoint at lsn %d", lsn)

    def finish(self, broker: Broker, lsn: int) -> None:
        """At a clean stop: leave little to fold for the next start."""
        keys = len(broker.state.keys) + len(broker.state.effects)
        if self._sync_unfinished or lsn - self._snapshot_lsn < FINISH_FRAMES_MIN or keys > FINISH_KEYS_MAX:
            return
        try:
            _sync(self._store.begin_sync())
            self._snapshots.save(broker, lsn, self._journal.crc_at(lsn) or 0)
        except DiskFull as error:
            logger.warning("no snapshot at the stop: %s", error)


class FolderSnapshots:
    """The snapshots of a data folder."""

    def __init__(self, disk: Disk, folder: DataFolder, newest_lsn: int) -> None:
        self._disk = disk
        self._folder = folder
        self._newest_lsn = newest_lsn

    def newest_lsn(self) -> int:
        return self._newest_lsn

    async def fold(self, upto_lsn: int) -> None:
        arguments = (self._folder.path, str(upto_lsn), str(os.getpid()))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "driftq.engine.checkpointer", *arguments, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:  # no descriptors, no memory, no process: the disk has nothing to do with it
            raise FoldFailed(f"its process cannot be started: {error}") from error
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            raise FoldFailed(errors.decode(errors="replace"))
        self._newest_lsn = upto_lsn

    def save(self, broker: Broker, lsn: int, chain_crc: int) -> None:
        save(self._disk, self._folder, broker, lsn, chain_crc)

    def first_needed_lsn(self) -> int:
        return first_needed_lsn(self._disk, self._folder)


class NoSnapshots:
    """For a broker in memory: it never restarts, so no snapshot is ever read."""

    def newest_lsn(self) -> int:
        return 0

    async def fold(self, upto_lsn: int) -> None:
        pass

    def save(self, broker: Broker, lsn: int, chain_crc: int) -> None:
        pass

    def first_needed_lsn(self) -> int:
        return 1


async def _sync_until_done(work: SyncWork) -> None:
    """Run the syncs until all of them are done. They are idempotent: after a lack of descriptors all run again."""
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, _sync, work)
        except NoDescriptors as error:
            logger.warning("checkpoint waits for file descriptors: %s", error)
            await asyncio.sleep(DESCRIPTORS_RETRY_S)


def _sync(work: SyncWork) -> None:
    """Run the syncs of many logs. The first failure is raised when all have ended."""
    with ThreadPoolExecutor(SYNC_THREADS, "driftq-sync") as pool:
        for stage in work.stages():
            for done in [pool.submit(call) for call in stage]:
                done.result()


# --- the fold ---


def fold(disk: Disk, folder: DataFolder, upto_lsn: int) -> None:
    """Save the snapshot at `upto_lsn`, the last lsn of a closed segment. Reads files only; touches no live state."""
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    if newest.base_lsn() >= upto_lsn:
        snapshots.sync_names(disk, folder.snapshots)  # the journal will be trimmed because of it
        return
    broker = Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())  # a fold uses neither of them
    if newest.snapshot is not None:
        for frame in snapshots.read_frames(disk, newest.snapshot, folder.store):
            for fact in decode(frame):
                broker.apply(fact)
    chain_crc = 0
    for crc, frames in frames_between(disk, folder.journal, folder.store, newest.base_lsn(), upto_lsn):
        chain_crc = crc
        for frame in frames:
            for fact in decode(frame):
                broker.apply(fact)
    save(disk, folder, broker, upto_lsn, chain_crc)


def save(disk: Disk, folder: DataFolder, broker: Broker, lsn: int, chain_crc: int) -> None:
    """Save a broker's state as it is at `lsn`."""
    frames = _in_frames(broker.snapshot())
    snapshots.save(disk, folder.snapshots, folder.store, lsn, frames, chain_crc=chain_crc)


def _in_frames(facts: Iterator[Fact]) -> Iterator[bytes]:
    """Several facts per frame: one each would waste headers, one frame for all could not be streamed. A frame ends
    early when it is large: one fact may hold what a log knows about a million messages."""
    run: list[bytes] = []
    size_bytes = 0
    for fact in facts:
        run.append(encode_one(fact))
        size_bytes += len(run[-1])
        if len(run) == FACTS_PER_FRAME or size_bytes >= FRAME_BYTES:
            yield join(run)
            run, size_bytes = [], 0
    if run:
        yield join(run)


def first_needed_lsn(disk: Disk, folder: DataFolder) -> int:
    """The first lsn that the older of the kept snapshots still needs the journal for."""
    lsns = snapshots.snapshot_lsns(disk, folder.snapshots)
    return lsns[0] + 1 if len(lsns) == snapshots.GENERATIONS else 1


def _die_with(parent_pid: int) -> bool:
    """Let the kernel kill this process when its broker ends: the next broker must not find another process that writes
    to the folder. False if the broker has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def main(arguments: list[str]) -> int:
    path, upto_lsn, parent_pid = arguments
    if not _die_with(int(parent_pid)):
        return 1
    disk = OsDisk()
    folder = find_folder(disk, path)
    assert folder is not None, f"{path} is not a data folder"
    fold(disk, folder, int(upto_lsn))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
