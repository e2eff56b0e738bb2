"""After every restart: the journal holds exactly the frames that it was given, the state is their fold, every log
matches the ledger, and a snapshot equals the fold of its frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.broker import Broker
from driftq.core.model.facts import Fact
from driftq.core.model.frames import AnyFact, decode
from driftq.engine.folder_storage import Opened
from driftq.engine.projection import StoreReader
from driftq.engine.snapshot_store import snapshot_frames
from driftq.storage import snapshots
from driftq.storage.log_store import MemoryLogStore
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation
from tests.simulation.swarm import Swarm


class NoChance:
    """Fails if a fold uses randomness."""

    def uniform(self) -> float:
        raise AssertionError("a fold used randomness")

    def token(self) -> str:
        raise AssertionError("a fold asked for a token")


def empty_broker(swarm: Swarm) -> Broker:
    return Broker(swarm.limits, StoreReader(MemoryLogStore()), NoChance())


class RestartsCheck:
    """A second broker that folds every durable fact without encoding it."""

    def __init__(self, swarm: Swarm, ledger: Ledger) -> None:
        self._swarm = swarm
        self._ledger = ledger
        self.shadow = empty_broker(swarm)
        self._lagging = empty_broker(swarm)
        self._lagging_lsn = 0
        self.restarts = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return dict.fromkeys(self.shadow.folds, self._fold)

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _fold(self, fact: Fact, op: Operation) -> None:
        self.shadow.apply(fact)

    def restarted(self, opened: Opened, frames: list[bytes]) -> None:
        self.restarts += 1
        demand(not opened.report.damaged_snapshots, "snapshot", f"damaged: {opened.report.damaged_snapshots}")
        base = opened.report.snapshot_lsn
        demand(base <= len(frames), "snapshot", f"a snapshot at {base}, but only {len(frames)} frames were durable")
        replayed = [frame for _, frame in opened.journal.replay(base)]
        if replayed != frames[base:]:
            raise Violation("L1", f"the journal after lsn {base} does not hold what was written")
        self._same(list(opened.broker.snapshot()), list(self.shadow.snapshot()))

    def _same(self, actual: list[Fact], expected: list[Fact]) -> None:
        if actual == expected:
            return
        for number, (one, other) in enumerate(zip(actual, expected, strict=False)):
            if one != other:
                raise Violation("fold", f"the state after a restart differs at fact {number}: {one} instead of {other}")
        raise Violation("fold", f"the state after a restart has {len(actual)} facts instead of {len(expected)}")

    def logs(self, opened: Opened) -> None:
        """Every log, read from its start."""
        state, store = opened.broker.state, opened.store
        if sorted(state.logs) != sorted(self._ledger.logs):
            raise Violation("L1", f"there are logs {sorted(state.logs)}, not {sorted(self._ledger.logs)}")
        for log_id, log in self._ledger.logs.items():
            known = state.logs[log_id]
            if (known.start, known.end) != (log.start, log.end):
                raise Violation("L1", f"log {log_id} is [{known.start}, {known.end}), not [{log.start}, {log.end})")
            if log.end == log.start:
                continue
            if store.end(log_id) != log.end:
                raise Violation("L1", f"log {log_id} is stored up to {store.end(log_id)}, not {log.end}")
            if store.read(log_id, log.start, log.end, 1 << 40) != log.covering(log.start, log.end):
                raise Violation("L1", f"log {log_id} reads differently after a restart")

    def folded(self, opened: Opened, lsn: int, frames: list[bytes]) -> None:
        """A checkpoint was made at `lsn`: fold its frames and the journal's, and compare."""
        if not self._swarm.checks_folds:
            return
        for frame in frames[self._lagging_lsn : lsn]:
            for fact in decode(frame):
                self._lagging.apply(fact)
        self._lagging_lsn = max(self._lagging_lsn, lsn)
        newest = snapshots.load_newest(opened.disk, opened.folder.snapshots, opened.folder.store).snapshot
        demand(newest is not None and newest.lsn == lsn, "snapshot", f"no snapshot at {lsn} after a checkpoint")
        assert newest is not None
        stored = list(snapshots.read_frames(opened.disk, newest, opened.folder.store))
        expected = list(snapshot_frames(self._lagging))
        if stored != expected:
            again: list[AnyFact] = [fact for frame in stored for fact in decode(frame)]
            self._same(list(again), list(self._lagging.snapshot()))
