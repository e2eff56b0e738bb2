"""Topics, the groups that read them, and which groups are idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model.facts import GroupCaughtUp, GroupIdled, TopicConfig
from driftq.wire.namespaces import DEAD_PREFIX

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

__all__ = ["DEAD_PREFIX"]
HISTORY_SUFFIX = ".history"  # of the companion topic that records what happens to a topic's messages
FILTERS_MAX = 100

Filter = tuple[str | None, str | None]  # the task and the label of a claim; None is any
EVERYTHING: Filter = (None, None)


class Topic:
    """A topic: its partitions, its settings and its groups."""

    __slots__ = ("config", "created_ms", "dead_of", "groups", "log_ids", "name")

    def __init__(self, name: str, log_ids: tuple[int, ...], created_ms: int, config: TopicConfig, dead_of: str) -> None:
        self.name = name
        self.log_ids = log_ids  # by partition
        self.created_ms = created_ms
        self.config = config
        self.dead_of = dead_of  # for a dead-letter topic: the topic whose dead letters it holds; else ""
        self.groups: dict[str, Group] = {}  # by name


class Group:
    """A consumer group of a topic, with its progress in each partition."""

    __slots__ = (
        "active_ms", "commits_offsets", "created_ms", "filters", "group_id", "idle", "name", "paused", "progress",
        "topic", "turn",
    )  # fmt: skip

    def __init__(self, group_id: int, topic: str, name: str, created_ms: int, commits_offsets: bool = False) -> None:
        self.group_id = group_id  # never reused
        self.topic = topic
        self.name = name
        self.created_ms = created_ms
        self.active_ms = created_ms  # the last time it was created, moved, claimed from or acked
        self.commits_offsets = commits_offsets  # its reader commits offsets; nothing is claimed from it
        self.idle = False  # unused and behind: it does not count for back-pressure
        self.paused = False  # claims get nothing
        self.turn = 0  # the partition that the next claim looks at first
        self.progress: list[Progress] = []  # by partition
        self.filters: dict[Filter, None] = {}  # the filters of its claims so far; empty: everything, or not known

    def use(self, at_ms: int) -> None:
        if at_ms > self.active_ms:
            self.active_ms = at_ms

    def claims(self, task: str, label: str) -> bool:
        """Whether its claims ask for messages of this task and label."""
        if not self.filters:
            return True
        return any(by_task in (None, task) and by_label in (None, label) for by_task, by_label in self.filters)


def link_history(topics: dict[str, Topic], history_logs: dict[int, int], name: str) -> None:
    """Connect a topic with its history topic. They may be created and configured in any order."""
    topic, companion = topics.get(name), topics.get(name + HISTORY_SUFFIX)
    if topic is None:
        return
    for log_id in topic.log_ids:
        history_logs.pop(log_id, None)
    if companion is not None and topic.config.history:
        history_logs.update(zip(topic.log_ids, companion.log_ids, strict=True))


# --- idle groups ---


class GroupActivity:
    """Which groups count for back-pressure: folds the facts that make a group idle or end that."""

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
        """The floor of the slowest group that counts; the end of the log if there is none."""
        counted = (group for group_id in log.readers if not (group := self._groups[group_id]).idle)
        return min((group.progress[log.partition].floor for group in counted), default=log.end)
