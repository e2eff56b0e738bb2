"""The shared segments of a store: batches of logs that are too small for files of their own.

    logs/shared/00000001.log   closed: sorted by log, searched by bisection
    logs/shared/00000002.log   closed
    logs/shared/00000003.log   open: gets the next batch of any small log

**Newest wins.** A log's batch at an offset may be in several places: a replay after a crash appends it again, and
compaction copies it. The entry that was written last counts. Entries at or above the end of their log do not count:
they are from before a crash, and the replay writes them again.

**Append** is to memory; `flush` writes what has gathered with one call: after each commit, and when it is much. If the
disk is full it stays in memory and can be read there. The journal has it durably already.

**What was there at the start** may only be in the page cache: if a sync failed and the process ended, the kernel shows
the bytes and no later sync writes them. An index proves what it covers. The rest is written again before anything else,
because a copy that a compaction made must not be lost after the segment it came from was removed.

**Compaction** (`compact`) works in small steps. It looks at the rows of each closed segment, and where less than half
is live it copies that to the open segment. The segment is then *retired*: its file is removed at the end of the next
checkpoint, when the copies are durable. A segment with a damaged entry that is live stays, so that the damage stays
visible.

What is live is the caller's to know: this module knows neither logs nor snapshots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import DiskFull
from driftq.storage.log_store import batch_ms
from driftq.storage.shared_segment import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SharedSegment,
    encode_header,
    encode_index,
    index_path,
    load,
    read_entry,
)

if TYPE_CHECKING:
    from driftq.storage.disk import Disk
    from driftq.storage.log_sync import LogSync
    from driftq.storage.stored_log import OpenFiles

SEGMENT_BYTES = 16 << 20
SEGMENT_ROWS = 32_768  # a segment is sorted when it is closed, in one turn of the event loop
FLUSH_BYTES = 256 << 10
SCAN_ROWS = 4_096  # rows that one step of a compaction looks at
COPY_ROWS = 256  # rows that one step of a compaction copies

IsLive = Callable[[int, int, int, bool], bool]  # log id, first offset, end offset, whether it was there at the start


class SharedEntry(NamedTuple):
    """A batch of a log in a shared segment."""

    first_offset: int
    end_offset: int  # the offset after it, or the first one of the next entry if that is newer
    segment: SharedSegment
    row: int


class SharedSegments:
    """The shared segments below one folder. Called from one thread at a time."""

    def __init__(
        self, disk: Disk, folder: str, store: bytes, files: OpenFiles, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._store = store
        self._files = files
        self._segment_bytes = segment_bytes
        self._flush_bytes = min(FLUSH_BYTES, segment_bytes // 16)
        self._segments: list[SharedSegment] = []  # oldest first
        self._open: SharedSegment | None = None  # the last one, if it gets the next entry
        self._pending: list[SharedSegment] = []  # those with entries that are not in their files
        self._pending_bytes = 0
        self._unproven: list[SharedSegment] = []  # those with entries to write again
        self.is_full = False  # the disk had no room for what is pending
        self._next_number = 1
        self._orphans: list[str] = []  # index files without their segments, from an interrupted removal
        self._has_new_names = False  # a file was created or removed, so the folder is to be synced
        self._is_new = False  # the folder was created by this process and its name is not synced
        self._retired: list[SharedSegment] = []  # copied, but the copies may not be synced
        self._removable: list[SharedSegment] = []  # copied, and the last sync covers the copies
        self._to_compact: deque[SharedSegment] = deque()
        self._compaction: Iterator[None] | None = None
        self._load()

    def _load(self) -> None:
        names = [name for name in self._disk.list(self._folder) if name.partition(".")[0].isdigit()]
        if names:
            self._next_number = max(int(name.partition(".")[0]) for name in names) + 1
        for name in names:
            number, _, suffix = name.partition(".")
            if suffix == "index" and f"{number}.log" not in names and int(number) + 1 < self._next_number:
                self._orphans.append(f"{self._folder}/{name}")
            elif suffix == "log":
                segment = SharedSegment(int(number), f"{self._folder}/{name}", self._store)
                file = self._disk.open(segment.path)
                try:
                    load(self._disk, file, self._store, segment)
                finally:
                    file.close()
                segment.close()
                self._segments.append(segment)
                if segment.unproven_from:
                    self._unproven.append(segment)
        # The last stop may have been before the names of these files were synced, or the name of the folder, which can
        # be empty still.
        self._has_new_names = bool(names)
        self._is_new = self._disk.exists(self._folder)

    # --- write ---

    def append(self, log_id: int, first_offset: int, count: int, batch: bytes) -> None:
        segment = self._open
        if segment is None or segment.size_bytes >= self._segment_bytes or len(segment.log_ids) >= SEGMENT_ROWS:
            segment = self._next_segment()
        if not segment.pending:
            self._pending.append(segment)
        segment.append(log_id, first_offset, count, batch_ms(batch), batch)
        self._pending_bytes += ENTRY_BYTES + len(batch)
        if self._pending_bytes >= self._flush_bytes and not self.is_full:
            self.flush()

    def _next_segment(self) -> SharedSegment:
        """The last segment from before the start if it has room, or a new one."""
        last = self._segments[-1] if self._segments else None
        if self._open is not None:
            self._open.close()
        elif last is not None and last.size_bytes < self._segment_bytes and len(last.log_ids) < SEGMENT_ROWS:
            last.reopen()
            self._open = last
            return last
        path = f"{self._folder}/{self._next_number:08d}.log"
        self._open = SharedSegment(self._next_number, path, self._store)
        self._next_number += 1
        self._segments.append(self._open)
        return self._open

    def flush(self) -> bool:
        """Write what is pending, and first what may not be durable. False if the disk has no room for it."""
        try:
            while self._unproven:
                self._write_again(self._unproven[0])
                del self._unproven[0]
            while self._pending:
                self._write(self._pending[0])
                del self._pending[0]
        except DiskFull:
            self.is_full = True
            return False
        self._pending_bytes = 0
        self.is_full = False
        return True

    def _write(self, segment: SharedSegment) -> None:
        if not segment.is_created:
            if not self._disk.exists(self._folder):
                self._disk.make_folder("shared.folder", self._folder)
                self._is_new = True
            self._files.add(segment.path, self._disk.create("shared.create", segment.path))
            segment.is_created = True
            self._has_new_names = True
        position, data = segment.written_bytes, segment.unwritten()
        if position == HEADER_BYTES:
            position, data = 0, encode_header(self._store, segment.number) + data
        self._files[segment.path].write_at("shared.append", position, data)
        segment.note_written()

    def _write_again(self, segment: SharedSegment) -> None:
        file = self._files[segment.path]
        position = segment.unproven_from
        file.write_at("shared.append", position, file.read_at(position, segment.written_bytes - position))

    def begin_sync(self, work: LogSync) -> None:
        """Add what is to be synced. Nothing is pending."""
        for segment in self._segments:
            if segment.is_dirty:
                work.add_file(segment.path, index_path(segment), encode_index(self._store, segment))
                segment.is_dirty = False
        if self._has_new_names:
            work.add_folder(self._folder)
            self._has_new_names = False
        if self._is_new:
            work.add_root()
            self._is_new = False
        self._removable += self._retired
        self._retired = []

    # --- read ---

    def entries(self, log_id: int, start: int, end: int) -> list[SharedEntry]:
        """The entries that hold offsets of [start, end), in order. Offsets that no entry holds are missing."""
        begins: list[int] = []  # where each entry begins to count
        entries: list[SharedEntry] = []
        for segment in reversed(self._segments):
            for row in segment.rows_of(log_id):
                first = segment.firsts[row]
                row_end = first + segment.counts[row]
                if first >= end or row_end <= start:
                    continue
                begin = first if first > start else start
                at = bisect_right(begins, begin)
                if at and begin < entries[at - 1].end_offset:
                    continue  # a newer one holds its offsets
                if at < len(begins):
                    row_end = min(row_end, begins[at])
                begins.insert(at, begin)
                entries.insert(at, SharedEntry(first, row_end, segment, row))
        return entries

    def read(self, log_id: int, entry: SharedEntry) -> bytes:
        """The batch of an entry. Raises `CorruptLog`."""
        segment = entry.segment
        batch: bytes | str | None = segment.pending_batch(entry.row)
        if batch is None:
            try:
                batch = read_entry(self._files[segment.path], segment, entry.row)
            except OSError as error:
                batch = f"cannot be read: {error.strerror}"
        if isinstance(batch, str):
            position = segment.positions[entry.row]
            raise CorruptLog(log_id, entry.first_offset, segment.path, position, batch, entry.end_offset)
        return batch

    def time_of(self, entry: SharedEntry) -> int:
        return entry.segment.times[entry.row]

    def log_ids(self) -> set[int]:
        return {log_id for segment in self._segments for log_id in segment.log_ids}

    # --- what is no longer needed ---

    def drop_replayed(self, is_live: IsLive) -> None:
        """Before the first append after a start: remove the newest segments if the replay writes all of them again. So
        a broker that crashes again and again before its first checkpoint does not fill the disk.

        The last one stays, dead or not: its number must not be used again. After a power cut the file of one segment
        could otherwise meet the index of another."""
        at = len(self._segments) - 2
        while at >= 0 and next(self._live_rows(self._segments[at], is_live), None) is None:
            self._remove(self._segments.pop(at))
            at -= 1
        for path in self._orphans:
            self._disk.remove("shared.index.remove", path)
        self._orphans = []

    def start_compaction(self) -> None:
        """Look at every closed segment once. The last one is open, or is opened by the next append."""
        if not self._to_compact and self._compaction is None:
            closed = self._segments[:-1]
            self._to_compact.extend(old for old in closed if not old.is_retired and not old.is_pinned)

    def compact(self, is_live: IsLive) -> bool:
        """A small step of the compaction. False if there is nothing to do."""
        if self._compaction is None:
            if not self._to_compact:
                return False
            self._compaction = self._compact(self._to_compact.popleft(), is_live)
        if next(self._compaction, self) is self:
            self._compaction = None
        return True

    def _compact(self, segment: SharedSegment, is_live: IsLive) -> Iterator[None]:
        live_bytes = seen = 0
        for row in self._live_rows(segment, is_live):
            live_bytes += ENTRY_BYTES + segment.sizes[row]
            if row // SCAN_ROWS > seen:
                seen = row // SCAN_ROWS
                yield
        if 2 * live_bytes > segment.size_bytes - HEADER_BYTES:
            return
        for copied, row in enumerate(self._live_rows(segment, is_live), 1):
            if not self._copy(segment, row):
                segment.is_pinned = True
                return
            if copied % COPY_ROWS == 0:
                yield
        segment.is_retired = True
        self._retired.append(segment)

    def _copy(self, segment: SharedSegment, row: int) -> bool:
        """Append a live entry again, unless a newer one holds its offsets. False if it is damaged."""
        log_id, first, count = segment.log_ids[row], segment.firsts[row], segment.counts[row]
        for entry in self.entries(log_id, first, first + count):
            if entry.segment is segment and entry.row == row:
                try:
                    self.append(log_id, first, count, self.read(log_id, entry))
                except CorruptLog:
                    return False
        return True

    def _live_rows(self, segment: SharedSegment, is_live: IsLive) -> Iterator[int]:
        for row, log_id in enumerate(segment.log_ids):
            first = segment.firsts[row]
            if is_live(log_id, first, first + segment.counts[row], row < segment.loaded_rows):
                yield row

    def collect(self) -> None:
        """After a sync that `begin_sync` prepared: remove the files whose live entries are elsewhere."""
        for segment in self._removable:
            self._segments.remove(segment)
            self._remove(segment)
        self._removable = []

    def _remove(self, segment: SharedSegment) -> None:
        if segment in self._unproven:
            self._unproven.remove(segment)
        self._files.forget(segment.path)
        if segment.is_created:
            self._disk.remove("shared.remove", segment.path)
            if self._disk.exists(index := index_path(segment)):
                self._disk.remove("shared.index.remove", index)
            self._has_new_names = True
