"""The groups that read topics, and the topics themselves: names to numbers, nothing that judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model.facts import GroupCaughtUp, GroupIdled, TopicConfig

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

DEAD_PREFIX = "dlq."
HISTORY_SUFFIX = ".history"  # of the companion that tells what happens to a topic's messages
FILTERS_MAX = 100

Filter = tuple[str | None, str | None]  # the task and the label of a claim; None is any
EVERYTHING: Filter = (None, None)


class Topic:
    """A name, its partitions' logs and its own settings. A dead-letter topic knows whose it is."""

    __slots__ = ("config", "created_ms", "dead_of", "groups", "log_ids", "name")

    def __init__(self, name: str, log_ids: tuple[int, ...], created_ms: int, config: TopicConfig, dead_of: str) -> None:
        self.name = name
        self.log_ids = log_ids
        self.created_ms = created_ms
        self.config = config
        self.dead_of = dead_of
        self.groups: dict[str, Group] = {}


class Group:
    """A name under which a topic is read, with its progress in each partition."""

    __slots__ = (
        "active_ms", "created_ms", "filters", "group_id", "idle", "name", "paused", "progress", "topic", "turn",
    )  # fmt: skip

    def __init__(self, group_id: int, topic: str, name: str, created_ms: int) -> None:
        self.group_id = group_id
        self.topic = topic
        self.name = name
        self.created_ms = created_ms
        self.active_ms = created_ms  # when it was made or moved, or when a consumer last claimed or acked
        self.idle = False  # it is behind and does nothing: it holds producers up no more
        self.paused = False
        self.turn = 0  # the partition a claim looks at first; moves on with every claim
        self.progress: list[Progress] = []
        self.filters: dict[Filter, None] = {}  # what its claims asked for so far; empty: everything, or not known

    def use(self, at_ms: int) -> None:
        if at_ms > self.active_ms:
            self.active_ms = at_ms

    def claims(self, task: str, label: str) -> bool:
        """Whether it asks for messages of this task and label."""
        if not self.filters:
            return True
        return any(each[0] in (None, task) and each[1] in (None, label) for each in self.filters)


def link_history(topics: dict[str, Topic], history_logs: dict[int, int], name: str) -> None:
    """A topic and its companion come and change in any order."""
    topic, companion = topics.get(name), topics.get(name + HISTORY_SUFFIX)
    if topic is None:
        return
    for log_id in topic.log_ids:
        history_logs.pop(log_id, None)
    if companion is not None and topic.config.history:
        history_logs.update(zip(topic.log_ids, companion.log_ids, strict=True))


# --- Which groups are used, and which of them hold producers up. The facts (tags 18 and 19) evolve as
# `core.model.facts` says


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
