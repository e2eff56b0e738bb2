"""A queue of timers: what ends when, in order of time, with as many items as there are pending messages.

    tops    (120, 7)          (345, 2)          (902, 4)
            |                 |                 |
    blocks  [(100, 1) ...]    [(130, 9) ...]    [(350, 5) ...]      items ascend within and across blocks

An item is a tuple: a time, a number that makes it unique, and what the caller likes. An item is removed when its timer
ends, so the queue holds nothing that is stale. Items are stored in blocks of at most `BLOCK_ITEMS`: adding or removing
one moves one block, not a million items, and no rebuild of the whole is ever necessary. Timers of equal length are
added in order and go to the end, which costs a comparison. A copy shares the blocks until either queue changes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

BLOCK_ITEMS = 512

Item = TypeVar("Item", bound=tuple[Any, ...])


class TimerQueue(Generic[Item]):
    """Items in order of time. It is False when it is empty."""

    __slots__ = ("_blocks", "_shared", "_tops", "count")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._blocks: list[list[Item]] = []
        self._tops: list[Item] = []  # the last item of each block
        self._shared: list[bool] = []  # for each block: whether a copy may have it too
        self.count = 0
        self.extend(list(items))

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Item]:
        for block in self._blocks:
            yield from block

    def next_ms(self) -> int | None:
        """The earliest time."""
        return self._blocks[0][0][0] if self._blocks else None

    def until(self, now_ms: int) -> Iterator[Item]:
        """The items up to a time, in order."""
        for block in self._blocks:
            for item in block:
                if item[0] > now_ms:
                    return
                yield item

    def after(self, now_ms: int) -> int | None:
        """The earliest time after `now_ms`."""
        key = (now_ms + 1,)
        at = bisect_left(self._tops, key)
        if at == len(self._tops):
            return None
        block = self._blocks[at]
        time_ms: int = block[bisect_left(block, key)][0]
        return time_ms

    def add(self, item: Item) -> None:
        tops = self._tops
        self.count += 1
        if not tops or item > tops[-1]:
            if not tops or len(self._blocks[-1]) >= BLOCK_ITEMS:
                self._blocks.append([item])
                self._shared.append(False)
                tops.append(item)
                return
            (self._own(-1) if self._shared[-1] else self._blocks[-1]).append(item)
            tops[-1] = item
            return
        at = bisect_right(tops, item)
        block = self._own(at) if self._shared[at] else self._blocks[at]
        block.insert(bisect_right(block, item), item)
        if len(block) > BLOCK_ITEMS:
            keep = len(block) // 2
            self._blocks.insert(at + 1, block[keep:])
            self._shared.insert(at + 1, False)
            tops.insert(at + 1, block[-1])
            del block[keep:]
            tops[at] = block[-1]

    def extend(self, items: list[Item]) -> None:
        """Add many, block by block."""
        items = sorted(items)
        at = first = 0
        while first < len(items):
            at = bisect_right(self._tops, items[first], at)
            if at == len(self._tops):
                self._append(items[first:])
                return
            end = bisect_left(items, self._tops[at], first)
            self._merge(at, items[first:end])
            first = end

    def _append(self, items: list[Item]) -> None:
        """Add items above all others."""
        self.count += len(items)
        for start in range(0, len(items), BLOCK_ITEMS):
            self._blocks.append(items[start : start + BLOCK_ITEMS])
            self._tops.append(self._blocks[-1][-1])
            self._shared.append(False)

    def _merge(self, at: int, items: list[Item]) -> None:
        """Add items below the top of a block, to this block."""
        self.count += len(items)
        block = sorted(self._blocks[at] + items)  # two runs in order: they are merged
        parts = [block[start : start + BLOCK_ITEMS] for start in range(0, len(block), BLOCK_ITEMS)]
        self._blocks[at : at + 1] = parts
        self._tops[at : at + 1] = [part[-1] for part in parts]
        self._shared[at : at + 1] = [False] * len(parts)

    def copy(self) -> TimerQueue[Item]:
        copied: TimerQueue[Item] = TimerQueue()
        copied._blocks, copied._tops, copied.count = self._blocks.copy(), self._tops.copy(), self.count
        self._shared = [True] * len(self._blocks)
        copied._shared = self._shared.copy()
        return copied

    def _own(self, at: int) -> list[Item]:
        """Replace a shared block by one that may be changed."""
        block = self._blocks[at] = self._blocks[at].copy()
        self._shared[at] = False
        return block

    def remove_until(self, now_ms: int) -> None:
        """Remove the items up to a time, block by block."""
        key = (now_ms + 1,)
        whole = bisect_left(self._tops, key)
        self.count -= sum(map(len, self._blocks[:whole]))
        del self._blocks[:whole], self._tops[:whole], self._shared[:whole]
        if self._blocks:
            first = self._own(0)
            cut = bisect_left(first, key)
            self.count -= cut
            del first[:cut]

    def remove_below(self, number: int) -> None:
        """Remove the items with a lower number."""
        blocks = [[item for item in block if item[1] >= number] for block in self._blocks]
        self._blocks = [block for block in blocks if block]
        self._tops = [block[-1] for block in self._blocks]
        self._shared = [False] * len(self._blocks)
        self.count = sum(map(len, self._blocks))

    def remove(self, item: Item) -> None:
        """Remove an item that is in the queue."""
        at = 0 if self._blocks[0][0] == item else bisect_left(self._tops, item)  # often it is the first one
        block = self._own(at) if self._shared[at] else self._blocks[at]
        index = 0 if block[0] == item else bisect_left(block, item)
        assert block[index] == item, f"no timer {item}"
        del block[index]
        self.count -= 1
        if not block:
            del self._blocks[at], self._tops[at], self._shared[at]
        elif index == len(block):
            self._tops[at] = block[-1]

    def clear(self) -> None:
        self._blocks.clear()
        self._tops.clear()
        self._shared.clear()
        self.count = 0
