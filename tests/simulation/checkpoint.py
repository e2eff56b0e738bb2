"""The checkpoint of a simulated broker: one phase at a time, with other work and crashes between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.engine import snapshot_store
from driftq.engine.folder_storage import Opened
from driftq.storage.disk import DiskFailed, DiskFull
from tests.support.simdisk import Crash

if TYPE_CHECKING:
    from driftq.storage.log_store import SyncWork
    from tests.simulation.world import World

IDLE, SYNC, FOLD, TRIM = range(4)


class Checkpoint:
    """The checkpoints of one process, in the order in which `engine.checkpointer` does their steps."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._phase = IDLE
        self._lsn = 0  # of the one that is under way
        self.snapshot_lsn = opened.report.snapshot_lsn  # of the last one
        self._work: SyncWork | None = None

    def is_syncing(self) -> bool:
        """A sync was started, and no snapshot covers it yet."""
        return self._phase in (SYNC, FOLD)

    def advance(self, world: World) -> None:
        if self._phase == IDLE:
            self._begin(world)
            return
        self._opened.store.tidy()  # steps of the upkeep fall into a checkpoint: it takes much longer than one of them
        if self._phase == SYNC:
            self._sync(world)
        elif self._phase == FOLD:
            self._fold(world)
        else:
            self._trim(world)

    def _begin(self, world: World) -> None:
        closed_lsn = self._opened.journal.closed_lsn()
        if self.snapshot_lsn < closed_lsn <= world.sequencer.durable_lsn:
            self._lsn = closed_lsn
            try:
                self._work = self._opened.store.begin_sync()
            except DiskFull:
                return
            self._phase = SYNC

    def _sync(self, world: World) -> None:
        assert self._work is not None
        for stage in self._work.stages():
            world.random.shuffle(stage)  # they may run at the same time
            for call in stage:
                call()
        self._phase = FOLD

    def _fold(self, world: World) -> None:
        """In the engine this is a separate process. If it fails alone, nothing has changed."""
        self._phase = IDLE
        try:
            snapshot_store.fold(self._opened.disk, self._opened.folder, self._lsn)
        except Crash:
            if world.random.random() < 0.5:
                raise
            world.counts["folds killed"] += 1
            return
        except (DiskFailed, DiskFull):
            world.counts["folds failed"] += 1
            return
        self._phase = TRIM
        self.snapshot_lsn = self._lsn
        world.audit.folded(self._opened, self._lsn, world.frames)
        world.trace.say(f"{world.steps}: snapshot at {self._lsn}")

    def _trim(self, world: World) -> None:
        self._phase = IDLE
        opened = self._opened
        removed = world.disk.counts.get("shared.remove", 0)
        needed_lsn = min(snapshot_store.first_needed_lsn(opened.disk, opened.folder), world.kept_lsn())
        tail_lsn = opened.journal.tail_lsn()
        if world.random.random() < 0.5:
            opened.journal.trim(needed_lsn)
            opened.store.collect(tail_lsn, needed_lsn - 1)
        else:
            opened.store.collect(tail_lsn, needed_lsn - 1)
            opened.journal.trim(needed_lsn)
        world.counts["checkpoints"] += 1
        # A crash after files were removed shows whether what was in them is durable elsewhere.
        crash_chance = 0.5 if world.disk.counts.get("shared.remove", 0) > removed else 0.1
        if world.swarm.faults.crash_calls and world.faults.enabled and world.random.random() < crash_chance:
            raise Crash("the end of a checkpoint")
