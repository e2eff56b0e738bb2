"""Whether a message is unfinished, and which groups a message is for: what decides how long a job id is taken.

A group that only claims other tasks or labels does not count. A message that no group claims is unfinished: it waits
for one. Reads the state, changes nothing.
"""

from __future__ import annotations

from driftq.core.groups import Group
from driftq.core.logs import Log


class JobTenure:
    """The questions that `core.produced_keys` asks."""

    __slots__ = ("_groups", "_logs")

    def __init__(self, logs: dict[int, Log], groups: dict[int, Group]) -> None:
        self._logs = logs
        self._groups = groups

    def topic_of(self, log_id: int) -> str:
        log = self._logs.get(log_id)
        return log.topic if log is not None else ""

    def ended_ms(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        return log.ended_ms if log is not None else 0

    def is_unfinished(self, log_id: int, offset: int) -> bool:
        log = self._logs.get(log_id)
        if log is None or offset < log.start or offset in log.cancelled or offset in log.lost:
            return False
        claimed = False
        for group_id in log.readers:
            group = self._groups[group_id]
            if claims(group, log, offset):
                claimed = True
                if not group.progress[log.partition].is_settled(offset):
                    return True
        return not claimed


def claims(group: Group, log: Log, offset: int) -> bool:
    """Whether a group asks for the lane of a message, as far as its claims have shown."""
    if not group.filters:
        return True
    lane = log.lane_of(offset)
    return group.claims(lane.task, lane.label) if lane is not None else group.claims("", "")
