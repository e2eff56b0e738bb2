"""Checkpoints keep the journal short: a snapshot replaces the frames up to an lsn, and then those frames go.

    1. sync the log store           everything that frames up to the lsn wrote is on the device
    2. fold                         old snapshot + closed part of the journal = new snapshot, saved durably
    3. trim the journal             below the older of the two kept snapshots, as far as the archive has it
    4. collect in the log store     delete the files that those frames had trimmed or dropped

The order is the proof. A crash between any two steps leaves a folder that opens: before step 2 is complete the old
snapshot and the whole journal are there, after it the new one is.

Where snapshots are kept, and how one is folded, is behind the seam `engine.snapshot_store.SnapshotStore`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from driftq.engine.snapshot_store import FoldFailed, snapshot_frames
from driftq.storage.disk import DiskFull, NoDescriptors

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.state.state import State
    from driftq.engine.committer import Committer
    from driftq.engine.snapshot_store import SnapshotStore
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore, SyncWork

logger = logging.getLogger("driftq.checkpoint")

FINISH_FRAMES_MIN = 20_000  # fewer are folded in a tenth of a second at the next start
# A stop must not take long: with more logs, keys, effects and pending messages the next start replays the journal.
FINISH_ITEMS_MAX = 300_000
FINISH_SYNCS_MAX = 1_000  # for the same reason
FRAMES_MAX = 250_000  # a checkpoint does not wait for a full segment when there are so many: they take time to replay
RETRY_S = 30.0  # after a failed checkpoint
DESCRIPTORS_RETRY_S = 1.0
SYNC_THREADS = 16  # a log's sync waits for the disk; sixteen that wait together take a tenth of the time


class Checkpointer:
    """When the checkpoints of one running engine happen, and in which order their steps."""

    def __init__(
        self,
        journal: Journal,
        store: LogStore,
        snapshots: SnapshotStore,
        state: State,
        stored_lsn: Callable[[], int],
        archive_needs: Callable[[], int] | None = None,
    ) -> None:
        self._journal = journal
        self._stored_lsn = stored_lsn  # everything up to here has been written to the log store
        self._archive_needs = archive_needs  # the first lsn that the archive still needs the journal for
        self._store = store
        self._snapshots = snapshots
        self._state = state  # of the running broker: only its size matters
        self._snapshot_lsn = snapshots.newest_lsn()
        self._sync_unfinished = False  # a sync was started and may not have ended
        self._not_before_s = 0.0  # the loop's time; later than now after a failure

    def has_many_frames(self) -> bool:
        """Whether the open segment of the journal should be closed for a checkpoint although it has room. A checkpoint
        costs as much as the state is large, so a large state waits for more frames."""
        frames = self._journal.tail_lsn() - max(self._journal.closed_lsn(), self._snapshot_lsn)
        return frames >= max(FRAMES_MAX, _items(self._state) // 2)

    def is_due(self) -> bool:
        """Whenever the journal closed a segment since the last checkpoint, and the log store has all of it."""
        is_time = asyncio.get_running_loop().time() >= self._not_before_s
        return is_time and self._snapshot_lsn < self._journal.closed_lsn() <= self._stored_lsn()

    async def run(self, committer: Committer) -> None:
        lsn = self._journal.closed_lsn()
        if lsn > self._stored_lsn():
            return  # the committer closed a segment just now: a snapshot must not rely on what no sync covers
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
        if self._archive_needs is not None:
            needed_lsn = min(needed_lsn, self._archive_needs())
        committer.call(lambda: self._journal.trim(needed_lsn), lambda _: None)
        self._store.collect(self._journal.tail_lsn(), needed_lsn - 1)
        logger.info("checkpoint at lsn %d", lsn)

    def finish(self, broker: Broker, lsn: int) -> None:
        """At a clean stop: leave little to fold for the next start."""
        if self._sync_unfinished or lsn - self._snapshot_lsn < FINISH_FRAMES_MIN:
            return
        if _items(broker.state) + broker.state.pending_count() > FINISH_ITEMS_MAX:
            return
        try:
            work = self._store.begin_sync()
            if len(work) > FINISH_SYNCS_MAX:
                return
            _sync(work)
            self._snapshots.save(lsn, self._journal.crc_at(lsn) or 0, snapshot_frames(broker))
        except DiskFull as error:
            logger.warning("no snapshot at the stop: %s", error)


def _items(state: State) -> int:
    """How many things a snapshot of this state holds, without pending messages: cheap to count."""
    return len(state.logs) + len(state.groups) + len(state.keys) + len(state.effects)


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
