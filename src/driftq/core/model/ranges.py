"""Sets of offsets stored as ranges, so that a million settled messages cost as much as one.

Ranges are half-open `(first, end)` pairs, sorted, and never touch each other. They are stored in blocks of at most
`BLOCK_RANGES`: a set of a million ranges (every second message settled) costs 16 bytes per range, and a change moves
one block instead of all of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

BLOCK_RANGES = 1_024

Range = tuple[int, int]


class _Block:
    """Neighbouring ranges: starts and ends side by side."""

    __slots__ = ("ends", "firsts")

    def __init__(self, firsts: array[int], ends: array[int]) -> None:
        self.firsts = firsts
        self.ends = ends

    def add(self, first: int, end: int) -> int:
        """Add a range and return how many integers are new."""
        firsts, ends = self.firsts, self.ends
        low = bisect_left(ends, first)  # the first range that touches or lies beyond
        high = bisect_right(firsts, end, low)  # after the last range that touches
        if low == high:
            firsts.insert(low, first)
            ends.insert(low, end)
            return end - first
        first, end = min(first, firsts[low]), max(end, ends[high - 1])
        known = sum(ends[low:high]) - sum(firsts[low:high])
        firsts[low], ends[low] = first, end
        del firsts[low + 1 : high], ends[low + 1 : high]
        return end - first - known

    def discard(self, first: int, end: int) -> int:
        """Remove a range and return how many integers were removed."""
        firsts, ends = self.firsts, self.ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end, low)
        if low >= high:
            return 0
        known = sum(ends[low:high]) - sum(firsts[low:high])
        kept_firsts, kept_ends = array("q"), array("q")
        if firsts[low] < first:
            kept_firsts.append(firsts[low])
            kept_ends.append(first)
        if ends[high - 1] > end:
            kept_firsts.append(end)
            kept_ends.append(ends[high - 1])
        firsts[low:high] = kept_firsts
        ends[low:high] = kept_ends
        return known - sum(kept_ends) + sum(kept_firsts)


class RangeSet:
    """A mutable set of integers. `count` is how many; a set is empty when it is 0."""

    __slots__ = ("_blocks", "_tops", "count")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._tops: list[int] = []  # the last end of each block
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        """The number of ranges; `count` is the number of integers."""
        return sum(len(block.firsts) for block in self._blocks)

    def __iter__(self) -> Iterator[Range]:
        for block in self._blocks:
            yield from zip(block.firsts, block.ends, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._tops, number)
        if at == len(self._tops):
            return False
        block = self._blocks[at]
        index = bisect_right(block.firsts, number) - 1
        return index >= 0 and number < block.ends[index]

    def above(self, number: int) -> Range | None:
        """The range that holds `number`, or the next one above it."""
        at = bisect_right(self._tops, number)
        if at == len(self._tops):
            return None
        block = self._blocks[at]
        index = bisect_right(block.ends, number)
        return block.firsts[index], block.ends[index]

    def next_outside(self, number: int) -> int:
        """The lowest integer from `number` on that is not in the set."""
        nearest = self.above(number)
        return nearest[1] if nearest is not None and nearest[0] <= number else number

    def lowest(self) -> Range | None:
        return (self._blocks[0].firsts[0], self._blocks[0].ends[0]) if self._blocks else None

    def overlapping(self, first: int, end: int) -> Iterator[Range]:
        """The parts of ranges that lie in [first, end)."""
        for at in range(bisect_right(self._tops, first), len(self._tops)):
            block = self._blocks[at]
            for index in range(bisect_right(block.ends, first), len(block.ends)):
                if block.firsts[index] >= end:
                    return
                yield max(first, block.firsts[index]), min(end, block.ends[index])

    def count_between(self, first: int, end: int) -> int:
        """How many integers of the set lie in [first, end)."""
        count = 0
        for at in range(bisect_right(self._tops, first), len(self._tops)):
            firsts, ends = self._blocks[at].firsts, self._blocks[at].ends
            low, high = bisect_right(ends, first), bisect_left(firsts, end)
            if low >= high:
                break
            count += sum(ends[low:high]) - sum(firsts[low:high])
            count -= max(0, first - firsts[low]) + max(0, ends[high - 1] - end)
        return count

    def within(self, first: int, end: int) -> Iterator[int]:
        """The integers of the set that lie in [first, end)."""
        for low, high in self.overlapping(first, end):
            yield from range(low, high)

    def add(self, first: int, end: int) -> None:
        """Add a range; it may overlap what is in the set."""
        at = bisect_left(self._tops, first)  # the first block with a range that touches or lies beyond
        if at == len(self._tops):
            if not self._blocks:
                self._insert(0, _Block(array("q"), array("q")))
            at = len(self._blocks) - 1
        while at + 1 < len(self._blocks) and self._blocks[at + 1].firsts[0] <= end:
            end = self._swallow(at + 1, end)
        self.count += self._blocks[at].add(first, end)
        self._tidy(at)

    def _swallow(self, at: int, end: int) -> int:
        """Remove the ranges of a block that touch `end` or lie below it: the range before them grows instead. Returns
        its new end."""
        block = self._blocks[at]
        touched = bisect_right(block.firsts, end)
        end = max(end, block.ends[touched - 1])
        self.count -= sum(block.ends[:touched]) - sum(block.firsts[:touched])
        del block.firsts[:touched], block.ends[:touched]
        self._tidy(at)
        return end

    def discard(self, first: int, end: int) -> None:
        """Remove a range; integers that are not in the set are ignored."""
        at = bisect_right(self._tops, first)
        while at < len(self._blocks) and self._blocks[at].firsts[0] < end:
            self.count -= self._blocks[at].discard(first, end)
            at += self._tidy(at)

    def pop_front(self) -> Range:
        block = self._blocks[0]
        first, end = block.firsts.pop(0), block.ends.pop(0)
        self.count -= end - first
        self._tidy(0)
        return first, end

    def clear(self) -> None:
        self._blocks.clear()
        self._tops.clear()
        self.count = 0

    def packed(self, ranges_max: int) -> Iterator[tuple[bytes, bytes]]:
        """Starts and ends as packed 64-bit integers, about `ranges_max` ranges at a time."""
        firsts, ends = array("q"), array("q")
        for block in self._blocks:
            firsts += block.firsts
            ends += block.ends
            if len(firsts) + BLOCK_RANGES > ranges_max:
                yield firsts.tobytes(), ends.tobytes()
                firsts, ends = array("q"), array("q")
        if firsts:
            yield firsts.tobytes(), ends.tobytes()

    def unpack(self, firsts: bytes, ends: bytes) -> None:
        """Add ranges that `packed` returned."""
        for first, end in zip(array("q", firsts), array("q", ends), strict=True):
            self.add(first, end)

    def _insert(self, at: int, block: _Block) -> None:
        self._blocks.insert(at, block)
        self._tops.insert(at, block.ends[-1] if block.ends else 0)

    def _tidy(self, at: int) -> int:
        """After a block changed: note its top, split it if it is too large, drop it if it is empty. Returns how many
        blocks there are in its place."""
        block = self._blocks[at]
        size = len(block.firsts)
        if not size:
            del self._blocks[at], self._tops[at]
            return 0
        if size <= BLOCK_RANGES:
            self._tops[at] = block.ends[-1]
            return 1
        keep = size - 1 if at + 1 == len(self._blocks) else size // 2  # a set that grows at its end fills its blocks
        self._insert(at + 1, _Block(block.firsts[keep:], block.ends[keep:]))
        del block.firsts[keep:], block.ends[keep:]
        self._tops[at] = block.ends[-1]
        return 2


def runs(offsets: list[int]) -> list[Range]:
    """Fold sorted offsets into ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
