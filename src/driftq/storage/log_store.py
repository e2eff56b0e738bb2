"""The log store seam: the records of each log, written from facts that are durable already, read by range.

A log store keeps packed batches exactly as they travel (`wire.records`), by log number and offset. Past the last
checkpoint it is a cache: it can be cut back to the checkpoint and rebuilt from the journal. `FileLogStore` keeps it in
segment files, `MemoryLogStore` in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from driftq.wire.records import STAMP

if TYPE_CHECKING:
    from driftq.storage.cold_segments import ColdWindow


class SegmentSpan(NamedTuple):
    """A run of records that is kept or dropped together (a segment file on disk, a batch in memory)."""

    first_offset: int
    end_offset: int
    size_bytes: int
    last_ms: int


Placed = tuple[int, int, bytes]  # first offset, number of records, the stamped batch


class SyncWork(Protocol):
    """Syncs that touch nothing but the disk, so any thread may run them."""

    def run(self) -> None:
        """All of them, one after the other."""

    def __len__(self) -> int:
        """How many syncs there are."""

    def stages(self) -> Iterator[list[Callable[[], None]]]:
        """The same as calls. Those of one stage may run at the same time; the next stage starts when all are done."""


class LogStore(Protocol):
    """Ranges of packed batches per log."""

    def append(self, log_id: int, first_offset: int, count: int, batch: bytes) -> None:
        """Add a stamped batch. `first_offset` equals `end(log_id)`, or the log is new (a fork starts above 0)."""

    def extend(self, log_id: int, batches: Sequence[Placed]) -> None:
        """`append` of batches that follow each other, in fewer steps."""

    def flush(self) -> None:
        """What was appended is handed to the system: it survives this process, and others can read it. Appends may
        gather until then."""

    def skip(self, log_id: int, end_offset: int) -> None:
        """Offsets up to here are lost: the log ends there at least, and the next batch follows. No batch covers them:
        to read one raises `CorruptLog`."""

    def end(self, log_id: int) -> int:
        """The offset after the last stored record; 0 for an unknown log."""

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """Whole batches, in order, that cover [offset, end_offset): the first may begin before `offset`, the last may
        end after `end_offset`. Stops before the batch that would exceed `max_bytes`, or that is only in the archive,
        but returns at least one if there is one. What is below the log's start or after its end is left out."""

    def cold_windows(self, log_id: int, offset: int, size_bytes: int) -> Sequence[ColdWindow]:
        """What a reader that continues at an offset needs from the archive; nothing if its records are here."""

    def offset_at(self, log_id: int, at_ms: int) -> int:
        """The first offset whose batch was appended at or after `at_ms`; the end if there is none."""

    def spans(self, log_id: int) -> list[SegmentSpan]:
        """What retention can drop, oldest first; the last one is being written."""

    def restore_numbers(self, next_log_id: int) -> None:
        """After a restart, before any `restore`: the snapshot has no log from this number on. Whatever is stored for
        such a log is from frames after the snapshot, and is appended again."""

    def restore(self, log_id: int, start_offset: int, end_offset: int) -> None:
        """After a restart: this log holds [start, end) durably; the rest is cut off before the next append."""

    def trim(self, log_id: int, start_offset: int) -> None:
        """Records below are never read again. Files are deleted by a later `collect`."""

    def drop(self, log_id: int) -> None:
        """The log is deleted. Files are deleted by a later `collect`."""

    def begin_sync(self) -> SyncWork:
        """What must be synced so that everything appended so far is on the device. It may run in another thread, and it
        must run. Raises `DiskFull` if something could not even be written."""

    def sync(self) -> None:
        """Begin and run: returns when everything appended so far is on the device."""

    def collect(self, now_lsn: int, safe_lsn: int) -> None:
        """Delete the files that frames up to `safe_lsn` trimmed or dropped. Called after every durable snapshot
        with the lsn of the older of the two kept: replaying from there still reads what later frames trimmed. `now_lsn`
        is at or after every frame that was projected so far."""

    def tidy(self) -> bool:
        """A small step of the upkeep that can wait. False if there is nothing to do now; a `collect` may start more."""

    def is_full(self) -> bool:
        """True while appended batches could not be written for lack of space (they are kept in memory and retried)."""

    def make_room(self) -> bool:
        """Retry what a full disk refused. False while there is still no room."""

    def close(self) -> None: ...


