"""Empties a topic before it is deleted or purged, if many of its jobs belong to batches.

The end of a job is the end of a member of its batch, in the same frame: 100,000 of them in one frame would hold the
loop for a tenth of a second. So the log is trimmed in slices first, as retention does. A crash in between leaves a
topic that has lost its oldest messages, and repeating the call ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model.replies import Rejected
from driftq.core.state.groups import HISTORY_SUFFIX

if TYPE_CHECKING:
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine

MEMBERS_AT_ONCE = 5_000


async def end_most_members(engine: Engine, name: str) -> bool:
    """End the members of batches in a topic, but for some thousands of each partition. Returns whether there were
    more; if something prevents it, the call that follows is refused for the same reason."""
    if name.endswith(HISTORY_SUFFIX):
        return False  # it may be refused to delete it
    # The newest state, not the durable one: a change waits for no sync before it is decided.
    ends = _ends(engine.latest_state, name)
    for partition, end in ends.items():
        while (cut := _cut(engine.latest_state, name, partition, end)) is not None:
            if isinstance(await engine.submit(c.TrimTopic(name, partition, cut)), Rejected):
                break
    return bool(ends)


def _ends(state: State, name: str) -> dict[int, int]:
    """Partitions with many members of batches, and where they end now."""
    topic = state.topics.get(name)
    if topic is None or topic.dead_of:
        return {}
    logs = (state.logs[log_id] for log_id in topic.log_ids)
    return {log.partition: log.end for log in logs if _first(state, log.log_id) is not None}


def _cut(state: State, name: str, partition: int, end: int) -> int | None:
    """Where the next slice ends; None if the rest is small, or the topic is gone."""
    topic = state.topics.get(name)
    first = _first(state, topic.log_ids[partition]) if topic is not None else None
    return first + MEMBERS_AT_ONCE if first is not None and first + MEMBERS_AT_ONCE < end else None


def _first(state: State, log_id: int) -> int | None:
    return state.job_batches.first_of_many(log_id, MEMBERS_AT_ONCE)
