"""Backlog and lag: how much waits in a partition for a group.

Back-pressure counts everything at and above the lowest floor of the groups that count. An idle group does not count
(see `limits.groups_idle_ms`): it keeps its progress, and counts again when it has caught up. If no group counts, only
retention bounds the log."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State


class Backlog(NamedTuple):
    """What waits in a partition for its slowest group. `lag` does not count what is settled above the group's floor."""

    group: Group
    floor: int
    messages: int
    payload_bytes: int
    lag: int
    messages_max: int
    bytes_max: int

    @property
    def used(self) -> float:
        """The used share of the limit of messages or bytes, whichever is higher. At 1 produces are refused."""
        return max(self.messages / self.messages_max, self.payload_bytes / self.bytes_max)

    def remedies(self) -> list[str]:
        """Commands that help: delete the group, skip its backlog, raise the limit."""
        topic, name = self.group.topic, self.group.name
        by_bytes = self.payload_bytes / self.bytes_max > self.messages / self.messages_max
        limit = f"--backlog-messages-max {2 * self.messages_max}"
        if by_bytes:
            limit = f"--backlog-bytes-max {2 * self.bytes_max}"
        return [
            f"driftq groups delete {topic} {name}",
            f"driftq groups seek {topic} {name} latest",
            f"driftq topics set {topic} {limit}",
        ]


def limits_of(state: State, limits: BrokerLimits, log: Log) -> tuple[int, int]:
    """(messages, bytes) that may wait in a partition."""
    config = state.topics[log.topic].config
    return config.backlog_messages_max or limits.partition_messages, config.backlog_bytes_max or limits.partition_bytes


def backlog_of(state: State, limits: BrokerLimits, log: Log) -> Backlog | None:
    """None if no group counts."""
    counted = [group for group_id in log.readers if not (group := state.groups[group_id]).idle]
    if not counted:
        return None
    slowest = min(counted, key=lambda group: group.progress[log.partition].floor)
    progress = slowest.progress[log.partition]
    waiting = log.end - progress.floor
    return Backlog(
        slowest,
        progress.floor,
        waiting,
        log.bytes_from(progress.floor),
        waiting - progress.settled.count,
        *limits_of(state, limits, log),
    )


def limiting_backlog(state: State, limits: BrokerLimits, log: Log) -> Backlog | None:
    """None if the backlog limits no producer: no active group reads the partition, or only the broker writes to it."""
    return None if state.topics[log.topic].dead_of else backlog_of(state, limits, log)


def has_caught_up(state: State, limits: BrokerLimits, group: Group) -> bool:
    """Whether a group is within the limits in every partition."""
    for progress in group.progress:
        log = state.logs[progress.log_id]
        messages_max, bytes_max = limits_of(state, limits, log)
        if log.end - progress.floor > messages_max or log.bytes_from(progress.floor) > bytes_max:
            return False
    return True


# --- lag: everything that a group has not settled, without the tasks that it never claims ---


class Lag(NamedTuple):
    """`messages` are left to do, `unclaimed` are of tasks or labels that the group never asked for, `oldest` is the
    first offset that is left to do."""

    messages: int
    unclaimed: int
    oldest: int


def lag_of(group: Group, log: Log) -> Lag:
    progress = group.progress[log.partition]
    unsettled = max(0, log.end - progress.floor - progress.settled.count)
    if not group.filters or not unsettled:
        return Lag(unsettled, 0, progress.floor)
    unclaimed = 0
    held_from = progress.held.lowest()
    oldest = [*(() if held_from is None else (held_from,)), *(progress.ready.lowest() or ())[:1]]
    for key, lane in log.lanes.by_key.items():
        if not group.claims(key.task, key.label):
            unclaimed += _count_from(lane.offsets, progress.floor) - _count_from(lane.withdrawn, progress.floor)
        elif lane.offsets[-1] >= (cursor := max(progress.lane_cursors.get(key, 0), progress.floor)):
            oldest.append(lane.offsets[bisect_left(lane.offsets, cursor)])
    if not group.claims("", ""):
        unclaimed += _default_lane_count(log, progress)
    elif progress.cursor < log.end:
        oldest.append(max(progress.cursor, progress.floor))
    return Lag(max(0, unsettled - unclaimed), unclaimed, min(oldest, default=progress.floor))


def _count_from(offsets: array[int], floor: int) -> int:
    return len(offsets) - bisect_left(offsets, floor)


def _default_lane_count(log: Log, progress: Progress) -> int:
    """How many messages of the default lane lie at or above the floor."""
    marked = _count_from(log.lanes.offsets, progress.floor) + _count_from(log.lanes.withdrawn, progress.floor)
    return max(0, log.end - progress.floor - marked)
