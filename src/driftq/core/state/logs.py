"""Where each log begins and ends, and what its records ask for beyond plain order.

A log's default lane is implicit: every offset that no other lane names, in order, at no cost per record. A record
with a priority, a task or a label belongs to an explicit lane, which costs sixteen bytes until retention drops it.
Groups keep a cursor for each lane (see `core.state.progress`). Nothing here knows who reads.
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
SHARED_TENANT = "\x1fshared"  # tenants of a fair topic that have no lane of their own take turns as one


class Lane:
    """The offsets of one explicit lane and when each was appended, both ascending."""

    __slots__ = ("number", "offsets", "times", "withdrawn")

    def __init__(self, number: int) -> None:
        self.number = number  # its place in the log's list of lanes
        self.offsets = array("q")
        self.times = array("q")
        self.withdrawn = array("q")  # those of them that not every group gets: cancelled, or meant for one group


class Log:
    """One append-only sequence: a topic's partition, a stream, or the staging log."""

    __slots__ = (
        "cancelled", "deadline_offsets", "deadlines_ms", "delayed", "directed", "end", "ended_ms", "fair_from",
        "lane_keys", "lanes", "last_ms", "log_id", "low_floor", "marked", "marked_lanes", "marked_offsets",
        "partition", "payload_bytes", "producers", "readers", "size_offsets", "size_totals", "start", "tenants",
        "timeout_offsets", "timeouts_ms", "topic", "tracked", "urgent", "withdrawn",
    )  # fmt: skip

    def __init__(self, log_id: int, start: int = 0, topic: str = "", partition: int = 0) -> None:
        self.log_id = log_id
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = start
        self.payload_bytes = 0  # of everything ever appended
        self.last_ms = 0
        self.producers = ProducerTable()
        self.lanes: dict[LaneKey, Lane] = {}
        self.tracked = RangeSet()  # jobs: what happens to them is remembered
        self.marked = RangeSet()  # offsets that belong to an explicit lane
        self.marked_offsets = array("q")  # the same ones, and beside each the number of its lane
        self.marked_lanes = array("I")
        self.lane_keys: list[LaneKey] = []  # by number; those of emptied lanes go when they are too many
        self.urgent = False  # whether some lane has a priority
        self.tenants: set[str] = set()  # those that have a lane
        self.fair_from = start  # in a fair topic tenants take turns from here on; what is older goes out in order first
        self.delayed: list[tuple[int, int]] = []  # heap of (not_before_ms, offset) still ahead at the last append
        self.deadline_offsets = array("q")
        self.deadlines_ms = array("q")
        self.timeout_offsets = array("q")  # records that say how long an attempt may take, and how long
        self.timeouts_ms = array("q")
        self.size_offsets = array("q", [start])
        self.size_totals = array("q", [0])
        self.readers: list[int] = []  # the groups that read it
        self.low_floor = start  # a lower bound of the readers' floors
        self.cancelled = RangeSet()  # no group gets them, whenever it starts
        self.directed: dict[int, str] = {}  # offsets that only one group gets, and its name
        self.withdrawn = array("q")  # offsets of the default lane that are cancelled or directed
        self.ended_ms = 0  # when a change of its groups may have ended jobs for the last time

    def extend(self, count: int, payload_bytes: int, at_ms: int) -> None:
        """`count` records arrived at the end."""
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
        """What this group never gets, wherever it starts."""
        yield from self.cancelled
        for offset, name in self.directed.items():
            if name != group:
                yield offset, offset + 1

    def _note_size(self) -> None:
        """Remember how many bytes lie before this end, in bounded memory: past the bound every second note goes."""
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
        """Put the records that are not plain into their lanes."""
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
        """Give the lanes numbers without gaps, and say again which offset is in which."""
        self.lane_keys = list(self.lanes)
        for number, lane in enumerate(self.lanes.values()):
            lane.number = number
        found = sorted((offset, lane.number) for lane in self.lanes.values() for offset in lane.offsets)
        self.marked_offsets = array("q", (offset for offset, _ in found))
        self.marked_lanes = array("I", (number for _, number in found))

    def image(self) -> LogState:
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

    def place(self, image: LogState) -> None:
        """Become what the image shows."""
        self.start, self.end = image.start_offset, image.end_offset
        self.payload_bytes, self.last_ms = image.payload_bytes, image.last_ms
        for shown in image.lanes:
            lane = self._add_lane(LaneKey(shown.priority, shown.task, shown.label, shown.tenant))
            lane.offsets.frombytes(shown.offsets)
            lane.times.frombytes(shown.times)
        self._number_lanes()
        for offset in self.marked_offsets:
            self.marked.add(offset, offset + 1)
        self.delayed = list(image.delayed)
        self.deadline_offsets = array("q", image.deadline_offsets)
        self.deadlines_ms = array("q", image.deadlines_ms)
        self.timeout_offsets = array("q", image.timeout_offsets)
        self.timeouts_ms = array("q", image.timeouts_ms)
        self.size_offsets = array("q", image.size_offsets)
        self.size_totals = array("q", image.size_totals)
        for first, end in image.tracked:
            self.tracked.add(first, end)
        for first, end in (*image.lost, *image.cancelled):
            for offset in range(first, end):
                self.cancel(offset)
        for offset, group in image.directed:
            self.direct(offset, group)
        self.ended_ms = image.ended_ms
        self.low_floor = self.start
        self.fair_from = image.fair_from


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
