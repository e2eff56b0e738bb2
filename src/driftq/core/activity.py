"""Which groups are used, and which of them hold producers up. The facts (tags 18 and 19) evolve as `core.facts` says.

A group that is behind and not used for long becomes idle: it keeps its progress, and does not count for back-pressure
until it has caught up. When that is so the sweep and the claim decide; this module folds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.facts import Fact
from driftq.core.groups import Group
from driftq.core.logs import Log


class GroupIdled(Fact, tag=18, frozen=True):
    """A group that is behind did nothing for so long that it holds producers up no more. It keeps its progress."""

    group_id: int
    at_ms: int


class GroupCaughtUp(Fact, tag=19, frozen=True):
    """An idle group claims again, and what waits for it is within the limits: it counts for back-pressure again."""

    group_id: int
    at_ms: int


class GroupActivity:
    """Folds what makes groups idle or not."""

    __slots__ = ("_groups", "_logs", "folds")

    def __init__(self, groups: dict[int, Group], logs: dict[int, Log]) -> None:
        self._groups = groups
        self._logs = logs
        self.folds: dict[type, Callable[[Any], None]] = {GroupIdled: self._idled, GroupCaughtUp: self._caught_up}

    def _idled(self, fact: GroupIdled) -> None:
        self._groups[fact.group_id].idle = True

    def _caught_up(self, fact: GroupCaughtUp) -> None:
        group = self._groups[fact.group_id]
        group.idle = False
        group.use(fact.at_ms)
        for progress in group.progress:
            log = self._logs[progress.log_id]
            log.low_floor = min(log.low_floor, progress.floor)

    def lowest_floor(self, log: Log) -> int:
        """The floor of the slowest group that reads a log and counts; its end if none does."""
        counted = (group for group_id in log.readers if not (group := self._groups[group_id]).idle)
        return min((group.progress[log.partition].floor for group in counted), default=log.end)
