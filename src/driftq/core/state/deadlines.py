"""When to look at what next: an index over the state, for the driver of the broker.

It holds hints. A hint that is too early costs one look, and whatever changes a time pushes a new hint. Taking a hint
changes no state.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.core.model.commands import Subject


class Deadlines:
    """A heap with one valid hint per subject; a hint is stale when `_earliest` has another time for its subject."""

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
        """The earliest time, after dropping stale hints."""
        while self._heap and self._earliest.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> list[Subject]:
        """Every subject that is due. The caller pushes those again that have a next time."""
        taken: list[Subject] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, subject = heapq.heappop(self._heap)
            if self._earliest.get(subject) == at_ms:
                del self._earliest[subject]
                taken.append(subject)
        return taken
