"""What a running engine does once a second: watermark, spare room, retention, checkpoints, a look at the clock
and at whether the files are still where they were.

Owns the pace and the one checkpoint that may be under way. Everything that touches the journal is given to the
committer's thread. A failure of the disk ends the engine, through `on_failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.rules.sweep import RETENTION_PACE_MS
from driftq.engine.checkpointer import Checkpointer
from driftq.engine.clock import Clock, ClockMonitor
from driftq.storage.corruption import FilesMoved

if TYPE_CHECKING:
    from driftq.engine.committer import Committer
    from driftq.engine.recovery import Opened
    from driftq.storage.data_folder import FolderLock

PACE_S = 1.0
RETENTION_S = RETENTION_PACE_MS / 1_000


class Maintenance:
    """The maintenance of one engine. In memory there is retention only."""

    def __init__(
        self,
        opened: Opened | None,
        committer: Committer | None,
        submit: Callable[[c.Command], object],
        on_room: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        clock: Clock,
        lock: FolderLock | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = opened
        self._lock = lock
        self._committer = committer
        self._submit = submit  # raises once the engine has stopped
        self._on_room = on_room
        self._on_failure = on_failure
        self._checkpoints = Checkpointer(opened) if opened is not None else None
        self._checkpoint: asyncio.Task[None] | None = None
        self._retained_s = self._loop.time()
        self._clock_monitor = ClockMonitor(clock)
        self._clock_monitor.look()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """End what is under way, a checkpoint too: the next start folds a longer journal."""
        running = [task for task in (self._task, self._checkpoint) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def save_last_snapshot(self, lsn: int) -> None:
        """At a clean stop, when nothing else runs."""
        if self._checkpoints is not None:
            self._checkpoints.finish(lsn)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PACE_S)
            try:
                self._tend()
            except Exception as error:  # the engine ignores those that come after its end
                self._on_failure(error)
                return

    def _tend(self) -> None:
        self._clock_monitor.look()
        if self._loop.time() - self._retained_s >= RETENTION_S:
            self._retained_s = self._loop.time()
            self._submit(c.Sweep(retention=True))
        if self._opened is None or self._committer is None or self._checkpoints is None:
            return
        self._opened.store.make_room()
        self._committer.call(self._tend_journal, self._on_room)
        if self._checkpoint is None and self._checkpoints.is_due():
            self._checkpoint = self._loop.create_task(self._checkpoints.run(self._committer))
            self._checkpoint.add_done_callback(self._checkpointed)

    def _tend_journal(self) -> int:
        """On the committer's thread."""
        assert self._opened is not None
        journal = self._opened.journal
        journal.check_files()
        if self._lock is not None:
            try:
                self._lock.check()
            except FilesMoved as error:
                journal.abandon(error)
        journal.save_watermark()
        journal.make_room()
        return journal.room_bytes()

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
