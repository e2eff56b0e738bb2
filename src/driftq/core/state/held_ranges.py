"""Held ranges: which offsets are under which lease, on their first attempt.

    lows      0                    5_000
              |                    |
    blocks    firsts  0   7 ...    firsts  5_000  5_010 ...
              ends    5   9 ...    ends    5_004  5_011 ...
              leases  A   B ...    leases  C      A ...

The ranges are disjoint and ascend; neighbours under the same lease are one range. They are stored in blocks of at most
`BLOCK_RANGES`, as in `core.model.ranges`: a million messages that are held one by one cost one block per change, and
sixteen bytes each in addition to their leases.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.core.state.leases import Lease

BLOCK_RANGES = 512

Piece = tuple[int, int, "Lease"]


class _Block:
    """Neighbouring ranges: starts, ends and leases side by side."""

    __slots__ = ("ends", "firsts", "leases")

    def __init__(self, firsts: array[int], ends: array[int], leases: list[Lease]) -> None:
        self.firsts = firsts
        self.ends = ends
        self.leases = leases

    def insert(self, index: int, first: int, end: int, lease: Lease) -> None:
        self.firsts.insert(index, first)
        self.ends.insert(index, end)
        self.leases.insert(index, lease)

    def remove(self, index: int) -> None:
        del self.firsts[index], self.ends[index], self.leases[index]

    def cut(self, first: int, end: int, pieces: list[Piece]) -> None:
        """Remove [first, end), and add what was held of it to `pieces`."""
        firsts, ends, leases = self.firsts, self.ends, self.leases
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end, low)
        if low >= high:
            return
        start, stop = firsts[low], ends[high - 1]
        for index in range(low, high):
            pieces.append((max(first, firsts[index]), min(end, ends[index]), leases[index]))
        if start >= first and stop <= end:
            del firsts[low:high], ends[low:high], leases[low:high]
            return
        kept = [(start, first, leases[low])] if start < first else []
        if stop > end:
            kept.append((end, stop, leases[high - 1]))
        firsts[low:high] = array("q", (piece[0] for piece in kept))
        ends[low:high] = array("q", (piece[1] for piece in kept))
        leases[low:high] = [piece[2] for piece in kept]


class HeldRanges:
    """Disjoint ranges of offsets, each under a lease, ascending."""

    __slots__ = ("_blocks", "_lows")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lows: list[int] = []  # the first offset of each block

    def __iter__(self) -> Iterator[Piece]:
        for block in self._blocks:
            yield from zip(block.firsts, block.ends, block.leases, strict=True)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(len(block.firsts) for block in self._blocks)

    def lowest(self) -> int | None:
        """The lowest offset."""
        return self._lows[0] if self._lows else None

    def lease_at(self, offset: int) -> Lease | None:
        at = bisect_right(self._lows, offset) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        index = bisect_right(block.firsts, offset) - 1
        return block.leases[index] if offset < block.ends[index] else None

    def run_at(self, first: int, end: int) -> Lease | None:
        """The lease of the range that covers all of [first, end); None if no single range does."""
        at = bisect_right(self._lows, first) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        index = bisect_right(block.firsts, first) - 1
        return block.leases[index] if end <= block.ends[index] else None

    def overlapping(self, first: int, end: int) -> Iterator[Piece]:
        """The parts of held ranges that lie in [first, end)."""
        for at in range(max(0, bisect_right(self._lows, first) - 1), len(self._lows)):
            block = self._blocks[at]
            for index in range(bisect_right(block.ends, first), len(block.ends)):
                if block.firsts[index] >= end:
                    return
                yield max(first, block.firsts[index]), min(end, block.ends[index]), block.leases[index]

    def add(self, first: int, end: int, lease: Lease) -> None:
        """Add a range; neighbours under the same lease become one."""
        if not self._blocks:
            self._blocks.append(_Block(array("q", (first,)), array("q", (end,)), [lease]))
            self._lows.append(first)
            return
        at = max(0, bisect_right(self._lows, first) - 1)
        block = self._blocks[at]
        index = bisect_right(block.firsts, first)
        if index < len(block.firsts):
            if block.firsts[index] == end and block.leases[index] is lease:
                end = block.ends[index]
                block.remove(index)
        elif at + 1 < len(self._blocks):
            following = self._blocks[at + 1]
            if following.firsts[0] == end and following.leases[0] is lease:
                end = following.ends[0]
                following.remove(0)
                self._tidy(at + 1)
        if index and block.ends[index - 1] == first and block.leases[index - 1] is lease:
            block.ends[index - 1] = end
            return
        block.insert(index, first, end, lease)
        self._tidy(at)

    def cut(self, first: int, end: int) -> list[Piece]:
        """Remove [first, end) and return the pieces that were held."""
        at = bisect_right(self._lows, first) - 1
        if at >= 0:
            block = self._blocks[at]
            index = bisect_right(block.firsts, first) - 1
            if block.firsts[index] == first and block.ends[index] == end:  # a whole range, as usual
                piece = first, end, block.leases[index]
                block.remove(index)
                if not index:
                    self._tidy(at)
                return [piece]
        pieces: list[Piece] = []
        at = max(0, at)
        while at < len(self._lows) and self._lows[at] < end:
            self._blocks[at].cut(first, end, pieces)
            at += self._tidy(at)
        return pieces

    def clear(self) -> None:
        self._blocks.clear()
        self._lows.clear()

    def _tidy(self, at: int) -> int:
        """After a block changed: note its first offset, split it if it is too large, drop it if it is empty. Returns
        how many blocks there are in its place."""
        block = self._blocks[at]
        size = len(block.firsts)
        if not size:
            del self._blocks[at], self._lows[at]
            return 0
        self._lows[at] = block.firsts[0]
        if size <= BLOCK_RANGES:
            return 1
        keep = (
            size - 1 if at + 1 == len(self._blocks) else size // 2
        )  # ranges that are added in order fill their blocks
        self._blocks.insert(at + 1, _Block(block.firsts[keep:], block.ends[keep:], block.leases[keep:]))
        self._lows.insert(at + 1, block.firsts[keep])
        del block.firsts[keep:], block.ends[keep:], block.leases[keep:]
        return 2
