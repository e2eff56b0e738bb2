"""Streams: how each was created, whether it is closed, when it expires, and which streams are forks of it.

A fork owns the records from `start_offset` on and reads everything below from its source, so a chain of forks is a
chain of ranges (`resolve`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.snapshot_facts import StreamState
from driftq.core.model.stream_facts import StreamCreated
from driftq.core.state.sorted_paths import SortedPaths

if TYPE_CHECKING:
    from driftq.core.model.facts import ProducerSequence


class ReadRange(NamedTuple):
    """A range of a stream, and the log that stores it."""

    log_id: int
    first: int
    end: int


class StreamRecord:
    """One stream, live or softly deleted."""

    __slots__ = ("closed", "closed_by", "created", "forks", "soft_deleted", "stream_seq", "touched_ms")

    def __init__(self, created: StreamCreated) -> None:
        self.created = created
        self.closed = created.closed
        self.closed_by: ProducerSequence | None = None
        self.stream_seq = ""
        self.touched_ms = created.at_ms
        self.soft_deleted = False
        self.forks = 0  # streams that read from this one

    @property
    def log_id(self) -> int:
        return self.created.log_id

    @property
    def path(self) -> str:
        return self.created.path

    def expires_ms(self) -> int | None:
        """When it expires. Reads and writes extend a sliding lifetime (TTL), not a fixed one."""
        if self.created.ttl_s is not None:
            return self.touched_ms + 1_000 * self.created.ttl_s
        return self.created.expires_at_ms

    def move(self, at_ms: int, seq: str, closes: bool, by: ProducerSequence | None) -> None:
        """Fold an append or a close."""
        self.touched_ms = max(self.touched_ms, at_ms)
        if seq:
            self.stream_seq = seq
        if closes:
            self.closed = True
            self.closed_by = by

    def is_over(self, now_ms: int) -> bool:
        expires_ms = self.expires_ms()
        return expires_ms is not None and expires_ms <= now_ms

    def is_plain(self) -> bool:
        """Whether it has nothing but a path and a content type."""
        created = self.created
        return (
            not self.closed
            and not self.stream_seq
            and not self.soft_deleted
            and created == StreamCreated(created.path, created.log_id, created.at_ms, created.content_type)
        )

    def snapshot(self) -> StreamState:
        return StreamState(
            self.created, self.closed, self.closed_by, self.stream_seq, self.touched_ms, self.soft_deleted
        )


class StreamTable:
    """Streams by path and by log."""

    __slots__ = ("_paths", "by_log", "by_path", "retained")

    def __init__(self) -> None:
        self.by_path: dict[str, StreamRecord] = {}
        self.by_log: dict[int, StreamRecord] = {}
        self.retained: dict[int, StreamRecord] = {}  # by log: streams with a retention of their own
        self._paths = SortedPaths()

    def add(self, stream: StreamRecord) -> None:
        if stream.path not in self.by_path:
            self._paths.add(stream.path)
        self.by_path[stream.path] = stream
        self.by_log[stream.log_id] = stream
        if stream.created.retention_ms or stream.created.retention_bytes:
            self.retained[stream.log_id] = stream
        if stream.created.source_log_id is not None:
            self.by_log[stream.created.source_log_id].forks += 1

    def remove(self, stream: StreamRecord) -> None:
        del self.by_log[stream.log_id]
        self.retained.pop(stream.log_id, None)
        if self.by_path.get(stream.path) is stream:
            del self.by_path[stream.path]
            self._paths.discard(stream.path)
        if stream.created.source_log_id is not None:
            self.by_log[stream.created.source_log_id].forks -= 1

    def paths_from(self, prefix: str, after: str) -> Iterator[str]:
        """Paths that start with `prefix` and sort after `after`, in order."""
        return takewhile(lambda path: path.startswith(prefix), self._paths.start_at(prefix, after))

    def resolve(self, stream: StreamRecord, offset: int, end: int) -> list[ReadRange]:
        """The ranges that store [offset, end) of a stream, in order."""
        ranges: list[ReadRange] = []
        while True:
            start = stream.created.start_offset
            if end > max(offset, start):
                ranges.append(ReadRange(stream.log_id, max(offset, start), end))
            if offset >= start or stream.created.source_log_id is None:
                return ranges[::-1]
            end = min(end, start)
            stream = self.by_log[stream.created.source_log_id]

    def in_order(self) -> list[StreamRecord]:
        """Sources come before their forks, because log ids only rise."""
        return [self.by_log[log_id] for log_id in sorted(self.by_log)]

    def restore(self, fact: StreamState) -> None:
        stream = StreamRecord(fact.created)
        stream.closed, stream.closed_by = fact.closed, fact.closed_by
        stream.stream_seq, stream.touched_ms = fact.stream_seq, fact.touched_ms
        stream.soft_deleted = fact.soft_deleted
        self.add(stream)
