"""A log: where it starts and ends, and the lanes that its records belong to.

    start                                                     end
    | p p p A p B B p p A p p p p d p p p p p p p p p p p p p |      size_offsets / size_totals: bytes below an offset
            |   | |     |         |
            |   +-+-----|---- lane B (priority 5, task "mail")
            +-----------+---- lane A (label "eu")                    d: has a deadline, a delay or a timeout

1. The default lane is implicit: every offset (p) that no explicit lane has, in order, at no cost per record.
2. A record with a priority, task, label, tenant (in a fair topic) or delay belongs to an explicit lane. It costs
   sixteen bytes in its lane and twelve in the index (`core.state.lanes`), until retention drops it.
3. Deadlines, timeouts and delays are kept in sorted arrays or a heap, only for the records that have one.
4. Offsets that some group never gets are noted once, for groups that start later: `cancelled`, `directed`.

Groups keep a cursor for each lane (`core.state.progress`). A log knows the numbers of its groups and nothing else of
them. Records themselves are in the log store.

There may be a million logs, and most are plain streams. So a log starts with the empty tables below, which all logs
share and none changes; it gets a table of its own with the first entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from driftq.core.model.facts import LaneKey
from driftq.core.model.ranges import Range, RangeSet
from driftq.core.model.snapshot_facts import LogState
from driftq.core.state.delays import Delays
from driftq.core.state.lanes import LaneIndex
from driftq.core.state.producers import ProducerTable

if TYPE_CHECKING:
    from driftq.core.model.facts import ProducerSequence, RecordSchedule
    from driftq.core.model.snapshot_facts import ProducerEntryState

SIZES_MAX = 8_192

NO_LANES = LaneIndex()
NO_PRODUCERS = ProducerTable()
NO_RANGES = RangeSet()
NO_NUMBERS = array("q")
NO_READERS: list[int] = []
NO_DELAYS = Delays()
NO_DIRECTED: dict[int, str] = {}


class Log:
    """One append-only sequence: a topic's partition, a stream, or the staging log."""

    __slots__ = (
        "cancelled", "deadline_offsets", "deadlines_ms", "delays", "directed", "end", "ended_ms", "fair_from",
        "lanes", "last_ms", "log_id", "low_floor", "made_due", "partition", "payload_bytes", "producers", "readers",
        "size_offsets", "size_totals", "start", "timeout_offsets", "timeouts_ms", "topic", "tracked",
    )  # fmt: skip

    def __init__(self, log_id: int, start: int = 0, topic: str = "", partition: int = 0) -> None:
        self.log_id = log_id  # never reused
        self.topic = topic  # "" for a stream or the staging log
        self.partition = partition  # of the topic
        self.start = start  # the first offset that retention has not dropped
        self.end = start  # the next offset
        self.payload_bytes = 0  # of everything ever appended
        self.last_ms = 0  # the time of the last append
        self.producers = NO_PRODUCERS  # for deduplication
        self.lanes = NO_LANES  # which records belong to explicit lanes
        self.tracked = NO_RANGES  # jobs whose attempts are recorded
        self.fair_from = start  # in a fair topic tenants take turns from this offset on
        self.delays = NO_DELAYS  # that were ahead at the last append
        self.deadline_offsets = NO_NUMBERS  # records with a deadline, ascending, and ...
        self.deadlines_ms = NO_NUMBERS  # ... their deadlines
        self.timeout_offsets = NO_NUMBERS  # records with an execution timeout, ascending, and ...
        self.timeouts_ms = NO_NUMBERS  # ... how long an attempt may take
        self.size_offsets = array("q", [start]) if topic else NO_NUMBERS  # for some offsets, ascending, ...
        self.size_totals = array("q", [0]) if topic else NO_NUMBERS  # ... the payload bytes below them; only in topics
        self.readers = NO_READERS  # ids of the groups that read it
        self.low_floor = start  # a lower bound of the floors of its groups
        self.made_due = NO_RANGES  # delayed messages whose delay was ended early
        self.cancelled = NO_RANGES  # no group gets these, whenever it starts
        self.directed = NO_DIRECTED  # by offset: the name of the only group that gets it
        self.ended_ms = 0  # the last time that a change of its groups may have ended jobs

    def extend(self, count: int, payload_bytes: int, at_ms: int) -> None:
        """Append `count` records."""
        self.end += count
        self.payload_bytes += payload_bytes
        self.last_ms = at_ms
        if self.topic:
            self._note_size()

    def add_reader(self, group_id: int) -> None:
        if self.readers is NO_READERS:
            self.readers = []
        self.readers.append(group_id)

    def remember(self, by: ProducerSequence, first_offset: int, end_offset: int, at_ms: int) -> None:
        """A producer's append was accepted."""
        self._own_producers().remember(by, first_offset, end_offset, at_ms)

    def restore_producer(self, fact: ProducerEntryState) -> None:
        self._own_producers().restore(fact)

    def cancel(self, offset: int) -> None:
        """No group gets this message any more."""
        if self.cancelled is NO_RANGES:
            self.cancelled = RangeSet()
        self.cancelled.add(offset, offset + 1)
        self._own_lanes().withdraw(offset)

    def make_due(self, ranges: Iterable[Range]) -> None:
        """The delay of these messages was ended early."""
        if self.made_due is NO_RANGES:
            self.made_due = RangeSet()
        for first, end in ranges:
            self.made_due.add(first, end)
            for offset in range(first, end):
                self.delays.end(offset)

    def direct(self, offset: int, group: str) -> None:
        """Only this group gets the message."""
        if self.directed is NO_DIRECTED:
            self.directed = {}
        self.directed[offset] = group
        self._own_lanes().withdraw(offset)

    def _own_lanes(self) -> LaneIndex:
        if self.lanes is NO_LANES:
            self.lanes = LaneIndex()
        return self.lanes

    def _own_producers(self) -> ProducerTable:
        if self.producers is NO_PRODUCERS:
            self.producers = ProducerTable()
        return self.producers

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

    def fitting(self, first: int, end: int, bytes_max: int, overhead_bytes: int) -> int:
        """How far the records from `first` to `end` have about `bytes_max` bytes, each with an overhead. All of them
        together have more."""
        above = self.bytes_from(first)
        return first + bisect_right(
            range(first + 1, end), bytes_max, key=lambda at: above - self.bytes_from(at) + overhead_bytes * (at - first)
        )

    def mark(self, marks: tuple[RecordSchedule, ...], first_offset: int, at_ms: int) -> None:
        """Add the records that are not plain to their lanes, and note their deadlines, delays and timeouts."""
        self.delays.end_until(at_ms)
        delayed: list[tuple[int, int]] = []
        for mark in marks:
            offset = first_offset + mark.index
            if mark.tracked:
                self._track(offset, offset + 1)
            if mark.deadline_ms:
                if self.deadline_offsets is NO_NUMBERS:
                    self.deadline_offsets, self.deadlines_ms = array("q"), array("q")
                self.deadline_offsets.append(offset)
                self.deadlines_ms.append(mark.deadline_ms)
            if mark.timeout_ms:
                if self.timeout_offsets is NO_NUMBERS:
                    self.timeout_offsets, self.timeouts_ms = array("q"), array("q")
                self.timeout_offsets.append(offset)
                self.timeouts_ms.append(mark.timeout_ms)
            if mark.not_before_ms > at_ms:
                delayed.append((mark.not_before_ms, offset))
        self._add_to_lanes(marks, first_offset, at_ms)
        for mark in marks:
            if mark.group:
                self.direct(first_offset + mark.index, mark.group)
        if delayed:
            if self.delays is NO_DELAYS:
                self.delays = Delays()
            self.delays.extend(delayed)

    def _add_to_lanes(self, marks: tuple[RecordSchedule, ...], first_offset: int, at_ms: int) -> None:
        """Records of one lane that follow each other are added together."""
        run: tuple[LaneKey, int, int] | None = None
        for mark in marks:
            if not (mark.not_before_ms > at_ms or mark.priority or mark.task or mark.label or mark.tenant):
                continue
            key, offset = LaneKey(mark.priority, mark.task, mark.label, mark.tenant), first_offset + mark.index
            if run is not None and run[0] == key and run[2] == offset:
                run = key, run[1], offset + 1
                continue
            if run is not None:
                self._own_lanes().add(*run, at_ms)
            run = key, offset, offset + 1
        if run is not None:
            self._own_lanes().add(*run, at_ms)

    def _track(self, first: int, end: int) -> None:
        if self.tracked is NO_RANGES:
            self.tracked = RangeSet()
        self.tracked.add(first, end)

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
        if self.lanes is not NO_LANES:
            self.lanes.trim(start)
        self.tracked.discard(0, start)
        self.cancelled.discard(0, start)
        self.made_due.discard(0, start)
        if self.directed:
            self.directed = {offset: group for offset, group in self.directed.items() if offset >= start}
        cut = bisect_left(self.deadline_offsets, start)
        del self.deadline_offsets[:cut], self.deadlines_ms[:cut]
        cut = bisect_left(self.timeout_offsets, start)
        del self.timeout_offsets[:cut], self.timeouts_ms[:cut]
        self.delays.trim(start)
        self.low_floor = max(self.low_floor, start)

    def is_plain(self) -> bool:
        """Whether it holds nothing but its bounds, sizes and producers, as most streams do."""
        return not (
            self.topic
            or self.lanes.by_key
            or self.lanes.withdrawn
            or self.readers
            or self.delays
            or self.directed
            or self.tracked
            or self.cancelled
            or self.made_due
            or self.deadline_offsets
            or self.timeout_offsets
            or self.ended_ms
            or self.fair_from
        )

    def snapshot(self) -> LogState:
        return LogState(
            self.log_id,
            self.start,
            self.end,
            self.payload_bytes,
            self.last_ms,
            self.lanes.snapshot(),
            tuple(self.delays.timers),
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
            tuple(self.made_due),
        )

    def restore(self, fact: LogState) -> None:
        """Take over what a snapshot holds."""
        self.start, self.end = fact.start_offset, fact.end_offset
        self.payload_bytes, self.last_ms = fact.payload_bytes, fact.last_ms
        if fact.lanes:
            self._own_lanes().restore(fact.lanes)
        self.delays = Delays(fact.delayed) if fact.delayed else NO_DELAYS
        self.deadline_offsets, self.deadlines_ms = _numbers(fact.deadline_offsets), _numbers(fact.deadlines_ms)
        self.timeout_offsets, self.timeouts_ms = _numbers(fact.timeout_offsets), _numbers(fact.timeouts_ms)
        if self.topic:
            self.size_offsets, self.size_totals = array("q", fact.size_offsets), array("q", fact.size_totals)
        for first, end in fact.tracked:
            self._track(first, end)
        for first, end in (*fact.lost, *fact.cancelled):
            for offset in range(first, end):
                self.cancel(offset)
        for offset, group in fact.directed:
            self.direct(offset, group)
        if fact.made_due:
            self.make_due(fact.made_due)
        self.ended_ms = fact.ended_ms
        self.low_floor = self.start
        self.fair_from = fact.fair_from


def _numbers(packed: bytes) -> array[int]:
    return array("q", packed) if packed else NO_NUMBERS


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
