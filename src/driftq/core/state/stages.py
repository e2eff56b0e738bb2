"""Staged batches that wait to be published, and the writers that publish them.

A stage is a handle for batches in the staging log: durable, invisible, dropped when it expires. A writer publishes once
per batch number. Its last result is kept, so that a repeat is answered with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.snapshot_facts import StageState, WriterState

if TYPE_CHECKING:
    from driftq.core.model.effect_facts import Published, PublishedBatch, Staged

WRITERS_MAX = 10_000


class StagedBatch(NamedTuple):
    target_log_id: int
    offset: int  # in the staging log
    records: int
    payload_bytes: int


class StageEntry:
    """The batches of one handle."""

    __slots__ = ("batches", "expires_ms", "handle", "writer")

    def __init__(self, handle: str, writer: str, expires_ms: int) -> None:
        self.handle = handle
        self.writer = writer
        self.expires_ms = expires_ms
        self.batches: list[StagedBatch] = []


class Writer(NamedTuple):
    """The last publication of a writer."""

    batch_number: int
    at_ms: int
    parts: tuple[PublishedBatch, ...]
    content: str = ""  # identifies what was published; empty if the writer did not say


class Stages:
    """All stages and writers."""

    __slots__ = ("by_handle", "by_writer", "payload_bytes", "writers")

    def __init__(self) -> None:
        self.by_handle: dict[str, StageEntry] = {}  # in order of their first batch in the staging log
        self.by_writer: dict[str, dict[str, StageEntry]] = {}
        self.writers: dict[str, Writer] = {}
        self.payload_bytes = 0

    def stage(self, fact: Staged) -> None:
        entry = self.by_handle.get(fact.handle)
        if entry is None:
            entry = self._add(StageEntry(fact.handle, fact.writer, fact.expires_ms))
        entry.expires_ms = fact.expires_ms
        entry.batches.append(StagedBatch(fact.target_log_id, fact.first_offset, fact.count, fact.payload_bytes))
        self.payload_bytes += fact.payload_bytes

    def _add(self, entry: StageEntry) -> StageEntry:
        self.by_handle[entry.handle] = entry
        self.by_writer.setdefault(entry.writer, {})[entry.handle] = entry
        return entry

    def publish(self, fact: Published) -> None:
        """Drop every stage of the writer: those that were published, and those left over."""
        self.forget(tuple(self.by_writer.get(fact.writer, ())))
        self.writers.pop(fact.writer, None)
        self.writers[fact.writer] = Writer(fact.batch_number, fact.at_ms, fact.parts, fact.content)
        if len(self.writers) > WRITERS_MAX:
            del self.writers[next(iter(self.writers))]

    def forget(self, handles: tuple[str, ...]) -> None:
        for handle in handles:
            entry = self.by_handle.pop(handle, None)
            if entry is not None:
                self.payload_bytes -= sum(batch.payload_bytes for batch in entry.batches)
                of_writer = self.by_writer[entry.writer]
                del of_writer[handle]
                if not of_writer:
                    del self.by_writer[entry.writer]

    def lowest_offset(self, without: Callable[[StageEntry], bool], end: int) -> int:
        """The first offset of the staging log that is still needed without these stages; its end if none is."""
        kept = (entry.batches[0].offset for entry in self.by_handle.values() if not without(entry))
        return next(kept, end)

    def next_ms(self) -> int | None:
        return min((entry.expires_ms for entry in self.by_handle.values()), default=None)

    def snapshot(self) -> Iterator[StageState | WriterState]:
        for entry in self.by_handle.values():
            yield StageState(
                entry.handle,
                entry.writer,
                entry.expires_ms,
                tuple((b.target_log_id, b.offset, b.records, b.payload_bytes) for b in entry.batches),
            )
        for name, writer in self.writers.items():
            yield WriterState(name, writer.batch_number, writer.at_ms, writer.parts, writer.content)

    def restore_stage(self, fact: StageState) -> None:
        entry = self._add(StageEntry(fact.handle, fact.writer, fact.expires_ms))
        entry.batches = [StagedBatch(*batch) for batch in fact.batches]
        self.payload_bytes += sum(batch.payload_bytes for batch in entry.batches)

    def restore_writer(self, fact: WriterState) -> None:
        self.writers[fact.writer] = Writer(fact.batch_number, fact.at_ms, fact.parts, fact.content)
