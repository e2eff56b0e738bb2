"""The progress of a query as a consumer group: what makes it visible in lag and in back-pressure.

The checkpoint decides where a query is; the group follows it. Spark asks for the next batch from where the last one
ended, and by then its commit log has that batch: this is when the group is moved. Spark's own call to `commit` comes
one batch later, so a query that has read everything would have a lag until the next record arrives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from driftq.client.calls import admin
from driftq.client.errors import NotFound
from driftq.spark.source.discovery import planner_transport
from driftq.spark.source.offsets import LogSpan, Offsets, ReadProgress, positions

if TYPE_CHECKING:
    from driftq.spark.source.options import ReadOptions

CALL_PARTITIONS_MAX = 2_000  # of one call; a topic has fewer, and is never divided


class GroupProgress:
    """Keeps the group of a query where its checkpoint is. Does nothing without the option `group`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._committed: Offsets = {}

    def commit(self, progress: ReadProgress, spans: Sequence[LogSpan]) -> None:
        """The query has finished everything before `progress`. Makes no call if that is known already."""
        if not self._options.group:
            return
        position = positions(progress, spans)
        if position == self._committed:
            return
        moved = {log[0] for log, offset in position.items() if self._committed.get(log) != offset}
        transport = planner_transport(self._options)
        with contextlib.suppress(NotFound):  # a topic was deleted just now: the next discovery leaves it out
            for part in _calls({log: offset for log, offset in position.items() if log[0] in moved}):
                transport.execute(admin.commit_offsets(self._options.group, part))
            self._committed = position


def _calls(position: Offsets) -> Iterator[dict[str, dict[int, int]]]:
    """All partitions of each topic, some topics at a time: a commit that creates a group must name all of them."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in position.items():
        by_topic.setdefault(topic, {})[partition] = offset
    part: dict[str, dict[int, int]] = {}
    count = 0
    for topic, partitions in by_topic.items():
        if count + len(partitions) > CALL_PARTITIONS_MAX and part:
            yield part
            part, count = {}, 0
        part[topic] = partitions
        count += len(partitions)
    if part:
        yield part
