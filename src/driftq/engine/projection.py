"""Writes durable facts into the log store. The journal is the truth; this is how the log store comes to hold the
same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from driftq.core.context import Unreadable
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, PublishedBatch, Staged, StagesForgotten
from driftq.core.model.snapshot_facts import LogState
from driftq.core.model.stream_facts import StreamDeleted
from driftq.storage.corruption import CorruptLog
from driftq.wire import records
from driftq.wire.records import stamp

if TYPE_CHECKING:
    from driftq.storage.log_store import LogStore, Placed, SegmentSpan


def project(store: LogStore, facts: Iterable[f.Fact]) -> None:
    """Fold facts, in the order of the journal. Appends are gathered by log as long as nothing else comes between, so
    that a log is written once for many commands."""
    gathered: dict[int, list[Placed]] = {}
    for fact in facts:
        kind = type(fact)
        if kind is f.Appended:
            assert isinstance(fact, f.Appended)
            gathered.setdefault(fact.log_id, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind is Staged:
            assert isinstance(fact, Staged)
            gathered.setdefault(f.STAGING_LOG, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind in _OTHERS:
            _append(store, gathered)
            _project(store, fact)
    _append(store, gathered)


def _append(store: LogStore, gathered: dict[int, list[Placed]]) -> None:
    for log_id, batches in gathered.items():
        store.extend(log_id, batches)
    gathered.clear()


_OTHERS = {
    Published,
    StagesForgotten,
    f.Trimmed,
    f.RecordsLost,
    f.TopicDeleted,
    StreamDeleted,
    LogState,
}


def _project(store: LogStore, fact: f.Fact) -> None:
    match fact:
        case Published():
            for part in fact.parts:
                _show(store, part, fact.at_ms)
            store.trim(f.STAGING_LOG, fact.staging_start)
        case StagesForgotten():
            store.trim(f.STAGING_LOG, fact.staging_start)
        case f.Trimmed():
            store.trim(fact.log_id, fact.start_offset)
        case f.RecordsLost():
            store.skip(fact.log_id, fact.end_offset)
        case f.TopicDeleted():
            for log_id in fact.log_ids:
                store.drop(log_id)
        case StreamDeleted(soft=False):
            store.drop(fact.log_id)
        case LogState():
            store.restore(fact.log_id, fact.start_offset, fact.end_offset)
        case _:
            pass


def _show(store: LogStore, part: PublishedBatch, at_ms: int) -> None:
    """Copy one staged batch to the place it was given."""
    found = store.read(f.STAGING_LOG, part.staged_offset, part.staged_offset + part.count, 1)
    assert found, f"the staged batch at {part.staged_offset} is missing"
    store.append(part.log_id, part.first_offset, part.count, stamp(found[0], part.first_offset, at_ms))


# --- How the core reads records: through the log store, which holds only what is durable ---


class StoreReader:
    """The core's `LogReader` over a log store."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def end(self, log_id: int) -> int:
        return self._store.end(log_id)

    def record(self, log_id: int, offset: int) -> records.Record:
        batch, header = self._batch(log_id, offset)
        try:
            return records.unpack(batch, header, first=offset - header.first_offset, count=1)[0]
        except records.BadBatch as error:
            raise Unreadable(str(error)) from error

    def batch_end(self, log_id: int, offset: int) -> int:
        return self._batch(log_id, offset)[1].end_offset

    def time_of(self, log_id: int, offset: int) -> int:
        try:
            return self._batch(log_id, offset)[1].at_ms
        except Unreadable:
            return 0  # whatever cannot be read counts as old

    def offset_at(self, log_id: int, at_ms: int) -> int:
        try:
            return self._store.offset_at(log_id, at_ms)
        except CorruptLog as error:
            raise Unreadable(str(error)) from error

    def spans(self, log_id: int) -> Sequence[SegmentSpan]:
        return self._store.spans(log_id)

    def _batch(self, log_id: int, offset: int) -> tuple[bytes, records.Header]:
        try:
            found = self._store.read(log_id, offset, offset + 1, 1)
        except CorruptLog as error:
            raise Unreadable(str(error)) from error
        if not found:
            raise Unreadable(f"log {log_id} has no record at offset {offset}")
        return found[0], records.read_header(found[0])
