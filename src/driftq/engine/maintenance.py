"""What a running engine does once a second: the upkeep of the journal (`Journal.maintain`), retention,
checkpoints, and a check of the clock.

Owns the interval and the one checkpoint that may be under way; `RegularSweeps` owns the round of sweeps. Everything
that touches the journal runs on the committer. A failure of the disk ends the engine, through `on_failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from driftq.core.rules.sweep import RETENTION_PACE_MS
from driftq.engine.clock import Clock, ClockMonitor

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model import commands as c
    from driftq.engine.checkpointer import Checkpointer
    from driftq.engine.committer import Committer
    from driftq.engine.loop_monitor import LoopMonitor
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore

INTERVAL_S = 1.0
TIDY_INTERVAL_S = 0.02  # between two small steps of the upkeep of the log store and of the memory
FREED_AT_ONCE = 4_000  # objects
RETENTION_INTERVAL_S = RETENTION_PACE_MS / 1_000


class RegularSweeps:
    """Rounds of regular sweeps, one at a time: retention, and what else the broker looks at without a deadline."""

    def __init__(
        self,
        submit: Callable[[c.Command], object],
        regular_sweeps: Callable[[], Iterator[c.Sweep]],
        on_failure: Callable[[BaseException], None],
        monitor: LoopMonitor,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._submit = submit  # raises once the engine has stopped
        self._regular_sweeps = regular_sweeps  # the commands of a round
        self._on_failure = on_failure
        self._monitor = monitor
        self._started_s = self._loop.time()  # the start of the last round
        self.task: asyncio.Task[None] | None = None  # the round that is under way

    def start_if_due(self) -> None:
        if self._loop.time() - self._started_s < RETENTION_INTERVAL_S:
            return
        self._started_s = self._loop.time()
        if self.task is None:
            self.task = self._loop.create_task(self._monitor.steps("sweep", self._run()))
            self.task.add_done_callback(self._done)

    async def _run(self) -> None:
        """A turn for other work after each command."""
        for command in self._regular_sweeps():
            self._submit(command)
            await asyncio.sleep(0)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)


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
        regular_sweeps: Callable[[], Iterator[c.Sweep]],
        on_room: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        monitor: LoopMonitor,
        free: Callable[[int], bool],
        wants_checkpoint: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._store = store
        self._committer = committer
        self._checkpointer = checkpointer
        self._on_room = on_room  # gets the journal's room, in bytes
        self._on_failure = on_failure
        self._monitor = monitor
        self._free = free  # frees some of what was deleted; False if nothing is left
        self._wants_checkpoint = wants_checkpoint  # the archive waits for a snapshot
        self._checkpoint: asyncio.Task[None] | None = None  # the one that is under way
        self._tidy_timer: asyncio.TimerHandle | None = None  # the next step of this upkeep
        self._sweeps = RegularSweeps(submit, regular_sweeps, on_failure, monitor)
        self._clock_monitor = ClockMonitor(clock)
        self._clock_monitor.look()
        self._task = self._loop.create_task(monitor.steps("maintenance", self._run()))

    async def stop(self) -> None:
        """Cancel what is under way, a checkpoint too: the next start folds a longer journal."""
        if self._tidy_timer is not None:
            self._tidy_timer.cancel()
        running = [task for task in (self._task, self._checkpoint, self._sweeps.task) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def finish(self, broker: Broker, lsn: int) -> None:
        """After `stop`, at a clean end: leave little to fold for the next start."""
        self._checkpointer.finish(broker, lsn)

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
        self._sweeps.start_if_due()
        self._store.make_room()
        if self._tidy_timer is None:
            self._tidy()
        self._committer.call(self._maintain_journal, self._on_room)
        if self._checkpoint is None and (self._checkpointer.has_many_frames() or self._wants_checkpoint()):
            self._committer.call(self._close_segment, self._on_room)
        if self._checkpoint is None and self._checkpointer.is_due():
            checkpoint = self._monitor.steps("checkpoint", self._checkpointer.run(self._committer))
            self._checkpoint = self._loop.create_task(checkpoint)
            self._checkpoint.add_done_callback(self._checkpointed)

    def _tidy(self) -> None:
        self._tidy_timer = None
        try:
            has_garbage = self._free(FREED_AT_ONCE)
            if self._store.tidy() or has_garbage:
                self._tidy_timer = self._loop.call_later(TIDY_INTERVAL_S, self._tidy)
        except Exception as error:
            self._on_failure(error)

    def _maintain_journal(self) -> int:
        """On the committer."""
        self._journal.maintain()
        return self._journal.room_bytes()

    def _close_segment(self) -> int:
        """On the committer."""
        self._journal.close_segment()
        return self._journal.room_bytes()

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
