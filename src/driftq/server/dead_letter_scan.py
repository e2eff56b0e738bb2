"""Reading the dead letters of a topic that were not redriven.

A redriven letter stays in its log, settled for the group `driftq.redrive`. So the letters that wait are those which
that group has not settled; ranges that were redriven are skipped without reading them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.groups import DEAD_PREFIX, Topic
from driftq.core.transitions.lookups import no_such_topic
from driftq.wire.dead_letters import REDRIVE_GROUP
from driftq.wire.message import DeadLetter, Head, read_head
from driftq.wire.records import Record, read_header, unpack

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine

READ_BYTES = 1 << 16

Place = tuple[int, int]  # partition and offset
BEFORE_ALL: Place = (0, -1)


class Letter(NamedTuple):
    """A dead letter in its log."""

    log_id: int
    partition: int
    offset: int
    at_ms: int
    record: Record
    head: Head

    @property
    def origin(self) -> DeadLetter:
        assert self.head.dlq is not None
        return self.head.dlq


def dead_topic(state: State, name: str) -> Topic | Rejected:
    """The dead-letter topic of a topic. Its own name works as well."""
    dead = name if name.startswith(DEAD_PREFIX) else DEAD_PREFIX + name
    return state.topics.get(dead) or no_such_topic(name)


def waiting_letters(engine: Engine, state: State, topic: Topic, after: Place = BEFORE_ALL) -> Iterator[Letter]:
    """The letters that were not redriven, by partition and offset, after a place."""
    for partition, log_id in enumerate(topic.log_ids):
        log = state.logs.get(log_id)
        if log is None or partition < after[0]:
            continue
        end = engine.durable_end(log_id)
        first = after[1] + 1 if partition == after[0] else 0
        offset = _next_waiting(topic, partition, max(log.start, first))
        while offset < end and log_id in state.logs:
            for batch in engine.read(log_id, offset, end, READ_BYTES):
                header = read_header(batch)
                for at, record in enumerate(unpack(batch, header), header.first_offset):
                    if at >= offset and _next_waiting(topic, partition, at) == at:
                        yield Letter(log_id, partition, at, header.at_ms, record, read_head(record.head))
                offset = header.end_offset
            offset = _next_waiting(topic, partition, offset)


def waiting_count(state: State, topic: Topic) -> int:
    """How many dead letters of a topic were not redriven."""
    dead = state.topics.get(DEAD_PREFIX + topic.name)
    if dead is None:
        return 0
    group = dead.groups.get(REDRIVE_GROUP)
    count = 0
    for partition, log_id in enumerate(dead.log_ids):
        start, end = state.logs[log_id].start, state.logs[log_id].end
        if group is not None:
            progress = group.progress[partition]
            count += max(0, end - max(start, progress.floor) - progress.settled.count)
        else:
            count += end - start
    return count


def _next_waiting(topic: Topic, partition: int, offset: int) -> int:
    """The first offset from here on that was not redriven."""
    group = topic.groups.get(REDRIVE_GROUP)
    if group is None:
        return offset
    progress = group.progress[partition]
    return progress.settled.next_outside(max(offset, progress.floor))