class MemoryLogStore:
    """The log store of brokers that keep nothing, and of tests: lists and bisect."""

    def __init__(self) -> None:
        self._logs: dict[int, _MemoryLog] = {}

    def append(self, log_id: int, first_offset: int, count: int, batch: bytes) -> None:
        log = self._logs.get(log_id)
        if log is None:
            log = self._logs[log_id] = _MemoryLog(first_offset)
        elif first_offset != log.end:
            raise ValueError(f"log {log_id} ends at {log.end}; a batch for {first_offset} cannot follow")
        log.firsts.append(first_offset)
        log.batches.append(batch)
        log.end = first_offset + count

    def extend(self, log_id: int, batches: Sequence[Placed]) -> None:
        for first_offset, count, batch in batches:
            self.append(log_id, first_offset, count, batch)

    def flush(self) -> None:
        pass

    def skip(self, log_id: int, end_offset: int) -> None:
        log = self._logs.setdefault(log_id, _MemoryLog(end_offset))
        log.end = max(log.end, end_offset)

    def end(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        return log.end if log else 0

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        log = self._logs.get(log_id)
        batches: list[bytes] = []
        if log is None or max(offset, log.start) >= min(end_offset, log.end):
            return batches
        size = 0
        for index in range(log.find(max(offset, log.start)), len(log.firsts)):
            batch = log.batches[index]
            size += len(batch)
            if log.firsts[index] >= end_offset or (batches and size > max_bytes):
                break
            batches.append(batch)
        return batches

    def cold_windows(self, log_id: int, offset: int, size_bytes: int) -> Sequence[ColdWindow]:
        return ()

    def offset_at(self, log_id: int, at_ms: int) -> int:
        log = self._logs.get(log_id)
        if log is None:
            return 0
        for first_offset, batch in zip(log.firsts, log.batches, strict=True):
            if batch_ms(batch) >= at_ms:
                return max(first_offset, log.start)
        return log.end

    def spans(self, log_id: int) -> list[SegmentSpan]:
        log = self._logs.get(log_id)
        if log is None:
            return []
        ends = [*log.firsts[1:], log.end]
        return [
            SegmentSpan(first, end, len(batch), batch_ms(batch))
            for first, end, batch in zip(log.firsts, ends, log.batches, strict=True)
        ]

    def restore_numbers(self, next_log_id: int) -> None:
        pass

    def restore(self, log_id: int, start_offset: int, end_offset: int) -> None:
        log = self._logs.setdefault(log_id, _MemoryLog(start_offset))
        keep = bisect_left(log.firsts, end_offset)
        del log.firsts[keep:], log.batches[keep:]
        log.start, log.end = start_offset, end_offset

    def trim(self, log_id: int, start_offset: int) -> None:
        log = self._logs.get(log_id)
        if log is not None:
            log.start = max(log.start, min(start_offset, log.end))

    def drop(self, log_id: int) -> None:
        self._logs.pop(log_id, None)

    def begin_sync(self) -> SyncWork:
        return _NoSync()

    def sync(self) -> None:
        pass

    def collect(self, now_lsn: int, safe_lsn: int) -> None:
        for log in self._logs.values():
            count = len(log.firsts) if log.start == log.end else log.find(log.start)
            if count > 0:
                del log.firsts[:count], log.batches[:count]

    def tidy(self) -> bool:
        return False

    def is_full(self) -> bool:
        return False

    def make_room(self) -> bool:
        return True

    def close(self) -> None:
        self._logs.clear()


class _NoSync:
    """The sync of a store that has no device."""

    def run(self) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def stages(self) -> Iterator[list[Callable[[], None]]]:
        return iter(())


class _MemoryLog:
    """The batches of one log and the offsets they begin at."""

    __slots__ = ("batches", "end", "firsts", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.firsts: list[int] = []
        self.batches: list[bytes] = []

    def find(self, offset: int) -> int:
        return max(0, bisect_right(self.firsts, offset) - 1)


def batch_ms(batch: bytes) -> int:
    """When the broker stamped this batch."""
    at_ms: int = STAMP.unpack_from(batch, 8)[1]
    return at_ms
