"""Runs many seeds on several processes, and sums up their results.

A run of many seeds also fails if an expected event never happened: a fault, a labelled disk call, a command.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftq.core.broker import RULES
from driftq.core.model.commands import AdmittedProduce
from tests.simulation.run import Result, run_seed
from tests.simulation.swarm import LABELS

SEEDS = Path(__file__).with_name("seeds.txt")

FAULTS = (
    "crash_before", "crash_after", "eio", "enospc", "short", "torn", "full", "kill", "jump forward", "jump back",
    "power cut, keep none", "power cut, keep all", "power cut, keep random", "flip", "lie",
)  # fmt: skip
COUNTS = (
    "crashes", "crashes while starting", "stops", "clean stops", "torn tails", "checkpoints", "commits", "times full",
    "new work refused while full", "old work done while full",
    "folds killed", "dead letters", "published", "stream histories", "stale settles refused", "restarts compared",
    "made due", "moved", "letters deleted", "purged",
    "history events", "reads that waited", "groups idle", "groups caught up", "producers held up",
    "schedules fired", "schedules missed", "job batches ended", "steps of chains",
    "results stored", "results forgotten",
    "flips harmless", "flips refused", "flips found by a read", "lies noticed", "lies unnoticeable",
)  # fmt: skip
NOT_SENT = {AdmittedProduce}  # only as a part of another command: the ends and steps of job batches are counted


@dataclass
class Tally:
    """Sums over seeds."""

    seeds: int = 0
    operations: int = 0
    simulated_ms: int = 0
    broken: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    fault_labels: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.operations += result.operations
        self.simulated_ms += result.simulated_ms
        if result.error:
            self.broken.append((result.seed, result.error))
        for name in ("counts", "faults", "labels", "fault_labels", "commands", "replies"):
            getattr(self, name).update(getattr(result, name))

    def never(self) -> list[str]:
        """Expected events that did not happen."""
        missing = [f"fault {name}" for name in FAULTS if not self.faults[name]]
        missing += [f"count {name}" for name in COUNTS if not self.counts[name]]
        missing += [f"disk call {name}" for name in LABELS if not self.labels[name]]
        missing += [f"fault at {name}" for name in LABELS if not self.fault_labels[name]]
        asked = {command.__name__ for command in RULES.keys() - NOT_SENT}
        missing += [f"command {name}" for name in sorted(asked) if not self.commands[name]]
        return missing

    def figures(self, seconds: float) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "operations": self.operations,
            "seconds": round(seconds, 1),
            "operations_per_second": round(self.operations / max(seconds, 0.001)),
            "simulated_hours": round(self.simulated_ms / 3_600_000, 1),
            "broken": [seed for seed, _ in self.broken],
            "never": self.never(),
            "counts": dict(sorted(self.counts.items())),
            "faults": dict(sorted(self.faults.items())),
            "disk_calls": dict(sorted(self.labels.items())),
            "faults_at_calls": dict(sorted(self.fault_labels.items())),
            "commands": dict(sorted(self.commands.items())),
            "replies": dict(sorted(self.replies.items())),
        }

    def summary(self, seconds: float) -> str:
        rate = self.operations / max(seconds, 0.001)
        counts = self.counts
        lines = [
            f"{self.seeds} seeds, {self.operations:,} operations, {seconds:.0f} s, {rate:,.0f} operations a second",
            f"{counts['crashes']:,} crashes and {counts['crashes while starting']:,} more while starting",
            f"{counts['stops']:,} stops on disk errors, {counts['clean stops']:,} clean stops",
            f"{self.simulated_ms / 3_600_000:,.0f} simulated hours",
        ]
        for name in ("counts", "faults", "commands"):
            parts = [f"{key} {count:,}" for key, count in sorted(getattr(self, name).items())]
            lines.append(f"{name}: {', '.join(parts)}")
        lines.append(f"broken promises: {len(self.broken)}")
        return "\n".join(lines)


def known_seeds() -> list[int]:
    """Seeds that once failed: they always run first."""
    lines = SEEDS.read_text(encoding="utf-8").splitlines() if SEEDS.exists() else []
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def _task(job: tuple[int, int]) -> Result:
    """Runs one seed. It makes little cyclic garbage, so the collector is off: it would take a tenth of the time."""
    gc.disable()
    try:
        return run_seed(*job)
    finally:
        gc.enable()
        gc.collect()


def run_many(
    seeds: Iterable[int], operations: int, processes: int, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """All seeds, in any order; the sums do not depend on the order."""
    tally = Tally()
    jobs = [(seed, operations) for seed in seeds]
    if processes <= 1:
        results: Iterable[Result] = map(_task, jobs)
        for result in results:
            tally.add(result)
            if progress is not None:
                progress(tally)
        return tally
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for result in pool.imap_unordered(_task, jobs, chunksize=1):
            tally.add(result)
            if progress is not None:
                progress(tally)
    tally.broken.sort()
    return tally
