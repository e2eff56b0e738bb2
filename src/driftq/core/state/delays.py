"""The delayed messages of a log: what a group that starts must not deliver yet.

    timers   (120, 7) (345, 2) (902, 4)      in order of time: what ends first
    times    {2: 345, 4: 902, 7: 120}        by offset, ascending: whether a message waits, and until when

A group that starts meets all of them, and there may be a million. It takes a copy of both, which costs a few
nanoseconds for each, and makes an `Entry` of its own for a message only when it is delivered (`core.state.leases`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from operator import itemgetter

from driftq.core.state.timer_queue import TimerQueue


class Delays:
    """Messages and the times before which they are not delivered. It is False when it is empty."""

    __slots__ = ("timers", "times")

    def __init__(self, items: Iterable[tuple[int, int]] = ()) -> None:
        self.timers: TimerQueue[tuple[int, int]] = TimerQueue()  # (not_before_ms, offset)
        self.times: dict[int, int] = {}  # by offset, ascending: not_before_ms
        self.extend(sorted(items, key=itemgetter(1)))

    def __len__(self) -> int:
        return len(self.times)

    def extend(self, items: list[tuple[int, int]]) -> None:
        """Add messages above all others, given as (not_before_ms, offset)."""
        self.times.update((offset, not_before_ms) for not_before_ms, offset in items)
        self.timers.extend(items)

    def end(self, offset: int) -> None:
        """A message does not wait any longer, if it did."""
        not_before_ms = self.times.pop(offset, None)
        if not_before_ms is not None:
            self.timers.remove((not_before_ms, offset))

    def end_until(self, now_ms: int) -> None:
        """The time has come for some."""
        for _, offset in self.timers.until(now_ms):
            del self.times[offset]
        self.timers.remove_until(now_ms)

    def trim(self, start: int) -> None:
        """Messages below `start` are gone."""
        below = list(takewhile(start.__gt__, self.times))
        if len(below) == len(self.times):
            self.times = {}
            self.timers.clear()
        elif len(below) < len(self.times) // 16:
            for offset in below:
                self.end(offset)
        else:
            self.times = dict(islice(self.times.items(), len(below), None))
            self.timers.remove_below(start)

    def ahead(self, now_ms: int, start: int) -> Delays:
        """A copy of those that still wait, at and above an offset."""
        copied = Delays()
        copied.timers, copied.times = self.timers.copy(), self.times.copy()
        copied.end_until(now_ms)
        copied.trim(start)
        return copied
