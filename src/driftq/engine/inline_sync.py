"""When the loop may write and sync the journal itself instead of handing it to the thread.

A hand-over and its way back cost two wake-ups, which a lone caller on a quick disk feels. The loop does it itself when
few callers wait, all of them for this very sync, the disk has been quick for a while, and nobody read lately or the
loop had time left. Whoever streams at the same time, or a disk that hesitates once, sends the work back to the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

CALLERS_MAX = 8
BLOCK_BYTES_MAX = 256 << 10
QUICK_S = 0.002  # a sync that takes longer is not waited for
QUICK_SYNCS = 16  # so many in a row make a disk quick
WINDOW_COMMITS = 32
BUSY_SHARE = 0.9  # of the time between syncs


class InlineSync:
    """Fed with every commit; asked before the next."""

    def __init__(
        self, now_s: Callable[[], float] = time.perf_counter, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._quick = 0
        self._calm = False
        self._commits = 0
        self._reads = 0
        self._held_s = self._held_cpu_s = 0.0  # that the loop spent syncing in this window
        self._began_cpu_s = 0.0
        self._idle_s = 0.0
        self._since_s = now_s()
        self._since_cpu_s = cpu_s()

    def allows(self, callers: int, frames: list[bytes]) -> bool:
        if not self._calm or self._quick < QUICK_SYNCS or callers > CALLERS_MAX:
            return False
        return sum(map(len, frames)) <= BLOCK_BYTES_MAX

    def begin(self) -> None:
        """The loop syncs by itself now."""
        self._began_cpu_s = self._cpu_s()

    def note(self, append_s: float, *, by_loop: bool) -> None:
        """A commit ended. Called by the loop."""
        self._quick = self._quick + 1 if append_s < QUICK_S else 0
        if by_loop:
            self._held_s += append_s
            self._held_cpu_s += self._cpu_s() - self._began_cpu_s
        self._commits += 1
        if self._commits >= WINDOW_COMMITS:
            self._look_back()

    def note_read(self) -> None:
        """Somebody read what is stored: a loop without time left may be streaming."""
        self._reads += 1

    def note_idle(self, turn_s: float) -> None:
        """The loop turned once without finding anything to do: not work, though it took CPU time."""
        self._idle_s += turn_s

    def _look_back(self) -> None:
        now_s, cpu_s = self._now_s(), self._cpu_s()
        free_s = now_s - self._since_s - self._held_s
        busy_s = cpu_s - self._since_cpu_s - self._held_cpu_s - self._idle_s
        # Without readers a full loop is full of what its callers ask, who wait for their syncs anyway.
        self._calm = not self._reads or busy_s < BUSY_SHARE * free_s
        self._since_s, self._since_cpu_s = now_s, cpu_s
        self._commits = self._reads = 0
        self._held_s = self._held_cpu_s = self._idle_s = 0.0
