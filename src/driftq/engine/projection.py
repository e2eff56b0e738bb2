"""Projects durable facts onto the log store, and reads records back for the core.

The journal is the truth. The log store is derived from it: the same facts, projected in the same order after a restart,
give the same logs.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from driftq.core.context import Unreadable
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, PublishedBatch, Staged, StagesForgotten
from driftq.core.model.snapshot_facts import LogState, NumbersState, PlainStreamsState
from driftq.core.model.stream_facts import StreamDeleted
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire import records
from driftq.wire.records import stamp

if TYPE_CHECKING:
    from driftq.storage.log_store import LogStore, Placed, SegmentSpan


def project(store: LogStore, facts: Iterable[f.Fact]) -> None:
    """Project facts, in the order of the journal. Appends are collected by log until another kind of fact comes, so
    that a log is written once for many commands."""
    appends: dict[int, list[Placed]] = {}
    for fact in facts:
        kind = type(fact)
        if kind is f.Appended:
            assert isinstance(fact, f.Appended)
            appends.setdefault(fact.log_id, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind is Staged:
            assert isinstance(fact, Staged)
            appends.setdefault(f.STAGING_LOG, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind in _PROJECTED:
            _append(store, appends)
            _project(store, fact)
    _append(store, appends)
    store.flush()


def _append(store: LogStore, appends: dict[int, list[Placed]]) -> None:
    for log_id, batches in appends.items():
        store.extend(log_id, batches)
    appends.clear()


_PROJECTED = {
    Published,
    StagesForgotten,
    f.Trimmed,
    f.RecordsLost,
    f.TopicDeleted,
    StreamDeleted,
    NumbersState,
    LogState,
    PlainStreamsState,
}


def _project(store: LogStore, fact: f.Fact) -> None:
    match fact:
        case Published():
            for part in fact.parts:
                _copy_staged(store, part, fact.at_ms)
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
        case NumbersState():
            store.restore_numbers(fact.next_log_id)
        case LogState():
            store.restore(fact.log_id, fact.start_offset, fact.end_offset)
        case PlainStreamsState():
            for log_id, start, end in fact.logs():
                store.restore(log_id, start, end)
        case _:
            pass


def _copy_staged(store: LogStore, part: PublishedBatch, at_ms: int) -> None:
    """Copy one staged batch to the log it was published to."""
    staged = store.read(f.STAGING_LOG, part.staged_offset, part.staged_offset + part.count, 1)
    assert staged, f"the staged batch at {part.staged_offset} is missing"
    store.append(part.log_id, part.first_offset, part.count, stamp(staged[0], part.first_offset, at_ms))


# --- how the core reads records ---


BODIES_BYTES = 16 << 20


class StoreReader:
    """The core's `LogReader` over a log store, which holds only what is durable.

    One record costs the same in a batch of one and in a batch of a hundred thousand: its ends are read at its index. A
    compressed body must be decompressed as a whole, so the last ones are kept. A record that is only in the archive
    raises `ColdRange` through the core: the command or query is repeated when it is here."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._bodies = BodyCache(BODIES_BYTES)
        self._has_archive = True  # False: records that are only in the archive count as unreadable

    @contextlib.contextmanager
    def without_cold_records(self) -> Iterator[None]:
        """For one decision, while the archive cannot be read."""
        self._has_archive = False
        try:
            yield
        finally:
            self._has_archive = True

    def end(self, log_id: int) -> int:
        return self._store.end(log_id)

    def record(self, log_id: int, offset: int) -> records.Record:
        batch, header = self._batch(log_id, offset)
        try:
            raw = self._bodies.get(log_id, batch, header)
            return records.unpack(batch, header, first=offset - header.first_offset, count=1, raw=raw)[0]
        except records.BadBatch as error:
            raise Unreadable(str(error)) from error

    def head(self, log_id: int, offset: int) -> bytes:
        batch, header = self._batch(log_id, offset)
        if not header.attributes & records.HEADS:
            return b""
        try:
            raw = self._bodies.get(log_id, batch, header)
            return records.head_at(batch, header, offset - header.first_offset, raw)
        except records.BadBatch as error:
            raise Unreadable(str(error)) from error

    def batch_end(self, log_id: int, offset: int) -> int:
        return self._batch(log_id, offset)[1].end_offset

    def time_of(self, log_id: int, offset: int) -> int:
        try:
            return self._batch(log_id, offset)[1].at_ms
        except Unreadable as error:
            cold = error.__cause__
            return cold.at_ms if isinstance(cold, ColdRange) else 0  # what cannot be read counts as old

    def offset_at(self, log_id: int, at_ms: int) -> int:
        try:
            return self._store.offset_at(log_id, at_ms)
        except CorruptLog as error:
            raise Unreadable(str(error)) from error
        except ColdRange as cold:
            if self._has_archive:
                raise
            raise Unreadable(str(cold)) from cold

    def spans(self, log_id: int) -> Sequence[SegmentSpan]:
        return self._store.spans(log_id)

    def _batch(self, log_id: int, offset: int) -> tuple[bytes, records.Header]:
        try:
            batches = self._store.read(log_id, offset, offset + 1, 1)
        except CorruptLog as error:
            raise Unreadable(str(error)) from error
        except ColdRange as cold:
            if self._has_archive:
                raise
            raise Unreadable(str(cold)) from cold
        if not batches:
            raise Unreadable(f"log {log_id} has no record at offset {offset}")
        return batches[0], records.read_header(batches[0])


class BodyCache:
    """The decompressed bodies that were used last, up to a number of bytes; the very last one is always kept. A batch
    never changes and log numbers are not reused, so a body stays right for as long as it is here."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._bodies: OrderedDict[tuple[int, int], bytes] = OrderedDict()  # by log and first offset

    def get(self, log_id: int, batch: bytes, header: records.Header) -> bytes | None:
        """The decompressed body of a batch; None if it is not compressed. Raises `BadBatch`."""
        if not header.attributes & records.ZSTD:
            return None
        key = log_id, header.first_offset
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
            return body
        body = self._bodies[key] = records.body(batch, header)
        self._size_bytes += len(body)
        while self._size_bytes > self._limit_bytes and len(self._bodies) > 1:
            self._size_bytes -= len(self._bodies.popitem(last=False)[1])
        return body
