"""The CPU time of everything that takes part in a Spark job on this machine: Java, the Python processes, the broker.

Read from the kernel, so that it needs nothing of what is measured. Processes that have ended do not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.queue import cpu_s
from bench.report import median

if TYPE_CHECKING:
    from tests.support.server import Server

TICKS = os.sysconf("SC_CLK_TCK")


class JobCost(NamedTuple):
    """What one job took."""

    wall_s: float
    java_s: float = 0.0
    python_s: float = 0.0  # driver and workers
    broker_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        return self.java_s + self.python_s + self.broker_s


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (process := _process(int(folder.name))):
            children.setdefault(process.parent, []).append(int(folder.name))
    pids = [pid]
    for parent in pids:
        pids.extend(children.get(parent, ()))
    return pids


def spent(server: Server) -> JobCost:
    """The CPU time so far; its wall time is the time of day."""
    seconds = {True: 0.0, False: 0.0}  # by whether it is Java
    brokers = descendants(server.process.pid)
    for pid in descendants(os.getpid()):
        if pid not in brokers and (process := _process(pid)):
            seconds[process.name == "java"] += process.cpu_s
    return JobCost(time.perf_counter(), seconds[True], seconds[False], cpu_s(server))


class _Process(NamedTuple):
    name: str
    parent: int
    cpu_s: float


def _process(pid: int) -> _Process | None:
    """None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    front, _, rest = text.rpartition(")")
    fields = rest.split()
    return _Process(front.partition("(")[2], int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS)


@contextmanager
def measured(costs: list[JobCost], server: Server) -> Iterator[None]:
    before = spent(server)
    yield
    costs.append(JobCost(*(after - first for after, first in zip(spent(server), before, strict=True))))


def median_job(costs: Sequence[JobCost]) -> JobCost:
    """The median of each figure."""
    return JobCost(*(median(list(column)) for column in zip(*costs, strict=True)))


def fields_of(cost: JobCost, rows: int) -> dict[str, float]:
    """CPU for a row as fields of a result."""
    names = ("java_us", "python_us", "broker_us")
    parts = dict(zip(names, (1e6 * seconds / rows for seconds in cost[1:]), strict=True))
    return {"cpu_us_per_op": 1e6 * cost.cpu_s / rows, **parts}
