"""The next moment something may change: an index over state, for whoever drives the broker.

It holds hints, not truth: a hint that comes too early costs a look, and every one that matters is pushed again when
the state behind it changes. Taking from it changes no state.
"""

from __future__ import annotations

import heapq

Subject = tuple[str, int, int]  # what to look at: ("group", group_id, log_id), ("stream", log_id, 0), ("stages", 0, 0),
# ("wake", subscription, 0), ("keys", 0, 0), ("outcomes", 0, 0)


class Deadlines:
    """A heap with one live hint for each subject."""

    __slots__ = ("_earliest", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Subject]] = []
        self._earliest: dict[Subject, int] = {}

    def push(self, subject: Subject, at_ms: int | None) -> None:
        if at_ms is None:
            return
        earliest = self._earliest.get(subject)
        if earliest is None or at_ms < earliest:
            self._earliest[subject] = at_ms
            heapq.heappush(self._heap, (at_ms, subject))

    def next_ms(self) -> int | None:
        while self._heap and self._earliest.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> list[Subject]:
        """Every subject whose time has come; each must be pushed again if it still has one."""
        taken: list[Subject] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, subject = heapq.heappop(self._heap)
            if self._earliest.get(subject) == at_ms:
                del self._earliest[subject]
                taken.append(subject)
        return taken
