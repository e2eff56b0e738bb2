"""What a claim may take: which messages are due, which are fresh, and in which order. Reads state, changes nothing.

Order of fresh messages: higher priority first; inside a priority in offset order. In a fair topic tenants take turns
inside a priority, and each tenant's messages go out in offset order. A lane's head gains one level for every
`ageing_ms` it has waited, so that low priority is slow but never starved.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from driftq.core.model.facts import LaneKey

if TYPE_CHECKING:
    from driftq.core.model.ranges import Range
    from driftq.core.state.leases import Lease
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

TimeOf = Callable[[int, int], int]
_Timed = TypeVar("_Timed", tuple[int, int], "tuple[int, int, Lease]")

_HeadItem = tuple[int, int, int, int, LaneKey | None, Iterator[int]]  # (-level, turn, offset, source, lane, the rest)

DUE_FOUND_MAX = 1_024
DUE_VISITED_MAX = 8_192
DEFAULT_LANE = LaneKey(0, "", "")


class ClaimFilter(NamedTuple):
    """A claim's filter; None asks for everything."""

    task: str | None = None
    label: str | None = None

    def admits(self, lane: LaneKey) -> bool:
        return self.task in (None, lane.task) and self.label in (None, lane.label)


def due(
    log: Log, progress: Progress, end: int, most: int, now_ms: int, wanted: ClaimFilter, ageing_ms: int
) -> list[int]:
    """Resting messages below `end` whose time has come, urgent ones first, then those due for longest; waiting makes
    them more urgent here too. Where nothing is urgent or overdue the first `most` are enough."""
    enough = DUE_FOUND_MAX if log.urgent or log.deadline_offsets else min(most, DUE_FOUND_MAX)
    found: dict[int, tuple[int, int, int]] = {}  # a message that came to rest twice at one time is in the heap twice
    for retry_at_ms, offset in islice(until(progress.resting_heap, now_ms), DUE_VISITED_MAX):
        entry = progress.entries.get(offset)
        if entry is None or entry.held or entry.retry_at_ms != retry_at_ms or offset >= end:
            continue
        lane = (log.lane_of(offset) if log.marked else None) or DEFAULT_LANE
        if wanted.admits(lane):
            aged = (now_ms - retry_at_ms) // ageing_ms if ageing_ms else 0
            found[offset] = -lane.priority - aged, retry_at_ms, offset
            if len(found) >= enough:
                break
    return [offset for _, _, offset in sorted(found.values())]


