"""Which messages a claim may take, and in which order. Reads state, changes nothing.

A claim takes from two sources (`core.rules.claim` decides how many from each):

1. **Due** messages: entries whose backoff or delay is over (`due`). Higher priority first, then the longest overdue.
2. **Fresh** messages (`fresh`), merged from the heads of all lanes:

       lane (None)     p p p p ...      level 0   \\
       lane (prio 5)   a a              level 5    >  heap of heads: highest level, then whose turn, then lowest offset
       lane (prio 1)   b b b            level 1   /

   - The level of a lane's head is its priority, plus one for every `ageing_ms` that the head has waited: low priority
     is slow but never starved.
   - In a fair topic, tenants take turns within a level. Each tenant's own messages go out in offset order.
   - A log without explicit lanes needs no heap: ranges are cut from the default lane.

Both are bounded: a claim looks at no more than `DUE_VISITED_MAX` messages that are due.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.facts import LaneKey
from driftq.wire.fields import SAFE_INTEGER_MAX

if TYPE_CHECKING:
    from driftq.core.model.ranges import Range
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

TimeOf = Callable[[int, int], int]

# (-level, turn, offset, number of the source, lane, offsets that follow)
_HeadItem = tuple[int, int, int, int, LaneKey | None, Iterator[int]]

DUE_FOUND_MAX = 1_024
DUE_VISITED_MAX = 8_192
DEFAULT_LANE = LaneKey(0, "", "")
MESSAGE_BYTES = 256  # what a message takes in a reply beside key, value and envelope


class ClaimFilter(NamedTuple):
    """The filter of a claim; None admits every task or label."""

    task: str | None = None
    label: str | None = None

    def admits(self, lane: LaneKey) -> bool:
        return self.task in (None, lane.task) and self.label in (None, lane.label)


class ByteBudget:
    """What a claim may still take, in bytes. Sizes are estimates: see `Log.bytes_from`."""

    __slots__ = ("is_first", "left")

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes or SAFE_INTEGER_MAX
        self.is_first = True  # the first message fits, whatever its size

    def take(self, log: Log, first: int, end: int) -> int:
        """How far the run from `first` to `end` fits. If not all of it does, nothing is left."""
        size = log.bytes_from(first) - log.bytes_from(end) + MESSAGE_BYTES * (end - first)
        if size <= self.left:
            self.left -= size
        else:
            end = max(log.fitting(first, end, self.left, MESSAGE_BYTES), first + self.is_first)
            self.left = 0
        self.is_first = False
        return end


def due(
    log: Log, progress: Progress, end: int, limit: int, now_ms: int, claim_filter: ClaimFilter, ageing_ms: int
) -> list[int]:
    """Resting messages below `end` whose time has come: highest priority first, aged as for fresh ones, then the
    longest overdue. If the log has neither priorities nor deadlines, the first `limit` in the queue are enough."""
    enough = DUE_FOUND_MAX if log.lanes.urgent or log.deadline_offsets else min(limit, DUE_FOUND_MAX)
    ranks: list[tuple[int, int, int]] = []
    for retry_at_ms, offset in islice(progress.retry_timers.until(now_ms), DUE_VISITED_MAX):
        if offset >= end:
            continue
        lane = (log.lanes.key_of(offset) if log.lanes.marked else None) or DEFAULT_LANE
        if claim_filter.admits(lane):
            aged = (now_ms - retry_at_ms) // ageing_ms if ageing_ms else 0
            ranks.append((-lane.priority - aged, retry_at_ms, offset))
            if len(ranks) >= enough:
                break
    return [offset for _, _, offset in sorted(ranks)]


def next_ms(progress: Progress, now_ms: int) -> int | None:
    """When a lease or a backoff ends next, after `now_ms`. What is due already but was not delivered does not count: it
    waits for room, not for time."""
    times = (progress.lease_timers.after(now_ms), progress.retry_timers.after(now_ms))
    return min((at_ms for at_ms in times if at_ms is not None), default=None)


class FreshRun(NamedTuple):
    """A run of fresh offsets of one lane (None: the default lane)."""

    lane: LaneKey | None
    first: int
    end: int


def fresh(
    log: Log, progress: Progress, end: int, limit: int, now_ms: int, claim_filter: ClaimFilter, ageing_ms: int,
    time_of: TimeOf,
    fair: bool = False,
) -> list[FreshRun]:  # fmt: skip
    """Up to `limit` never-delivered offsets below `end`, in the order of delivery."""
    if limit <= 0:
        return []
    plain = _default_lane(log, progress, end) if claim_filter.admits(DEFAULT_LANE) else iter(())
    if not log.lanes.by_key:
        return _runs(plain, limit)
    heads = _LaneHeads(log, progress, now_ms, ageing_ms, time_of, log.fair_from if fair else end)
    for key, lane in log.lanes.by_key.items():
        # There may be hundreds of lanes with nothing left: skip those with one comparison.
        has_more = progress.ready or lane.offsets[-1] >= progress.lane_cursors.get(key, progress.floor)
        if has_more and claim_filter.admits(key):
            heads.add(key, _explicit_lane(lane.offsets, key, progress, end))
    heads.add(None, (offset for first, stop in plain for offset in range(first, stop)))
    return heads.pick(limit)


class _LaneHeads:
    """The next offset of every lane, as a heap in the order of delivery."""

    def __init__(
        self, log: Log, progress: Progress, now_ms: int, ageing_ms: int, time_of: TimeOf, fair_from: int
    ) -> None:
        self._fair_from = fair_from  # tenants take turns from this offset on
        self._log = log
        self._now_ms = now_ms
        self._ageing_ms = ageing_ms
        self._time_of = time_of
        self._turns = dict(progress.turns)  # by tenant; picking moves a tenant to the end
        self._last_turn = max(self._turns.values(), default=0)
        self._heads: list[_HeadItem] = []
        self._sources = 0  # breaks ties, so that lanes are never compared

    def add(self, key: LaneKey | None, offsets: Iterator[int]) -> None:
        self._sources += 1
        self._push(self._sources, key, offsets)

    def _push(self, source: int, key: LaneKey | None, offsets: Iterator[int]) -> None:
        offset = next(offsets, None)
        if offset is None:
            return
        if key is None:
            level, since_ms = 0, self._time_of(self._log.log_id, offset)
        else:
            lane = self._log.lanes.by_key[key]
            level, since_ms = key.priority, lane.times[bisect_left(lane.offsets, offset)]
        if self._ageing_ms:
            level += max(0, self._now_ms - since_ms) // self._ageing_ms
        heapq.heappush(self._heads, (-level, self._turn(key, offset), offset, source, key, offsets))

    def _turn(self, key: LaneKey | None, offset: int) -> int:
        if offset < self._fair_from:
            return -1
        return self._turns.get(key.tenant if key is not None else "", 0)

    def pick(self, limit: int) -> list[FreshRun]:
        picked: list[FreshRun] = []
        count = 0
        while self._heads and count < limit:
            level, turn, offset, source, key, offsets = heapq.heappop(self._heads)
            if turn != self._turn(key, offset):  # the tenant got a message from another lane since it was pushed
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


def _runs(plain: Iterator[Range], limit: int) -> list[FreshRun]:
    """The first `limit` offsets of the default lane, as runs."""
    picked: list[FreshRun] = []
    for first, stop in plain:
        stop = min(stop, first + limit)
        picked.append(FreshRun(None, first, stop))
        limit -= stop - first
        if limit <= 0:
            break
    return picked


def _default_lane(log: Log, progress: Progress, end: int) -> Iterator[Range]:
    """The fresh ranges of the default lane: the ready ones, then everything from the cursor on that is neither settled
    nor in an explicit lane."""
    if log.lanes.marked:
        yield from ((first, first + 1) for first in _ready(progress) if first not in log.lanes.marked)
    else:
        yield from progress.ready
    settled, marked = progress.settled, log.lanes.marked
    position = max(progress.cursor, progress.floor)
    while position < end:
        stop = end
        moved = False
        for other in (settled, marked):
            next_range = other.above(position) if other.count else None
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


def _explicit_lane(offsets: Sequence[int], key: LaneKey, progress: Progress, end: int) -> Iterator[int]:
    """The fresh offsets of an explicit lane: the ready ones, then everything from its cursor on that is not settled. A
    delayed message has an entry and is skipped."""
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
