"""How much a group has left to do in a partition: everything unsettled, but for the tasks that it never claims.

The cost is that of a look at each lane, never at each message. Reads the state, changes nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

from driftq.core.groups import Group
from driftq.core.logs import Log
from driftq.core.progress import Progress


class Lag(NamedTuple):
    """`messages` are to be done, `unclaimed` are of tasks or labels that the group never asked for; `oldest` is the
    offset of the message that has waited longest, of those that are to be done."""

    messages: int
    unclaimed: int
    oldest: int


def lag_of(group: Group, log: Log) -> Lag:
    progress = group.progress[log.partition]
    unsettled = max(0, log.end - progress.floor - progress.settled.count)
    if not group.filters or not unsettled:
        return Lag(unsettled, 0, progress.floor)
    unclaimed = 0
    oldest = [*progress.held.firsts[:1], *(progress.ready.lowest() or ())[:1]]
    for key, lane in log.lanes.items():
        if not group.claims(key.task, key.label):
            unclaimed += _from(lane.offsets, progress.floor) - _from(lane.withdrawn, progress.floor)
        elif lane.offsets[-1] >= (cursor := max(progress.lane_cursors.get(key, 0), progress.floor)):
            oldest.append(lane.offsets[bisect_left(lane.offsets, cursor)])
    if not group.claims("", ""):
        unclaimed += _plain(log, progress)
    elif progress.cursor < log.end:
        oldest.append(max(progress.cursor, progress.floor))
    return Lag(max(0, unsettled - unclaimed), unclaimed, min(oldest, default=progress.floor))


def _from(offsets: array[int], floor: int) -> int:
    return len(offsets) - bisect_left(offsets, floor)


def _plain(log: Log, progress: Progress) -> int:
    """The messages of the default lane from the floor on."""
    marked = _from(log.marked_offsets, progress.floor) + _from(log.withdrawn, progress.floor)
    lost = sum(end - max(first, progress.floor) for first, end in log.lost if end > progress.floor)
    return max(0, log.end - progress.floor - marked - lost)
