"""Makes the journal short again. The order is the proof: sync the log store, save a snapshot, then let go of the
journal and of the files that no snapshot names.

The snapshot is made by folding the last one and the journal behind it, not by copying live state: the loop never
pauses, and the fold can run in a process of its own (`python -m driftq.engine.checkpointer FOLDER LSN PARENT`).
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
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.core.model.frames import decode, encode_one, join
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.storage import snapshots
from driftq.storage.data_folder import DataFolder, find_folder
from driftq.storage.disk import Disk, DiskFull, NoDescriptors, OsDisk
from driftq.storage.journal_files import frames_between
from driftq.storage.log_store import LogSync, MemoryLogStore

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.engine.committer import Committer
    from driftq.engine.recovery import Opened

FACTS_PER_FRAME = 64
FRAME_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


def fold(disk: Disk, folder: DataFolder, upto_lsn: int) -> None:
    """Save the snapshot at `upto_lsn`, the last lsn of a closed segment. Reads files only; touches no live state."""
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    if newest.base_lsn() >= upto_lsn:
        snapshots.sync_names(disk, folder.snapshots)  # the journal will be trimmed because of it
        return
    broker = Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())  # folding asks neither of them
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
    """Some facts to a frame: fewer would waste headers, all would not stream. A frame ends early when it is large: one
    fact may hold what a log knows of a million messages."""
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
    known = snapshots.snapshot_lsns(disk, folder.snapshots)
    return known[0] + 1 if len(known) == snapshots.GENERATIONS else 1


def _end_with(parent_pid: int) -> bool:
    """Let the system end this process with the broker it works for: the next broker must find nobody in the folder.
    False if the broker is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def main(arguments: list[str]) -> int:
    path, upto_lsn, parent_pid = arguments
    if not _end_with(int(parent_pid)):
        return 1
    disk = OsDisk()
    folder = find_folder(disk, path)
    assert folder is not None, f"{path} is not a data folder"
    fold(disk, folder, int(upto_lsn))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


# --- When checkpoints happen in a running engine, and where: the sync in a thread, the fold in a process of its own ---


logger = logging.getLogger("driftq.checkpoint")

FRAMES_WORTH_A_SNAPSHOT = 20_000  # fewer are folded in a tenth of a second at the next start
KEYS_TOO_MANY_AT_STOP = 300_000  # a stop must not take long; the next start folds the journal instead
FAILED_REST_S = 30.0  # a checkpoint that failed is not tried again at once
NO_DESCRIPTORS_REST_S = 1.0
SYNCS_AT_ONCE = 16  # a log's sync waits for the disk; sixteen that wait together take a tenth of the time


class Checkpointer:
    """The checkpoints of one open folder."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._snapshot_lsn = opened.report.snapshot_lsn
        self._sync_unfinished = False  # a sync was begun and nobody has seen it end
        self._not_before_s = 0.0

    def is_due(self) -> bool:
        """Whenever a journal segment was closed since the last one."""
        rested = asyncio.get_running_loop().time() >= self._not_before_s
        return rested and self._opened.journal.closed_lsn() > self._snapshot_lsn

    async def run(self, committer: Committer) -> None:
        await self._run(self._opened.journal.closed_lsn(), committer)

    async def _run(self, lsn: int, committer: Committer) -> None:
        opened = self._opened
        loop = asyncio.get_running_loop()
        try:
            work = opened.store.begin_sync()
        except DiskFull as error:
            self._not_before_s = loop.time() + FAILED_REST_S
            logger.warning("checkpoint put off: %s", error)
            return
        self._sync_unfinished = True
        await _sync_patiently(work)
        self._sync_unfinished = False
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "driftq.engine.checkpointer", opened.folder.path, str(lsn), str(os.getpid()),
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:  # no descriptors, no memory, no process: nothing that the disk has to do with
            self._not_before_s = loop.time() + FAILED_REST_S
            logger.warning("checkpoint put off, its process cannot be started: %s", error)
            return
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            self._not_before_s = loop.time() + FAILED_REST_S
            logger.error(
                "checkpoint at lsn %d failed, the journal stays long: %s", lsn, errors.decode(errors="replace")
            )
            return
        self._snapshot_lsn = lsn
        needed_lsn = first_needed_lsn(opened.disk, opened.folder)
        committer.call(lambda: opened.journal.trim(needed_lsn), lambda _: None)
        opened.store.collect(opened.journal.tail_lsn(), needed_lsn - 1)
        logger.info("checkpoint at lsn %d", lsn)

    def finish(self, lsn: int) -> None:
        """At a clean stop: the next start should have little to fold."""
        opened = self._opened
        keys = len(opened.broker.state.keys) + len(opened.broker.state.effects)
        if self._sync_unfinished or lsn - self._snapshot_lsn < FRAMES_WORTH_A_SNAPSHOT or keys > KEYS_TOO_MANY_AT_STOP:
            return
        try:
            _sync(opened.store.begin_sync())
            save(opened.disk, opened.folder, opened.broker, lsn, opened.journal.tail_crc())
        except DiskFull as error:
            logger.warning("no snapshot at the stop: %s", error)


async def _sync_patiently(work: LogSync) -> None:
    """Run the syncs until all of them were done. They are idempotent, so what lacked a descriptor runs again."""
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, _sync, work)
        except NoDescriptors as error:
            logger.warning("checkpoint waits for file descriptors: %s", error)
            await asyncio.sleep(NO_DESCRIPTORS_REST_S)


def _sync(work: LogSync) -> None:
    """Run the syncs of many logs. The first failure is raised when all have ended."""
    with ThreadPoolExecutor(SYNCS_AT_ONCE, "driftq-sync") as pool:
        for stage in work.stages():
            for done in [pool.submit(call) for call in stage]:
                done.result()
