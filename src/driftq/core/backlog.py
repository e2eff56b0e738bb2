"""What holds the producers of a partition up: the slowest group that counts, and how much waits for it.

Back-pressure counts everything at and above the lowest floor. An idle group (see `limits.groups_idle_ms`) does not
count: it keeps its place, and counts again when it has caught up. Without a group that counts, retention alone rules.
"""

from __future__ import annotations

from typing import NamedTuple

from driftq.core.groups import Group
from driftq.core.limits import Limits
from driftq.core.logs import Log
from driftq.core.state import State


class Backlog(NamedTuple):
    """What waits in a partition for its slowest group. `lag` leaves out what is settled above the group's floor."""

    group: Group
    floor: int
    messages: int
    payload_bytes: int
    lag: int
    messages_max: int
    bytes_max: int

    @property
    def used(self) -> float:
        """The share of the limit that is taken: of messages or of bytes, whichever is more. At 1 nothing more fits."""
        return max(self.messages / self.messages_max, self.payload_bytes / self.bytes_max)

    def remedies(self) -> list[str]:
        """Commands that help, the most final first."""
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


def limits_of(state: State, limits: Limits, log: Log) -> tuple[int, int]:
    """(messages, bytes) that may wait in a partition."""
    config = state.topics[log.topic].config
    return config.backlog_messages_max or limits.partition_messages, config.backlog_bytes_max or limits.partition_bytes


def backlog_of(state: State, limits: Limits, log: Log) -> Backlog | None:
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


def has_caught_up(state: State, limits: Limits, group: Group) -> bool:
    """Whether a group would hold nobody up if it counted."""
    for progress in group.progress:
        log = state.logs[progress.log_id]
        messages_max, bytes_max = limits_of(state, limits, log)
        if log.end - progress.floor > messages_max or log.bytes_from(progress.floor) > bytes_max:
            return False
    return True