def until(heap: list[_Timed], now_ms: int) -> Iterator[_Timed]:
    """The items of a heap up to a time, in its order and without changing it: a child comes after its parent."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        item, index = heapq.heappop(ahead)
        if item[0] > now_ms:
            return
        yield item
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heapq.heappush(ahead, (heap[child], child))


def next_ms(progress: Progress, now_ms: int) -> int | None:
    """When something happens here after `now_ms`: a lease ends or a message has rested enough. What is due already but
    could not be given does not count: it waits for room, not for time."""
    times = (_later(progress.lease_heap, now_ms), _later(progress.resting_heap, now_ms))
    return min((at_ms for at_ms in times if at_ms is not None), default=None)


def _later(heap: list[_Timed], now_ms: int) -> int | None:
    """The first time in a heap after `now_ms`: it lies right behind what is not after it."""
    found: int | None = None
    stack = [0]
    for _ in range(DUE_VISITED_MAX):
        if not stack:
            break
        index = stack.pop()
        if index < len(heap):
            at_ms = heap[index][0]
            if at_ms <= now_ms:
                stack += (2 * index + 1, 2 * index + 2)
            elif found is None or at_ms < found:
                found = at_ms
    return found


class FreshRun(NamedTuple):
    """A run of fresh offsets of one lane (None: the default lane)."""

    lane: LaneKey | None
    first: int
    end: int


def fresh(
    log: Log, progress: Progress, end: int, most: int, now_ms: int, wanted: ClaimFilter, ageing_ms: int,
    time_of: TimeOf,
    fair: bool = False,
) -> list[FreshRun]:  # fmt: skip
    """Up to `most` never-delivered offsets below `end`, in the order in which they are handed out."""
    if most <= 0:
        return []
    plain = _plain(log, progress, end) if wanted.admits(DEFAULT_LANE) else iter(())
    if not log.lanes:
        return _only_plain(plain, most)
    choice = _LaneHeads(log, progress, now_ms, ageing_ms, time_of, log.fair_from if fair else end)
    for key, lane in log.lanes.items():
        # A lane that was emptied long ago costs a glance: there may be hundreds of them.
        left = progress.ready or lane.offsets[-1] >= progress.lane_cursors.get(key, progress.floor)
        if left and wanted.admits(key):
            choice.offer(key, _laned(lane.offsets, key, progress, end))
    choice.offer(None, (offset for first, stop in plain for offset in range(first, stop)))
    return choice.pick(most)


class _LaneHeads:
    """The heads of all lanes, the next one to hand out first."""

    def __init__(
        self, log: Log, progress: Progress, now_ms: int, ageing_ms: int, time_of: TimeOf, fair_from: int
    ) -> None:
        self._fair_from = fair_from  # tenants take turns from here on
        self._log = log
        self._now_ms = now_ms
        self._ageing_ms = ageing_ms
        self._time_of = time_of
        self._turns = dict(progress.turns)
        self._last_turn = max(self._turns.values(), default=0)
        self._heads: list[_HeadItem] = []
        self._sources = 0

    def offer(self, key: LaneKey | None, offsets: Iterator[int]) -> None:
        self._sources += 1
        self._push(self._sources, key, offsets)

    def _push(self, source: int, key: LaneKey | None, offsets: Iterator[int]) -> None:
        offset = next(offsets, None)
        if offset is None:
            return
        if key is None:
            level, since_ms = 0, self._time_of(self._log.log_id, offset)
        else:
            lane = self._log.lanes[key]
            level, since_ms = key.priority, lane.times[bisect_left(lane.offsets, offset)]
        if self._ageing_ms:
            level += max(0, self._now_ms - since_ms) // self._ageing_ms
        heapq.heappush(self._heads, (-level, self._turn(key, offset), offset, source, key, offsets))

    def _turn(self, key: LaneKey | None, offset: int) -> int:
        if offset < self._fair_from:
            return -1
        return self._turns.get(key.tenant if key is not None else "", 0)

    def pick(self, most: int) -> list[FreshRun]:
        picked: list[FreshRun] = []
        count = 0
        while self._heads and count < most:
            level, turn, offset, source, key, offsets = heapq.heappop(self._heads)
            if turn != self._turn(key, offset):  # its tenant got something from another lane in the meantime
                heapq.heappush(self._heads, (level, self._turn(key, offset), offset, source, key, offsets))
                continue
            if picked and picked[-1].lane == key and picked[-1].end == offset:
                picked[-1] = FreshRun(key, picked[-1].first, offset + 1)
            else:
                picked.append(FreshRun(key, offset, offset + 1))
            count += 1
            if offset >= self._fair_from and (self._turns or (key is not None and key.tenant)):
                self._last_turn += 1
                self._turns[key.tenant if key is not None else ""] = self._last_turn
            self._push(source, key, offsets)
        return picked


def _only_plain(plain: Iterator[Range], most: int) -> list[FreshRun]:
    picked: list[FreshRun] = []
    for first, stop in plain:
        stop = min(stop, first + most)
        picked.append(FreshRun(None, first, stop))
        most -= stop - first
        if most <= 0:
            break
    return picked


def _plain(log: Log, progress: Progress, end: int) -> Iterator[Range]:
    """The default lane: what came back unseen, then everything from the cursor that no other lane and no settled
    range has."""
    if log.marked:
        yield from ((first, first + 1) for first in _ready(progress) if first not in log.marked)
    else:
        yield from progress.ready
    settled, marked = progress.settled, log.marked
    position = max(progress.cursor, progress.floor)
    while position < end:
        stop = end
        moved = False
        for taken in (settled, marked):
            next_range = taken.above(position) if taken.count else None
            if next_range is None:
                continue
            first, after = next_range
            if first <= position:
                position = after
                moved = True
                break
            stop = min(stop, first)
        if not moved:
            yield position, stop
            position = stop


def _laned(offsets: Sequence[int], key: LaneKey, progress: Progress, end: int) -> Iterator[int]:
    """An explicit lane: what of it came back unseen, then everything from the group's cursor in it; a delayed message
    has an entry already and is passed over."""
    for first, stop in progress.ready:
        index = bisect_left(offsets, first)
        while index < len(offsets) and offsets[index] < stop:
            yield offsets[index]
            index += 1
    index = bisect_left(offsets, max(progress.lane_cursors.get(key, 0), progress.floor))
    while index < len(offsets) and offsets[index] < end:
        offset = offsets[index]
        if offset not in progress.entries and offset not in progress.settled:
            yield offset
        index += 1


def _ready(progress: Progress) -> Iterator[int]:
    return (offset for first, end in progress.ready for offset in range(first, end))
