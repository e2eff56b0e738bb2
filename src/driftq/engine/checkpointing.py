"""When checkpoints happen in a running engine, and where: the sync in a thread, the fold in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from driftq.engine import checkpoint
from driftq.engine.committer import Committer
from driftq.engine.recovery import Opened
from driftq.storage.disk import DiskFull, NoDescriptors
from driftq.storage.syncing import LogSync

logger = logging.getLogger("driftq.checkpoint")

FRAMES_WORTH_A_SNAPSHOT = 20_000  # fewer are folded in a tenth of a second at the next start
KEYS_TOO_MANY_AT_STOP = 300_000  # a stop must not take long; the next start folds the journal instead
FAILED_REST_S = 30.0  # a checkpoint that failed is not tried again at once
NO_DESCRIPTORS_REST_S = 1.0
SYNCS_AT_ONCE = 16  # a log's sync waits for the disk; sixteen that wait together take a tenth of the time


class Checkpoints:
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
                sys.executable, "-m", "driftq.engine.checkpoint", opened.folder.path, str(lsn), str(os.getpid()),
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
        needed_lsn = checkpoint.needed_lsn(opened.disk, opened.folder)
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
            checkpoint.save(opened.disk, opened.folder, opened.broker, lsn, opened.journal.tail_crc())
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
