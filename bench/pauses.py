"""The longest pauses that the requests of a load saw, and what most likely caused each.

`Observer` looks beside the load: how much CPU the server's loop used, how long it waited for a core, and how long a
bare sync takes on the same disk. `pauses` is pure: it finds the slowest requests and compares their time with what was
observed while they waited.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.005
PROBE_S = 0.05
PROBE_BYTES = 4_096
SHARE = 0.5  # of a wait: what took at least this much of it is its cause


class Wait(NamedTuple):
    """One request: when it was due, when its reply came, and how late the load generator sent it."""

    due_s: float
    done_s: float
    late_s: float
    kind: str

    @property
    def wait_s(self) -> float:
        return self.done_s - self.due_s


class Look(NamedTuple):
    """Totals of the server's loop thread at a time."""

    at_s: float
    cpu_s: float
    core_wait_s: float


class Probe(NamedTuple):
    """One bare write and fdatasync."""

    began_s: float
    ended_s: float


class Pause(NamedTuple):
    """A time in which at least one request waited."""

    at_s: float
    wait_ms: float
    requests: int
    server_cpu_ms: float
    core_wait_ms: float
    sync_ms: float
    late_ms: float
    cause: str


class Observer:
    """Two threads: one reads /proc, one syncs a file."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.looks: list[Look] = []
        self.probes: list[Probe] = []
        self._pid = pid
        self._folder = folder
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._look, self._probe)]

    def __enter__(self) -> Observer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        descriptor = os.open(f"/proc/{self._pid}/schedstat", os.O_RDONLY)
        while not self._stopped.wait(LOOK_S):
            cpu, core_wait, _ = os.pread(descriptor, 200, 0).split()
            self.looks.append(Look(time.perf_counter(), int(cpu) / 1e9, int(core_wait) / 1e9))
        os.close(descriptor)

    def _probe(self) -> None:
        path = self._folder / "probe"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        while not self._stopped.wait(PROBE_S):
            began_s = time.perf_counter()
            os.pwrite(descriptor, b"p" * PROBE_BYTES, 0)
            os.fdatasync(descriptor)
            self.probes.append(Probe(began_s, time.perf_counter()))
        os.close(descriptor)
        path.unlink()


def pauses(
    waits: Sequence[Wait], looks: Sequence[Look], probes: Sequence[Probe], began_s: float, count_max: int
) -> list[Pause]:
    """The longest pauses, the longest first. Requests that waited at the same time are one pause."""
    slowest = sorted(waits, key=lambda wait: wait.wait_s, reverse=True)
    chosen: list[Wait] = []
    for wait in slowest:
        if len(chosen) == count_max:
            break
        if all(wait.done_s <= other.due_s or other.done_s <= wait.due_s for other in chosen):
            chosen.append(wait)
    return [_explained(wait, waits, looks, probes, began_s) for wait in chosen]


def _explained(
    wait: Wait, waits: Sequence[Wait], looks: Sequence[Look], probes: Sequence[Probe], began_s: float
) -> Pause:
    cpu_s, core_wait_s = _used(looks, wait.due_s, wait.done_s)
    overlapping = [probe for probe in probes if probe.began_s < wait.done_s and wait.due_s < probe.ended_s]
    sync_s = max((probe.ended_s - probe.began_s for probe in overlapping), default=0.0)
    together = sum(1 for other in waits if other.due_s < wait.done_s and wait.due_s < other.done_s)
    return Pause(
        at_s=wait.due_s - began_s,
        wait_ms=1e3 * wait.wait_s,
        requests=together,
        server_cpu_ms=1e3 * cpu_s,
        core_wait_ms=1e3 * core_wait_s,
        sync_ms=1e3 * sync_s,
        late_ms=1e3 * wait.late_s,
        cause=cause(wait, cpu_s, core_wait_s, sync_s),
    )


def cause(wait: Wait, cpu_s: float, core_wait_s: float, sync_s: float) -> str:
    """What took at least half of the wait. What is not the server's comes first."""
    enough_s = SHARE * wait.wait_s
    if wait.late_s >= enough_s:
        return "the load generator was late"
    if core_wait_s >= enough_s:
        return "the server waited for a core"
    if sync_s >= enough_s:
        return "the disk"
    if cpu_s >= enough_s:
        return f"work of the server ({wait.kind})"
    return f"several ({wait.kind})"


def _used(looks: Sequence[Look], from_s: float, to_s: float) -> tuple[float, float]:
    """CPU time and time spent waiting for a core between the looks just outside of an interval."""
    if not looks:
        return 0.0, 0.0
    times = [look.at_s for look in looks]
    first = looks[max(0, bisect.bisect_right(times, from_s) - 1)]
    last = looks[min(len(looks) - 1, bisect.bisect_left(times, to_s))]
    return last.cpu_s - first.cpu_s, last.core_wait_s - first.core_wait_s
