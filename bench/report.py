"""How a benchmark measures and says what it found: one line of JSON for each result.

Owns the clock of the benchmarks: CPU time beside wall time, runs of all cases taken in turns so that a noisy minute of
the machine hits them alike, and medians. It knows nothing of what is measured.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


@functools.cache
def machine() -> str:
    """The processor and how many of it this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} x {names[0] if names else platform.machine()}"


@functools.cache
def commit() -> str:
    """The commit that is measured, with a plus if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def emit(bench: str, case: str, value: float, unit: str, **more: object) -> None:
    """Say one result."""
    line = {"bench": bench, "case": case, "value": rounded(value), "unit": unit}
    line |= {name: rounded(each) if isinstance(each, float) else each for name, each in more.items()}
    line |= {"machine": machine(), "python": platform.python_version(), "commit": commit()}
    print(json.dumps(line), flush=True)


def rounded(value: float) -> float:
    """Four digits are more than a shared machine can promise."""
    return float(f"{value:.4g}") if value < 10_000 else round(value)


class Spent(NamedTuple):
    """What one run took."""

    operations: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_us(self) -> float:
        return 1e6 * self.cpu_s / self.operations

    @property
    def per_s(self) -> float:
        """Operations in a second of one core."""
        return self.operations / self.cpu_s if self.cpu_s else 0.0


Run = Callable[[], int]  # does the work and returns the number of operations
Prepare = Callable[[], Run]  # makes everything the run needs; not measured


def spend(run: Run) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    operations = run()
    return Spent(operations, time.process_time() - cpu, time.perf_counter() - wall)


def in_turns(cases: dict[str, Prepare], runs: int) -> Iterator[tuple[str, list[Spent]]]:
    """Run every case `runs` times, one after the other in each round, and give all runs of each."""
    spent: dict[str, list[Spent]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, prepare in cases.items():
            spent[name].append(spend(prepare()))
    yield from spent.items()


def middle(spent: Sequence[Spent]) -> Spent:
    """The run with the median CPU time for an operation."""
    return sorted(spent, key=lambda each: each.cpu_us)[len(spent) // 2]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all lie below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def resident_bytes(pid: int | str = "self") -> int:
    """The memory a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def folder_bytes(path: str) -> int:
    """What the files below a folder occupy on the disk."""
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found += 512 * os.stat(f"{folder}/{name}").st_blocks
            except FileNotFoundError:
                continue  # a trim was quicker
    return found
