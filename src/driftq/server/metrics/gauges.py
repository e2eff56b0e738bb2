"""Gauges, sampled from the state: lag, messages in flight, ages, sizes.

A sample may take long with thousands of groups, so it is taken in slices, between which the server handles requests.
Each slice is a query: a finished sample contains only what is durable. The number of rows is limited; the rest is
summed up as "other". Ages are read from the headers of batches and cached.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.backlog import lag_of, limiting_backlog
from driftq.engine.queries import known_time
from driftq.server.dead_letter_scan import waiting_count
from driftq.server.metrics.counters import OTHER
from driftq.server.slices import collected, slices
from driftq.wire.dead_letters import REDRIVE_GROUP

if TYPE_CHECKING:
    from driftq.core.state.backlog import Backlog
    from driftq.core.state.logs import Log
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView

ROWS_MAX = 1_000
TIMES_MAX = 20_000


class PartitionRow(NamedTuple):
    """A group in a partition."""

    topic: str
    group: str
    partition: str
    lag: int
    lag_s: float
    in_flight: int
    waiting: int  # in backoff, or for their time
    gaps: int
    is_paused: bool = False  # the group


class TopicRow(NamedTuple):
    topic: str
    messages: int
    payload_bytes: int
    oldest_s: float
    dead_letters: int
    slowest: str  # the group that blocks producers first
    used: float  # of the limit, in the fullest partition


class _TopicSums:
    """A row of a topic, while its partitions are added."""

    def __init__(self) -> None:
        self._messages = 0
        self._payload_bytes = 0
        self._oldest_s = 0.0
        self._slowest = ""
        self._used = 0.0

    def add(self, log: Log, backlog: Backlog | None, age_s: float) -> None:
        self._messages += log.end - log.start
        self._payload_bytes += log.bytes_from(log.start)
        self._oldest_s = max(self._oldest_s, age_s)
        if backlog is not None and (not self._slowest or backlog.used > self._used):
            self._slowest, self._used = backlog.group.name, backlog.used

    def row(self, topic: str, dead_letters: int) -> TopicRow:
        return TopicRow(
            topic, self._messages, self._payload_bytes, self._oldest_s, dead_letters, self._slowest, self._used
        )


class GaugeSample(NamedTuple):
    """One sample."""

    partitions: list[PartitionRow]
    topics: list[TopicRow]
    disk_bytes: dict[str, int]
    disk_free_bytes: int
    counts: dict[str, int]  # by the name of the metric


class Gauges:
    """Samples one engine."""

    def __init__(self, engine: Engine, rows_max: int = ROWS_MAX) -> None:
        self._engine = engine
        self._rows_max = rows_max
        self._times: dict[tuple[int, int], int] = {}

    async def sample(self) -> GaugeSample:
        queries = self._engine.queries
        counts = await queries.result(_counts)
        counts["driftq_idle_groups"] = sum(await collected(queries, _idle_groups))
        partitions, topics = await self.rows()
        folder = self._engine.folder
        sizes: dict[str, int] = {}
        free_bytes = 0
        if folder is not None:
            sizes, free_bytes = await asyncio.get_running_loop().run_in_executor(None, sizes_of, folder)
        return GaugeSample(partitions, topics, sizes, free_bytes, counts)

    async def rows(self) -> tuple[list[PartitionRow], list[TopicRow]]:
        """Of the topics that the engine sees."""
        queries = self._engine.queries
        partitions: list[PartitionRow] = []
        others: PartitionRow | None = None
        async for rows in slices(queries, self._partition_rows):
            for row in rows:
                if len(partitions) < self._rows_max:
                    partitions.append(row)
                else:
                    others = _add_partition(others, row)
        topics: list[TopicRow] = []
        other_topics: TopicRow | None = None
        async for topic_rows in slices(queries, self._topic_rows):
            for topic_row in topic_rows:
                if len(topics) < self._rows_max:
                    topics.append(topic_row)
                else:
                    other_topics = _add_topic(other_topics, topic_row)
        return (
            [*partitions, *([others] if others is not None else [])],
            [*topics, *([other_topics] if other_topics is not None else [])],
        )

    def _partition_rows(self, view: StateView) -> Iterator[PartitionRow | None]:
        state = view.state
        number = 0
        for group in list(state.groups.values()):
            for partition, progress in enumerate(group.progress):
                if group.group_id not in state.groups or group.name == REDRIVE_GROUP:
                    break  # deleted in the meantime, or the broker's own group
                lag = lag_of(group, state.logs[progress.log_id])
                has_age = lag.messages and number < self._rows_max
                lag_s = self._age_s(view, progress.log_id, lag.oldest) if has_age else 0.0
                yield PartitionRow(
                    group.topic, group.name, str(partition), lag.messages, lag_s, progress.in_flight, progress.resting,
                    len(progress.settled), group.paused,
                )  # fmt: skip
                number += 1

    def _topic_rows(self, view: StateView) -> Iterator[TopicRow | None]:
        number = 0
        for topic in list(view.state.topics.values()):
            if topic.dead_of:
                continue
            sums = _TopicSums()
            for log_id in topic.log_ids:
                if view.state.topics.get(topic.name) is not topic:
                    break  # deleted in the meantime
                log = view.state.logs[log_id]
                has_age = log.end > log.start and number < self._rows_max
                backlog = limiting_backlog(view.state, view.limits, log)
                sums.add(log, backlog, self._age_s(view, log_id, log.start) if has_age else 0.0)
                yield None
            else:
                yield sums.row(topic.name, waiting_count(view.state, topic))
                number += 1

    def _age_s(self, view: StateView, log_id: int, offset: int) -> float:
        """0 for what is not stored yet."""
        at_ms = self._times.get((log_id, offset), 0)
        if not at_ms and offset < view.reader.end(log_id):
            if len(self._times) >= TIMES_MAX:
                self._times.clear()
            at_ms = self._times[log_id, offset] = known_time(view.reader, log_id, offset)
        return max(0, self._engine.now_ms() - at_ms) / 1_000 if at_ms else 0.0


def _counts(view: StateView) -> dict[str, int]:
    state = view.state
    return {
        "driftq_topics": len(state.topics) // 2,
        "driftq_groups": len(state.groups),
        "driftq_idle_groups": 0,  # counted in slices
        "driftq_streams": len(state.streams.by_path),
        "driftq_schedules": len(state.schedules),
        "driftq_job_batches": state.job_batches.unended,
        "driftq_idempotency_keys": state.keys.live(view.now_ms),
        "driftq_effect_keys": len(state.effects),
    }


def _idle_groups(view: StateView) -> Iterator[bool | None]:
    return (True if group.idle else None for group in list(view.state.groups.values()))


def _add_partition(sum_so_far: PartitionRow | None, row: PartitionRow) -> PartitionRow:
    if sum_so_far is None:
        return row._replace(topic=OTHER, group=OTHER, partition=OTHER)
    return sum_so_far._replace(
        lag=sum_so_far.lag + row.lag,
        in_flight=sum_so_far.in_flight + row.in_flight,
        waiting=sum_so_far.waiting + row.waiting,
        gaps=sum_so_far.gaps + row.gaps,
    )


def _add_topic(sum_so_far: TopicRow | None, row: TopicRow) -> TopicRow:
    if sum_so_far is None:
        return row._replace(topic=OTHER, slowest=OTHER)
    return sum_so_far._replace(
        used=max(sum_so_far.used, row.used),
        messages=sum_so_far.messages + row.messages,
        payload_bytes=sum_so_far.payload_bytes + row.payload_bytes,
        dead_letters=sum_so_far.dead_letters + row.dead_letters,
    )


def sizes_of(folder: str) -> tuple[dict[str, int], int]:
    """(bytes of files by subfolder, free bytes of the filesystem). Files may be deleted in the meantime."""
    sizes: dict[str, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                sizes[entry.name] = sum(_file_sizes(entry.path))
    filesystem = os.statvfs(folder)
    return sizes, filesystem.f_bavail * filesystem.f_frsize


def _file_sizes(folder: str) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _file_sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return
