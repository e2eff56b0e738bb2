"""Lanes: which records of a log belong to an explicit lane, and how the cursors of a group move along the lanes.

A log has one `LaneIndex` (see the picture in `core.state.logs`). The default lane is every offset that no explicit lane
has; it costs nothing. A record of an explicit lane costs sixteen bytes in its lane and twelve in the index.

A group has a cursor for each lane in its progress. The `pass_*` functions move cursors past messages that no claim will
take: settled ones, and delayed ones that wait. A lane may hold a million delayed messages. Each is passed once, when it
is appended or settled, and not by every claim. Cursors only rise, so all passes together cost one step per message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING

from driftq.core.model.facts import ACKED, LaneKey, Leased, Settled
from driftq.core.model.ranges import RangeSet
from driftq.core.model.snapshot_facts import LaneState

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

PASSED_AT_ONCE = 64  # delayed messages: a group that starts may meet a million of them
SHARED_TENANT = "\x1fshared"  # tenants of a fair topic without a lane of their own share this one


class Lane:
    """The offsets of one explicit lane and when each was appended, both ascending."""

    __slots__ = ("number", "offsets", "times", "withdrawn")

    def __init__(self, number: int) -> None:
        self.number = number  # its index in `LaneIndex.keys`
        self.offsets = array("q")
        self.times = array("q")  # when each was appended: a lane's head gains priority by waiting
        self.withdrawn = array("q")  # offsets of the lane that not every group gets: cancelled, or for one group only


class LaneIndex:
    """The lanes of one log."""

    __slots__ = ("by_key", "keys", "marked", "numbers", "offsets", "tenants", "urgent", "withdrawn")

    def __init__(self) -> None:
        self.by_key: dict[LaneKey, Lane] = {}  # the explicit lanes that have records
        self.keys: list[LaneKey] = []  # by number; the keys of empty lanes are dropped when there are many
        self.marked = RangeSet()  # offsets of explicit lanes
        self.offsets = array("q")  # the same offsets, ascending ...
        self.numbers = array("I")  # ... and for each the number of its lane
        self.urgent = False  # whether a lane has a priority
        self.tenants: set[str] = set()  # tenants that have a lane
        self.withdrawn = array("q")  # offsets of the default lane that are cancelled or directed

    def add(self, key: LaneKey, first: int, end: int, at_ms: int) -> None:
        """Add the records [first, end), above all others, to an explicit lane."""
        lane = self.by_key.get(key) or self._add_lane(key)
        count = end - first
        offsets = range(first, end)
        lane.offsets.extend(offsets)
        lane.times.extend(repeat(at_ms, count))
        self.marked.add(first, end)
        self.offsets.extend(offsets)
        self.numbers.extend(repeat(lane.number, count))

    def key_of(self, offset: int) -> LaneKey | None:
        """The explicit lane of an offset, or None for the default lane."""
        index = bisect_left(self.offsets, offset)
        if index < len(self.offsets) and self.offsets[index] == offset:
            return self.keys[self.numbers[index]]
        return None

    def withdraw(self, offset: int) -> None:
        """Not every group gets this offset."""
        key = self.key_of(offset)
        withdrawn = self.by_key[key].withdrawn if key is not None else self.withdrawn
        index = bisect_left(withdrawn, offset)
        if index == len(withdrawn) or withdrawn[index] != offset:
            withdrawn.insert(index, offset)

    def trim(self, start: int) -> None:
        """Records below `start` are gone."""
        self.marked.discard(0, start)
        del self.withdrawn[: bisect_left(self.withdrawn, start)]
        for lane in self.by_key.values():
            cut = bisect_left(lane.offsets, start)
            del lane.offsets[:cut], lane.times[:cut], lane.withdrawn[: bisect_left(lane.withdrawn, start)]
        self.by_key = {key: lane for key, lane in self.by_key.items() if lane.offsets}
        cut = bisect_left(self.offsets, start)
        del self.offsets[:cut], self.numbers[:cut]
        if len(self.keys) > 64 + 2 * len(self.by_key):
            self._number_lanes()
        self.urgent = any(key.priority for key in self.by_key)
        self.tenants = {key.tenant for key in self.by_key if key.tenant}

    def snapshot(self) -> tuple[LaneState, ...]:
        return tuple(LaneState(*key, lane.offsets.tobytes(), lane.times.tobytes()) for key, lane in self.by_key.items())

    def restore(self, states: Iterable[LaneState]) -> None:
        for state in states:
            lane = self._add_lane(LaneKey(state.priority, state.task, state.label, state.tenant))
            lane.offsets.frombytes(state.offsets)
            lane.times.frombytes(state.times)
        self._number_lanes()
        for offset in self.offsets:
            self.marked.add(offset, offset + 1)

    def _add_lane(self, key: LaneKey) -> Lane:
        lane = self.by_key[key] = Lane(len(self.keys))
        self.keys.append(key)
        self.urgent = self.urgent or key.priority > 0
        if key.tenant:
            self.tenants.add(key.tenant)
        return lane

    def _number_lanes(self) -> None:
        """Renumber the lanes without gaps and rebuild the index of offsets."""
        self.keys = list(self.by_key)
        for number, lane in enumerate(self.by_key.values()):
            lane.number = number
        index = sorted((offset, lane.number) for lane in self.by_key.values() for offset in lane.offsets)
        self.offsets = array("q", (offset for offset, _ in index))
        self.numbers = array("I", (number for _, number in index))


# --- the cursors of a group ---


def start(progress: Progress, log: Log, group: str, at_ms: int) -> None:
    """A group starts at its floor: delayed messages wait for their time, and what it never gets is settled."""
    progress.delay_from_start(log.delays.ahead(at_ms, progress.floor))
    progress.pass_over(log.passed_over(group))
    pass_all(progress, log)


def pass_plain(progress: Progress, log: Log) -> None:
    """Move the cursor of the default lane past what is settled or in another lane."""
    while True:
        position = max(progress.cursor, progress.floor)
        skipped = progress.settled if position in progress.settled else log.lanes.marked
        next_range = skipped.above(position)
        if next_range is None or next_range[0] > position:
            return
        progress.cursor = next_range[1]


def pass_lane(progress: Progress, log: Log, key: LaneKey) -> None:
    """Move the cursor of an explicit lane past what is settled or has an entry."""
    lane = log.lanes.by_key.get(key)
    if lane is None:
        return
    offsets, entries, settled = lane.offsets, progress.entries, progress.settled
    waits = entries.delayed.__contains__
    first = index = bisect_left(offsets, max(progress.lane_cursors.get(key, 0), progress.floor))
    while index < len(offsets) and (offsets[index] in entries or offsets[index] in settled):
        many = offsets[index : index + PASSED_AT_ONCE]
        index += len(many) if all(map(waits, many)) else 1
    if index > first:
        progress.lane_cursors[key] = offsets[index - 1] + 1


def pass_leased(progress: Progress, log: Log, fact: Leased) -> None:
    if fact.lane is not None:
        pass_lane(progress, log, LaneKey(*fact.lane))


def pass_all(progress: Progress, log: Log) -> None:
    pass_plain(progress, log)
    for key in log.lanes.by_key:
        pass_lane(progress, log, key)


def pass_settled(progress: Progress, log: Log, fact: Settled) -> None:
    """Move the cursors of the lanes from which something was settled without a delivery. An acked message was
    delivered, so its cursor is past it already."""
    if fact.how == ACKED:
        return
    pass_plain(progress, log)
    for first, end in fact.ranges:
        for key in {log.lanes.key_of(offset): None for offset in log.lanes.marked.within(first, end)}:
            if key is not None:
                pass_lane(progress, log, key)
