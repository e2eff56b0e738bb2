"""Sets of offsets kept as ranges, so that a million settled messages cost as much as one.

Ranges are half-open `(first, end)` pairs, sorted, never touching. Nothing here knows what the numbers mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Range = tuple[int, int]


class RangeSet:
    """A mutable set of integers, stored as two parallel lists of starts and ends."""

    __slots__ = ("count", "ends", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ends: list[int] = []
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def __len__(self) -> int:
        """The number of ranges; `count` is the number of integers."""
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.firsts, self.ends, strict=True)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.firsts, number) - 1
        return index >= 0 and number < self.ends[index]

    def next_outside(self, number: int) -> int:
        """The lowest integer from `number` on that is not in the set."""
        index = bisect_right(self.firsts, number) - 1
        return max(number, self.ends[index]) if index >= 0 else number

    def add(self, first: int, end: int) -> None:
        """Add a range; what is there already stays."""
        firsts, ends = self.firsts, self.ends
        low = bisect_left(ends, first)  # the first range that touches or lies beyond
        high = bisect_right(firsts, end, low)  # behind the last range that touches
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
            self.count -= sum(ends[low:high]) - sum(firsts[low:high])
        firsts[low:high] = [first]
        ends[low:high] = [end]
        self.count += end - first

    def discard(self, first: int, end: int) -> None:
        """Take a range out; what is not there does not matter."""
        firsts, ends = self.firsts, self.ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end, low)
        if low >= high:
            return
        kept_firsts: list[int] = []
        kept_ends: list[int] = []
        if firsts[low] < first:
            kept_firsts.append(firsts[low])
            kept_ends.append(first)
        if ends[high - 1] > end:
            kept_firsts.append(end)
            kept_ends.append(ends[high - 1])
        self.count += sum(kept_ends) - sum(kept_firsts) - sum(ends[low:high]) + sum(firsts[low:high])
        firsts[low:high] = kept_firsts
        ends[low:high] = kept_ends

    def within(self, first: int, end: int) -> Iterator[int]:
        """The integers of the set that lie in [first, end)."""
        index = bisect_right(self.ends, first)
        while index < len(self.firsts) and self.firsts[index] < end:
            yield from range(max(first, self.firsts[index]), min(end, self.ends[index]))
            index += 1

    def pop_front(self) -> Range:
        first, end = self.firsts.pop(0), self.ends.pop(0)
        self.count -= end - first
        return first, end

    def clear(self) -> None:
        self.firsts.clear()
        self.ends.clear()
        self.count = 0


def runs(offsets: list[int]) -> list[Range]:
    """Fold sorted offsets into ranges."""
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
