"""Measures benchmarks and prints the results, one line of JSON each.

Owns the clocks (CPU and wall time), the interleaving of cases, so that a noisy minute affects all of them, and medians.
It knows nothing of what is measured.
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
    """The measured commit, with a plus if the work tree differs from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def emit(bench: str, case: str, value: float, unit: str, **fields: object) -> None:
    """Print one result."""
    line = {"bench": bench, "case": case, "value": rounded(value), "unit": unit}
    line |= {name: rounded(field) if isinstance(field, float) else field for name, field in fields.items()}
    line |= {"machine": machine(), "python": platform.python_version(), "commit": commit()}
    print(json.dumps(line), flush=True)


def rounded(value: float) -> float:
    """Four digits; a shared machine is not more precise than that."""
    return float(f"{value:.4g}") if value < 10_000 else round(value)


class Cost(NamedTuple):
    """The cost of one run."""

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
Prepare = Callable[[], Run]  # sets up what the run needs; not measured


def cost_of(run: Run) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    operations = run()
    return Cost(operations, time.process_time() - cpu, time.perf_counter() - wall)


def interleaved(cases: dict[str, Prepare], runs: int) -> Iterator[tuple[str, list[Cost]]]:
    """Run every case once per round, for `runs` rounds, and return the costs of each case."""
    costs: dict[str, list[Cost]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, prepare in cases.items():
            costs[name].append(cost_of(prepare()))
    yield from costs.items()


def median_cost(costs: Sequence[Cost]) -> Cost:
    """The run with the median CPU time for an operation."""
    return sorted(costs, key=lambda cost: cost.cpu_us)[len(costs) // 2]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def resident_bytes(pid: int | str = "self") -> int:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def folder_bytes(path: str) -> int:
    """The disk space of the files in a folder."""
    size_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size_bytes += 512 * os.stat(f"{folder}/{name}").st_blocks
            except FileNotFoundError:
                continue  # deleted in the meantime
    return size_bytes
