"""The paths of streams in order, for lists page by page.

Paths are kept in sorted blocks of at most `BLOCK_PATHS`, so that a change moves one block and a list starts anywhere
without sorting:

    tops:    runs/7           runs/93          users/ann
    blocks:  [runs/1 … runs/7] [runs/71 … runs/93] [runs/94 … users/ann]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

BLOCK_PATHS = 1_000


class SortedPaths:
    """A sorted set of paths."""

    __slots__ = ("_blocks", "_tops")

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []  # none is empty
        self._tops: list[str] = []  # the last path of each block

    def add(self, path: str) -> None:
        """Add a path that is not in the set."""
        tops = self._tops
        if not tops:
            self._blocks.append([path])
            tops.append(path)
            return
        if path > tops[-1]:  # the usual case: names with rising numbers
            at = len(tops) - 1
            block = self._blocks[at]
            block.append(path)
            tops[at] = path
        else:
            at = bisect_left(tops, path)
            block = self._blocks[at]
            insort(block, path)
        if len(block) > BLOCK_PATHS:
            self._split(at)

    def discard(self, path: str) -> None:
        at = bisect_left(self._tops, path)
        if at == len(self._tops):
            return
        block = self._blocks[at]
        index = bisect_left(block, path)
        if block[index] != path:
            return
        del block[index]
        if block:
            self._tops[at] = block[-1]
        else:
            del self._blocks[at], self._tops[at]

    def start_at(self, prefix: str, after: str) -> Iterator[str]:
        """Paths that are not below `prefix` and sort after `after`, in order."""
        at = max(bisect_left(self._tops, prefix), bisect_right(self._tops, after))
        if at == len(self._blocks):
            return
        block = self._blocks[at]
        index = max(bisect_left(block, prefix), bisect_right(block, after))
        while True:
            yield from block[index:]
            at, index = at + 1, 0
            if at == len(self._blocks):
                return
            block = self._blocks[at]

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        # A set that grows at its end fills its blocks.
        keep = BLOCK_PATHS if at + 1 == len(self._blocks) else len(block) // 2
        self._blocks.insert(at + 1, block[keep:])
        self._tops.insert(at + 1, block[-1])
        del block[keep:]
        self._tops[at] = block[-1]
