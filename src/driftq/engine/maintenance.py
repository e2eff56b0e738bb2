"""What a running engine does once a second: watermark, spare room, retention, checkpoints, and two checks: of the
clock, and of whether the journal still belongs to this process.

Owns the interval and the one checkpoint that may be under way. Everything that touches the journal runs on the
committer. A failure of the disk ends the engine, through `on_failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.rules.sweep import RETENTION_PACE_MS
from driftq.engine.clock import Clock, ClockMonitor

if TYPE_CHECKING:
    from driftq.engine.checkpointer import Checkpointer
    from driftq.engine.committer import Committer
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore

INTERVAL_S = 1.0
RETENTION_INTERVAL_S = RETENTION_PACE_MS / 1_000


class Maintenance:
    """The maintenance of one engine."""

    def __init__(
        self,
        journal: Journal,
        store: LogStore,
        committer: Committer,
        checkpointer: Checkpointer,
        clock: Clock,
        *,
        submit: Callable[[c.Command], object],
        on_room: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._store = store
        self._committer = committer
        self._checkpointer = checkpointer
        self._submit = submit  # raises once the engine has stopped
        self._on_room = on_room  # gets the journal's room, in bytes
        self._on_failure = on_failure
        self._checkpoint: asyncio.Task[None] | None = None  # the one that is under way
        self._retention_at_s = self._loop.time()  # the last retention sweep
        self._clock_monitor = ClockMonitor(clock)
        self._clock_monitor.look()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Cancel what is under way, a checkpoint too: the next start folds a longer journal."""
        running = [task for task in (self._task, self._checkpoint) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._run_once()
            except Exception as error:  # the engine ignores failures after its end
                self._on_failure(error)
                return

    def _run_once(self) -> None:
        self._clock_monitor.look()
        if self._loop.time() - self._retention_at_s >= RETENTION_INTERVAL_S:
            self._retention_at_s = self._loop.time()
            self._submit(c.Sweep(retention=True))
        self._store.make_room()
        self._committer.call(self._maintain_journal, self._on_room)
        if self._checkpoint is None and self._checkpointer.is_due():
            self._checkpoint = self._loop.create_task(self._checkpointer.run(self._committer))
            self._checkpoint.add_done_callback(self._checkpointed)

    def _maintain_journal(self) -> int:
        """On the committer."""
        self._journal.check_owner()
        self._journal.save_watermark()
        self._journal.make_room()
        return self._journal.room_bytes()

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
