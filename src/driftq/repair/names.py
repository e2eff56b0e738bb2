"""Names for numbers: facts refer to logs and groups by number, people by topic, partition, path and group.

`Names` learns from facts, those of a snapshot included. It costs one entry for each log and group and none for records.
Numbers are never reused, so a name stays right once it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from driftq.core.model import facts as f
from driftq.core.model import snapshot_facts as i
from driftq.core.model.effect_facts import Published, Staged
from driftq.core.model.stream_facts import StreamCreated
from driftq.core.state.groups import DEAD_PREFIX

if TYPE_CHECKING:
    from driftq.core.state.state import State


class Names:
    """The names of logs and groups, by number."""

    def __init__(self) -> None:
        self.partitions: dict[int, tuple[str, int]] = {f.STAGING_LOG: ("(staging)", 0)}  # log: topic and partition
        self.paths: dict[int, str] = {}  # log: path of the stream
        self.groups: dict[int, tuple[str, str]] = {}  # group: topic and name

    @classmethod
    def of(cls, state: State) -> Names:
        names = cls()
        for topic in state.topics.values():
            names._partitions(topic.name, topic.log_ids)
            for group in topic.groups.values():
                names.groups[group.group_id] = topic.name, group.name
        for log_id, stream in state.streams.by_log.items():
            names.paths[log_id] = stream.path
        return names

    def note(self, fact: f.Fact) -> None:
        match fact:
            case f.TopicCreated():
                first, middle = fact.first_log_id, fact.first_log_id + fact.partitions
                self._partitions(fact.topic, range(first, middle))
                self._partitions(DEAD_PREFIX + fact.topic, range(middle, middle + fact.partitions))
            case i.TopicState():
                self._partitions(fact.topic, fact.log_ids)
            case StreamCreated():
                self.paths[fact.log_id] = fact.path
            case i.StreamState():
                self.paths[fact.created.log_id] = fact.created.path
            case i.PlainStreamsState():
                self.paths.update((log[0], path) for log, path in zip(fact.logs(), fact.paths, strict=True))
            case f.GroupCreated() | i.GroupState():
                self.groups[fact.group_id] = fact.topic, fact.group
            case _:
                pass

    def _partitions(self, topic: str, log_ids: Iterable[int]) -> None:
        for partition, log_id in enumerate(log_ids):
            self.partitions[log_id] = topic, partition

    def log(self, log_id: int) -> str:
        """`orders/0` for a partition, the path for a stream, `log 7` if the name is not known."""
        if log_id in self.partitions:
            topic, partition = self.partitions[log_id]
            return topic if log_id == f.STAGING_LOG else f"{topic}/{partition}"
        return self.paths.get(log_id) or f"log {log_id}"

    def topic(self, log_id: int) -> str:
        """The topic or path that a log belongs to; empty if it is not known."""
        return self.partitions.get(log_id, ("", 0))[0] or self.paths.get(log_id, "")

    def group(self, group_id: int) -> str:
        return self.groups.get(group_id, ("", f"group {group_id}"))[1]


def logs_of(fact: f.Fact) -> tuple[int, ...]:
    """The logs that a fact is about."""
    match fact:
        case f.TopicCreated():
            return tuple(range(fact.first_log_id, fact.first_log_id + 2 * fact.partitions))
        case f.TopicDeleted() | i.TopicState():
            return fact.log_ids
        case Staged():
            return fact.target_log_id, f.STAGING_LOG
        case Published():
            return tuple(part.log_id for part in fact.parts)
        case i.PlainStreamsState():
            return tuple(log[0] for log in fact.logs())
        case i.StreamState():
            return (fact.created.log_id,)
        case _:
            log_id = getattr(fact, "log_id", None)
            return (log_id,) if log_id is not None else ()
