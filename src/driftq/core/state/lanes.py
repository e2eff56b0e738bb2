"""Moves the cursors of a group past messages that no claim will take: settled ones, and delayed ones that wait.

A lane may hold a million delayed messages. Each is passed once, when it is appended or settled, and not by every claim.
Cursors only rise, so all passes together cost one step per message.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from driftq.core.model.facts import ACKED, LaneKey, Leased, RecordSchedule, Settled

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress


def pass_plain(progress: Progress, log: Log) -> None:
    """Move the cursor of the default lane past what is settled or in another lane."""
    while True:
        position = max(progress.cursor, progress.floor)
        skipped = progress.settled if position in progress.settled else log.marked
        next_range = skipped.above(position)
        if next_range is None or next_range[0] > position:
            return
        progress.cursor = next_range[1]


def pass_lane(progress: Progress, log: Log, key: LaneKey) -> None:
    """Move the cursor of an explicit lane past what is settled or has an entry."""
    lane = log.lanes.get(key)
    if lane is None:
        return
    offsets, entries, settled = lane.offsets, progress.entries, progress.settled
    first = index = bisect_left(offsets, max(progress.lane_cursors.get(key, 0), progress.floor))
    while index < len(offsets) and (offsets[index] in entries or offsets[index] in settled):
        index += 1
    if index > first:
        progress.lane_cursors[key] = offsets[index - 1] + 1


def pass_delayed(progress: Progress, log: Log, mark: RecordSchedule) -> None:
    pass_lane(progress, log, LaneKey(mark.priority, mark.task, mark.label, mark.tenant))


def pass_leased(progress: Progress, log: Log, fact: Leased) -> None:
    if fact.lane is not None:
        pass_lane(progress, log, LaneKey(*fact.lane))


def pass_all(progress: Progress, log: Log) -> None:
    pass_plain(progress, log)
    for key in log.lanes:
        pass_lane(progress, log, key)


def pass_settled(progress: Progress, log: Log, fact: Settled) -> None:
    """Move the cursors of the lanes from which something was settled without a delivery. An acked message was
    delivered, so its cursor is past it already."""
    if fact.how == ACKED:
        return
    pass_plain(progress, log)
    for first, end in fact.ranges:
        for key in {log.lane_of(offset): None for offset in log.marked.within(first, end)}:
            if key is not None:
                pass_lane(progress, log, key)
