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
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView

MEMBERS_AT_ONCE = 5_000


async def end_most_members(engine: Engine, name: str) -> bool:
    """End the members of batches in a topic, but for some thousands of each partition. Returns whether there were
    more; if something prevents it, the call that follows is refused for the same reason."""
    if name.endswith(HISTORY_SUFFIX):
        return False  # it may be refused to delete it
    ends = await engine.queries.result(lambda view: _ends(view, name))
    for partition, end in ends.items():
        while (cut := await engine.queries.result(lambda view, p=partition, e=end: _cut(view, name, p, e))) is not None:  # type: ignore[misc]
            if isinstance(await engine.submit(c.TrimTopic(name, partition, cut)), Rejected):
                break
    return bool(ends)


def _ends(view: StateView, name: str) -> dict[int, int]:
    """Partitions with many members of batches, and where they end now."""
    topic = view.state.topics.get(name)
    if topic is None or topic.dead_of:
        return {}
    logs = (view.state.logs[log_id] for log_id in topic.log_ids)
    return {log.partition: log.end for log in logs if view.state.job_batches.has_many_in(log.log_id, MEMBERS_AT_ONCE)}


def _cut(view: StateView, name: str, partition: int, end: int) -> int | None:
    """Where the next slice ends; None if the rest is small, or the topic is gone."""
    topic, batches = view.state.topics.get(name), view.state.job_batches
    if topic is None or not batches.has_many_in(topic.log_ids[partition], MEMBERS_AT_ONCE):
        return None
    cut = min(batches.jobs[topic.log_ids[partition]]) + MEMBERS_AT_ONCE
    return cut if cut < end else None
