"""A log: where it starts and ends, and the lanes that its records belong to.

    start                                                     end
    | p p p A p B B p p A p p p p d p p p p p p p p p p p p p |      size_offsets / size_totals: bytes below an offset
            |   | |     |         |
            |   +-+-----|---- lane B (priority 5, task "mail")
            +-----------+---- lane A (label "eu")                    d: has a deadline, a delay or a timeout

1. The default lane is implicit: every offset (p) that no explicit lane has, in order, at no cost per record.
2. A record with a priority, task, label, tenant (in a fair topic) or delay belongs to an explicit lane. It costs
   sixteen bytes in its lane and twelve in the index `marked_offsets`, until retention drops it.
3. Deadlines, timeouts and delays are kept in sorted arrays or a heap, only for the records that have one.
4. Offsets that some group never gets are noted once, for groups that start later: `cancelled`, `directed`.

Groups keep a cursor for each lane (`core.state.progress`). A log knows the numbers of its groups and nothing else of
them. Records themselves are in the log store.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from driftq.core.model.facts import LaneKey
from driftq.core.model.ranges import Range, RangeSet
from driftq.core.model.snapshot_facts import LaneState, LogState
from driftq.core.state.producers import ProducerTable

if TYPE_CHECKING:
    from driftq.core.model.facts import RecordSchedule

SIZES_MAX = 8_192
SHARED_TENANT = "\x1fshared"  # tenants of a fair topic without a lane of their own share this one


class Lane:
    """The offsets of one explicit lane and when each was appended, both ascending."""

    __slots__ = ("number", "offsets", "times", "withdrawn")

    def __init__(self, number: int) -> None:
        self.number = number  # its index in `Log.lane_keys`
        self.offsets = array("q")
        self.times = array("q")  # when each was appended: a lane's head gains priority by waiting
        self.withdrawn = array("q")  # offsets of the lane that not every group gets: cancelled, or for one group only


class Log:
    """One append-only sequence: a topic's partition, a stream, or the staging log."""

    __slots__ = (
        "cancelled", "deadline_offsets", "deadlines_ms", "delayed", "directed", "end", "ended_ms", "fair_from",
        "lane_keys", "lanes", "last_ms", "log_id", "low_floor", "marked", "marked_lanes", "marked_offsets",
        "partition", "payload_bytes", "producers", "readers", "size_offsets", "size_totals", "start", "tenants",
        "timeout_offsets", "timeouts_ms", "topic", "tracked", "urgent", "withdrawn",
    )  # fmt: skip

    def __init__(self, log_id: int, start: int = 0, topic: str = "", partition: int = 0) -> None:
        self.log_id = log_id  # never reused
        self.topic = topic  # "" for a stream or the staging log
        self.partition = partition
        self.start = start  # the first offset that retention has not dropped
        self.end = start  # the next offset
        self.payload_bytes = 0  # of everything ever appended
        self.last_ms = 0  # the time of the last append
        self.producers = ProducerTable()  # for deduplication
        self.lanes: dict[LaneKey, Lane] = {}  # the explicit lanes that have records
        self.tracked = RangeSet()  # jobs whose attempts are recorded
        self.marked = RangeSet()  # offsets of explicit lanes
        self.marked_offsets = array("q")  # the same offsets, ascending ...
        self.marked_lanes = array("I")  # ... and for each the number of its lane
        self.lane_keys: list[LaneKey] = []  # by number; the keys of empty lanes are dropped when there are many
        self.urgent = False  # whether a lane has a priority
        self.tenants: set[str] = set()  # tenants that have a lane
        self.fair_from = start  # in a fair topic tenants take turns from this offset on
        self.delayed: list[tuple[int, int]] = []  # heap of (not_before_ms, offset) that were ahead at the last append
        self.deadline_offsets = array("q")  # records with a deadline, ascending, and ...
        self.deadlines_ms = array("q")  # ... their deadlines
        self.timeout_offsets = array("q")  # records with an execution timeout, ascending, and ...
        self.timeouts_ms = array("q")  # ... how long an attempt may take
        self.size_offsets = array("q", [start])  # for some offsets, ascending, ...
        self.size_totals = array("q", [0])  # ... the payload bytes below them
        self.readers: list[int] = []  # ids of the groups that read it
        self.low_floor = start  # a lower bound of the floors of its groups
        self.cancelled = RangeSet()  # no group gets these, whenever it starts
        self.directed: dict[int, str] = {}  # by offset: the name of the only group that gets it
        self.withdrawn = array("q")  # offsets of the default lane that are cancelled or directed
        self.ended_ms = 0  # the last time that a change of its groups may have ended jobs

    def extend(self, count: int, payload_bytes: int, at_ms: int) -> None:
        """Append `count` records."""
        self.end += count
        self.payload_bytes += payload_bytes
        self.last_ms = at_ms
        if self.topic:
            self._note_size()

    def cancel(self, offset: int) -> None:
        """No group gets this message any more."""
        self.cancelled.add(offset, offset + 1)
        self._withdraw(offset)

    def direct(self, offset: int, group: str) -> None:
        """Only this group gets the message."""
        self.directed[offset] = group
        self._withdraw(offset)

    def _withdraw(self, offset: int) -> None:
        lane = self.lane_of(offset)
        withdrawn = self.lanes[lane].withdrawn if lane is not None else self.withdrawn
        index = bisect_left(withdrawn, offset)
        if index == len(withdrawn) or withdrawn[index] != offset:
            withdrawn.insert(index, offset)

    def passed_over(self, group: str) -> Iterator[Range]:
        """The offsets that this group never gets, wherever it starts."""
        yield from self.cancelled
        for offset, name in self.directed.items():
            if name != group:
                yield offset, offset + 1

    def _note_size(self) -> None:
        """Note how many bytes lie below the end. Memory is bounded: past the bound every second note is dropped."""
        self.size_offsets.append(self.end)
        self.size_totals.append(self.payload_bytes)
        if len(self.size_offsets) > SIZES_MAX:
            self.size_offsets = self.size_offsets[::2]
            self.size_totals = self.size_totals[::2]

    def bytes_from(self, offset: int) -> int:
        """The payload bytes at and above `offset`: exact at noted ends, in proportion between them."""
        if offset >= self.end:
            return 0
        index = bisect_right(self.size_offsets, offset) - 1
        if index < 0:
            return self.payload_bytes
        before, total = self.size_offsets[index], self.size_totals[index]
        if offset > before:
            last = index + 1 == len(self.size_offsets)
            next_offset = self.end if last else self.size_offsets[index + 1]
            next_total = self.payload_bytes if last else self.size_totals[index + 1]
            total += (next_total - total) * (offset - before) // (next_offset - before)
        return self.payload_bytes - total

    def mark(self, marks: tuple[RecordSchedule, ...], first_offset: int, at_ms: int) -> None:
        """Add the records that are not plain to their lanes, and note their deadlines, delays and timeouts."""
        while self.delayed and self.delayed[0][0] <= at_ms:
            heapq.heappop(self.delayed)
        for mark in marks:
            offset = first_offset + mark.index
            if mark.tracked:
                self.tracked.add(offset, offset + 1)
            if mark.deadline_ms:
                self.deadline_offsets.append(offset)
                self.deadlines_ms.append(mark.deadline_ms)
            if mark.timeout_ms:
                self.timeout_offsets.append(offset)
                self.timeouts_ms.append(mark.timeout_ms)
            if mark.not_before_ms > at_ms:
                heapq.heappush(self.delayed, (mark.not_before_ms, offset))
            if mark.not_before_ms > at_ms or mark.priority or mark.task or mark.label or mark.tenant:
                key = LaneKey(mark.priority, mark.task, mark.label, mark.tenant)
                lane = self.lanes.get(key) or self._add_lane(key)
                lane.offsets.append(offset)
                lane.times.append(at_ms)
                self._note_lane(offset, lane.number)
            if mark.group:
                self.direct(offset, mark.group)

    def _add_lane(self, key: LaneKey) -> Lane:
        lane = self.lanes[key] = Lane(len(self.lane_keys))
        self.lane_keys.append(key)
        self.urgent = self.urgent or key.priority > 0
        if key.tenant:
            self.tenants.add(key.tenant)
        return lane

    def _note_lane(self, offset: int, number: int) -> None:
        self.marked.add(offset, offset + 1)
        self.marked_offsets.append(offset)
        self.marked_lanes.append(number)

    def lane_of(self, offset: int) -> LaneKey | None:
        """The explicit lane of an offset, or None for the default lane."""
        index = bisect_left(self.marked_offsets, offset)
        if index < len(self.marked_offsets) and self.marked_offsets[index] == offset:
            return self.lane_keys[self.marked_lanes[index]]
        return None

    def deadline_of(self, offset: int) -> int:
        """0 if the record has none."""
        index = bisect_left(self.deadline_offsets, offset)
        if index < len(self.deadline_offsets) and self.deadline_offsets[index] == offset:
            return self.deadlines_ms[index]
        return 0

    def overdue(self, first: int, end: int, now_ms: int) -> list[int]:
        """The offsets of a range whose deadline has passed."""
        if not self.deadline_offsets:
            return []
        low = bisect_left(self.deadline_offsets, first)
        high = bisect_left(self.deadline_offsets, end, low)
        return [self.deadline_offsets[i] for i in range(low, high) if self.deadlines_ms[i] <= now_ms]

    def timeouts(self, first: int, end: int) -> Iterator[Range]:
        """(offset, milliseconds) of the records of a range that limit their attempts."""
        low = bisect_left(self.timeout_offsets, first)
        high = bisect_left(self.timeout_offsets, end, low)
        return zip(self.timeout_offsets[low:high], self.timeouts_ms[low:high], strict=True)

    def trim(self, start: int) -> None:
        """Records below `start` are gone."""
        self.start = start
        self.marked.discard(0, start)
        self.tracked.discard(0, start)
        self.cancelled.discard(0, start)
        if self.directed:
            self.directed = {offset: group for offset, group in self.directed.items() if offset >= start}
        del self.withdrawn[: bisect_left(self.withdrawn, start)]
        for lane in self.lanes.values():
            cut = bisect_left(lane.offsets, start)
            del lane.offsets[:cut], lane.times[:cut], lane.withdrawn[: bisect_left(lane.withdrawn, start)]
        self.lanes = {key: lane for key, lane in self.lanes.items() if lane.offsets}
        cut = bisect_left(self.marked_offsets, start)
        del self.marked_offsets[:cut], self.marked_lanes[:cut]
        if len(self.lane_keys) > 64 + 2 * len(self.lanes):
            self._number_lanes()
        self.urgent = any(key.priority for key in self.lanes)
        self.tenants = {key.tenant for key in self.lanes if key.tenant}
        cut = bisect_left(self.deadline_offsets, start)
        del self.deadline_offsets[:cut], self.deadlines_ms[:cut]
        cut = bisect_left(self.timeout_offsets, start)
        del self.timeout_offsets[:cut], self.timeouts_ms[:cut]
        self.delayed = [item for item in self.delayed if item[1] >= start]
        heapq.heapify(self.delayed)
        self.low_floor = max(self.low_floor, start)

    def _number_lanes(self) -> None:
        """Renumber the lanes without gaps and rebuild the index of offsets."""
        self.lane_keys = list(self.lanes)
        for number, lane in enumerate(self.lanes.values()):
            lane.number = number
        index = sorted((offset, lane.number) for lane in self.lanes.values() for offset in lane.offsets)
        self.marked_offsets = array("q", (offset for offset, _ in index))
        self.marked_lanes = array("I", (number for _, number in index))

    def snapshot(self) -> LogState:
        return LogState(
            self.log_id,
            self.start,
            self.end,
            self.payload_bytes,
            self.last_ms,
            tuple(LaneState(*key, lane.offsets.tobytes(), lane.times.tobytes()) for key, lane in self.lanes.items()),
            tuple(sorted(self.delayed)),
            self.deadline_offsets.tobytes(),
            self.deadlines_ms.tobytes(),
            self.size_offsets.tobytes(),
            self.size_totals.tobytes(),
            (),
            tuple(self.tracked),
            tuple(self.cancelled),
            tuple(self.directed.items()),
            self.ended_ms,
            self.fair_from,
            self.timeout_offsets.tobytes(),
            self.timeouts_ms.tobytes(),
        )

    def restore(self, fact: LogState) -> None:
        """Take over what a snapshot holds."""
        self.start, self.end = fact.start_offset, fact.end_offset
        self.payload_bytes, self.last_ms = fact.payload_bytes, fact.last_ms
        for saved in fact.lanes:
            lane = self._add_lane(LaneKey(saved.priority, saved.task, saved.label, saved.tenant))
            lane.offsets.frombytes(saved.offsets)
            lane.times.frombytes(saved.times)
        self._number_lanes()
        for offset in self.marked_offsets:
            self.marked.add(offset, offset + 1)
        self.delayed = list(fact.delayed)
        self.deadline_offsets = array("q", fact.deadline_offsets)
        self.deadlines_ms = array("q", fact.deadlines_ms)
        self.timeout_offsets = array("q", fact.timeout_offsets)
        self.timeouts_ms = array("q", fact.timeouts_ms)
        self.size_offsets = array("q", fact.size_offsets)
        self.size_totals = array("q", fact.size_totals)
        for first, end in fact.tracked:
            self.tracked.add(first, end)
        for first, end in (*fact.lost, *fact.cancelled):
            for offset in range(first, end):
                self.cancel(offset)
        for offset, group in fact.directed:
            self.direct(offset, group)
        self.ended_ms = fact.ended_ms
        self.low_floor = self.start
        self.fair_from = fact.fair_from


def without(ranges: Iterator[Range], taken: list[int]) -> Iterator[Range]:
    """Cut single offsets out of ranges; both ascend."""
    for first, end in ranges:
        for offset in taken:
            if first <= offset < end:
                if first < offset:
                    yield first, offset
                first = offset + 1
        if first < end:
            yield first, end
