"""How the core reads records: through the log store, which holds only what is durable."""

from __future__ import annotations

from collections.abc import Sequence

from driftq.core.case import Unreadable
from driftq.storage.damage import CorruptLog
from driftq.storage.logstore import LogStore, Span
from driftq.wire import records


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

    def spans(self, log_id: int) -> Sequence[Span]:
        return self._store.spans(log_id)

    def _batch(self, log_id: int, offset: int) -> tuple[bytes, records.Header]:
        try:
            found = self._store.read(log_id, offset, offset + 1, 1)
        except CorruptLog as error:
            raise Unreadable(str(error)) from error
        if not found:
            raise Unreadable(f"log {log_id} has no record at offset {offset}")
        return found[0], records.read_header(found[0])
