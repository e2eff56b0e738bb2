"""The records of every log in segment files: `FileLogStore`.

    logs/<log_id>/<first_offset>.log      batches exactly as they travel, one after the other
    logs/<log_id>/<first_offset>.index    where the runs of about 32 KiB in it begin, with a checksum for each

      FileLogStore ── one StoredLog per log ── LogSegment per file ── BatchRun: read, verified and cached at once
           │               (stored_log)             (log_segment)
           ├─ OpenFiles: a bounded number of descriptors
           └─ RunCache: a bounded amount of batches in memory

**Append** is one write into the page cache. The journal already has the records durably, so nothing is synced here.

**Checkpoint.** `begin_sync` returns the syncs of everything that was appended so far (`storage.log_sync`). After them a
snapshot may rely on the files, and the journal may be trimmed.

**Restart.** `restore` notes for each log of the snapshot what it held. Files are looked at when a log is first used:
whatever they hold beyond the snapshot is cut, because replaying the journal appends it again.

**Trim and drop** only move the start of a log, or forget it. Files are deleted by `collect`, when no snapshot is left
from which a replay could still need them.

**Full disk.** Batches that could not be written stay in memory (`StoredLog.unwritten`) and are readable; `make_room`
retries. In the meantime `is_full` makes the broker refuse new work.

**Damage** stops no append, only the reads of the damaged run: `CorruptLog`.

It knows neither the journal nor snapshots; the caller keeps the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import Disk, DiskFull
from driftq.storage.log_segment import LogSegment, encode_header, encode_index, index_path, load, read_run
from driftq.storage.log_store import Placed, SegmentSpan, batch_ms
from driftq.storage.log_sync import LogSync
from driftq.storage.stored_log import Garbage, OpenFiles, RunCache, StoredLog

SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 64 << 20
OPEN_FILES = 256
AGED_MS = 60_000  # a segment younger than this is not closed because of its age


class FileLogStore:
    """Logs as segment files under one folder. Called from one thread at a time."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        store: bytes = bytes(16),
        cache_bytes: int = CACHE_BYTES,
        open_files: int = OPEN_FILES,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._store = store
        self._logs: dict[int, StoredLog] = {}
        self._files = OpenFiles(disk, open_files)
        self._cache = RunCache(cache_bytes)
        self._dirty: dict[int, StoredLog] = {}  # logs with something to sync
        self._waiting: dict[int, StoredLog] = {}  # logs with batches that a full disk refused
        self._trimmed: dict[int, StoredLog] = {}  # since the last `collect`
        self._dropped: dict[int, None] = {}  # since the last `collect`, in order
        self._garbage: list[Garbage] = []  # files to delete once no snapshot needs them, oldest first
        self._new_folders = False  # a log's folder was created and the root is not synced yet
        self._swept = False  # folders of logs that were dropped before the last stop were looked for
        disk.make_folder("log.root", folder)

    # --- write ---

    def append(self, log_id: int, first_offset: int, count: int, batch: bytes) -> None:
        self.extend(log_id, ((first_offset, count, batch),))

    def extend(self, log_id: int, batches: Sequence[Placed]) -> None:
        log = self._logs.get(log_id)
        if log is None:
            log = self._new_log(log_id, batches[0][0])
        for first_offset, count, _ in batches:
            if first_offset != log.end:
                raise ValueError(f"log {log_id} ends at {log.end}; a batch for {first_offset} cannot follow")
            log.end = first_offset + count
        log.unwritten.extend(batches)
        if not self._write_waiting(log):
            self._waiting[log_id] = log

    def skip(self, log_id: int, end_offset: int) -> None:
        log = self._logs.get(log_id) or self._new_log(log_id, end_offset)
        log.end = max(log.end, end_offset)

    def make_room(self) -> bool:
        """Retry what a full disk refused. False while there is still no room."""
        return all(self._write_waiting(log) for log in list(self._waiting.values()))

    def is_full(self) -> bool:
        return bool(self._waiting)

    def begin_sync(self) -> LogSync:
        if not self.make_room():
            raise DiskFull(f"{self._folder}: {len(self._waiting)} logs wait for room")
        work = LogSync(self._disk, self._folder)
        for log in self._dirty.values():
            for segment in log.dirty.values():
                index = encode_index(self._store, log.log_id, segment)
                work.add_file(segment.path, index_path(segment), index)
            if log.new_names:
                work.add_folder(log.folder)
            log.dirty = {}
            log.new_names = False
        if self._new_folders:
            work.add_root()
            self._new_folders = False
        self._dirty = {}
        return work

    def sync(self) -> None:
        self.begin_sync().run()

    def _new_log(self, log_id: int, first_offset: int) -> StoredLog:
        log = self._logs[log_id] = StoredLog(log_id, f"{self._folder}/{log_id}", first_offset, first_offset)
        # Files with this number are from before a crash; the replay appends what they held again.
        self._remove_files(log.folder)
        self._dropped.pop(log_id, None)
        log.opened = True
        return log

    def _write_waiting(self, log: StoredLog) -> bool:
        while log.unwritten:
            try:
                written = self._write(log)
            except DiskFull:
                return False
            del log.unwritten[:written]
        self._waiting.pop(log.log_id, None)
        return True

    def _write(self, log: StoredLog) -> int:
        """Write as many unwritten batches as belong into one run, with one call; returns how many."""
        if not log.opened:
            self._open_log(log)
        first_offset, _, batch = log.unwritten[0]
        segment = log.segments[-1] if log.segments else None
        if (
            segment is None
            or segment.closed
            or segment.end_offset != first_offset
            or (segment.runs and segment.size_bytes + len(batch) > self._segment_bytes)
            or _is_aged(segment, log.start, batch_ms(batch))
        ):
            segment = self._new_segment(log, first_offset)
        firsts, batches, end_offset = log.next_batches(segment.run_room(self._segment_bytes))
        data = b"".join(batches)
        self._files[segment.path].write_at("log.append", segment.size_bytes, data)
        run = segment.add(first_offset, end_offset - first_offset, data, max(map(batch_ms, batches)))
        if run.size_bytes == len(data):
            run.firsts, run.batches = [], []
        if run.batches is not None and run.firsts is not None:
            run.firsts += firsts
            run.batches += batches
            self._cache.touch(run)
        log.written = segment.end_offset
        log.dirty[segment.path] = segment
        self._dirty[log.log_id] = log
        return len(batches)

    def _new_segment(self, log: StoredLog, first_offset: int) -> LogSegment:
        path = f"{log.folder}/{first_offset:020d}.log"
        if not log.segments:
            self._disk.make_folder("log.folder", log.folder)
            self._new_folders = True
        if self._disk.exists(path):
            # A segment of this name without a usable batch: the last attempt found no room, or it is damaged.
            self._remove(path)
        file = self._disk.create("log.create", path)
        self._files.add(path, file)
        log.new_names = True
        self._dirty[log.log_id] = log
        file.write_at("log.header", 0, encode_header(self._store, log.log_id, first_offset))
        segment = LogSegment(path, first_offset)
        log.segments.append(segment)
        return segment

    # --- read ---

    def end(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        return log.end if log else 0

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        log = self._logs.get(log_id)
        batches_read: list[bytes] = []
        if log is None:
            return batches_read
        offset, end_offset = max(offset, log.start), min(end_offset, log.end)
        size = 0
        while offset < end_offset:
            try:
                firsts, batches, run_end = self._batches_at(log, offset)
            except CorruptLog:
                if batches_read:
                    return batches_read  # those before the damage; the next read raises
                raise
            for index in range(bisect_right(firsts, offset) - 1, len(firsts)):
                if firsts[index] >= end_offset:
                    return batches_read
                size += len(batches[index])
                if batches_read and size > max_bytes:
                    return batches_read
                batches_read.append(batches[index])
            offset = run_end
        return batches_read

    def _batches_at(self, log: StoredLog, offset: int) -> tuple[list[int], list[bytes], int]:
        """The run that holds an offset: the first offsets of its batches, their bytes, and the offset after it."""
        if log.unwritten and offset >= log.unwritten[0][0]:
            return [entry[0] for entry in log.unwritten], [entry[2] for entry in log.unwritten], log.end
        if not log.opened:
            self._open_log(log)
        at = log.find(offset)
        if at >= 0 and not log.segments[at].loaded:
            self._load(log, log.segments[at], log.segments[at].end_offset)
        if at < 0 or offset >= log.segments[at].end_offset:
            following = log.segments[at + 1].first_offset if at + 1 < len(log.segments) else log.end
            if at < 0:
                raise CorruptLog(log.log_id, offset, log.folder, 0, "the records are missing", following)
            missing = log.segments[at]
            raise CorruptLog(log.log_id, offset, missing.path, missing.size_bytes, missing.wrong, following)
        segment = log.segments[at]
        index = segment.find(offset)
        run = segment.runs[index]
        run_end = segment.firsts[index + 1] if index + 1 < len(segment.runs) else segment.end_offset
        if run.batches is None:
            try:
                wrong = read_run(self._files[segment.path], run)
            except OSError as error:
                wrong = f"cannot be read: {error.strerror}"
            if wrong:
                raise CorruptLog(log.log_id, offset, segment.path, run.position, wrong, run_end)
        self._cache.touch(run)
        assert run.firsts is not None
        assert run.batches is not None
        return run.firsts, run.batches, run_end

    def offset_at(self, log_id: int, at_ms: int) -> int:
        log = self._logs.get(log_id)
        if log is None:
            return 0
        for segment in self._loaded(log):
            # A segment that a full disk left empty has no run.
            for index in range(segment.find(log.start), len(segment.runs)):
                run = segment.runs[index]
                run_end = segment.firsts[index + 1] if index + 1 < len(segment.runs) else segment.end_offset
                if run.last_ms >= at_ms and run_end > log.start:
                    firsts, batches, _ = self._batches_at(log, run.first_offset)
                    late = (first for first, batch in zip(firsts, batches, strict=True) if batch_ms(batch) >= at_ms)
                    return max(next(late), log.start)
        late = (first for first, _, batch in log.unwritten if batch_ms(batch) >= at_ms)
        return max(next(late, log.end), log.start)

    def spans(self, log_id: int) -> list[SegmentSpan]:
        log = self._logs.get(log_id)
        if log is None:
            return []
        return [
            SegmentSpan(segment.first_offset, segment.end_offset, segment.size_bytes, segment.last_ms())
            for segment in self._loaded(log)
        ]

    # --- restore, trim, drop, collect ---

    def restore(self, log_id: int, start_offset: int, end_offset: int) -> None:
        self._logs[log_id] = StoredLog(log_id, f"{self._folder}/{log_id}", start_offset, end_offset)

    def trim(self, log_id: int, start_offset: int) -> None:
        log = self._logs.get(log_id)
        if log is not None and start_offset > log.start:
            log.start = min(start_offset, log.end)
            self._trimmed[log_id] = log

    def drop(self, log_id: int) -> None:
        log = self._logs.pop(log_id, None)
        for table in (self._dirty, self._waiting, self._trimmed):
            table.pop(log_id, None)
        if log is not None:
            self._dropped[log_id] = None

    def collect(self, now_lsn: int, safe_lsn: int) -> None:
        self._garbage.append(self._note_garbage(now_lsn))
        while self._garbage and self._garbage[0].lsn <= safe_lsn:
            garbage = self._garbage.pop(0)
            for log, start in garbage.trimmed:
                self._remove_below(log, start)
            for log_id in garbage.dropped:
                folder = f"{self._folder}/{log_id}"
                if log_id not in self._logs and self._disk.exists(folder):
                    self._remove_files(folder)
                    self._disk.remove_folder("log.folder.remove", folder)

    def _note_garbage(self, now_lsn: int) -> Garbage:
        noted = Garbage(now_lsn, [(log, log.start) for log in self._trimmed.values()], list(self._dropped))
        if not self._swept:
            # Folders of logs that were dropped before a crash. Every log that exists is known by now.
            names = (name for name in self._disk.list(self._folder) if name.isascii() and name.isdigit())
            noted.dropped.extend(int(name) for name in names if int(name) not in self._logs)
            self._swept = True
        self._trimmed = {}
        self._dropped = {}
        return noted

    def _remove_below(self, log: StoredLog, start: int) -> None:
        if self._logs.get(log.log_id) is not log:
            return
        if not log.opened:
            self._open_log(log)
        while log.segments and log.segments[0].end_offset <= start and not log.unwritten:
            segment = log.segments.pop(0)
            log.dirty.pop(segment.path, None)
            self._remove(segment.path)

    def close(self) -> None:
        self._files.close()
        self._cache.clear()

    # --- the files of a log ---

    def _open_log(self, log: StoredLog) -> None:
        """Look at a log's files for the first time: trust them up to what was written, cut the rest."""
        end = log.written
        firsts = [int(name[:-4]) for name in self._disk.list(log.folder) if name.endswith(".log")]
        kept = [first for first in firsts if first < end]
        for first in firsts[len(kept) :]:
            self._remove(f"{log.folder}/{first:020d}.log")
            log.new_names = True
        log.segments = [LogSegment(f"{log.folder}/{first:020d}.log", first) for first in kept]
        for segment, following in zip(log.segments, kept[1:], strict=False):
            # All of it lies below what was synced: its index is read when the records are.
            segment.end_offset = following
            segment.loaded = False
        if log.segments:
            self._load(log, log.segments[-1], end, is_last=True)
        log.opened = True
        if log.new_names:
            self._dirty[log.log_id] = log
        if len(log.segments) > 1 and log.segments[1].first_offset <= log.start:
            self._trimmed[log.log_id] = log

    def _load(self, log: StoredLog, segment: LogSegment, end: int, *, is_last: bool = False) -> None:
        if load(self._disk, self._files[segment.path], self._store, log.log_id, segment, end, is_last=is_last):
            log.dirty[segment.path] = segment
            self._dirty[log.log_id] = log

    def _loaded(self, log: StoredLog) -> list[LogSegment]:
        """All segments of a log, with their runs."""
        if not log.opened:
            self._open_log(log)
        for segment in log.segments:
            if not segment.loaded:
                self._load(log, segment, segment.end_offset)
        return log.segments

    def _remove(self, path: str) -> None:
        self._files.forget(path)
        self._disk.remove("log.remove", path)
        index = path.removesuffix(".log") + ".index"
        if self._disk.exists(index):
            self._disk.remove("index.remove", index)

    def _remove_files(self, folder: str) -> None:
        for path in [f"{folder}/{name}" for name in self._disk.list(folder)]:
            self._files.forget(path)
            self._disk.remove("log.remove", path)


def _is_aged(segment: LogSegment, start: int, now_ms: int) -> bool:
    """Whether retention has reached into a segment. It then gets no more records, so that it can be deleted soon."""
    return start > segment.first_offset and bool(segment.runs) and now_ms - segment.runs[0].last_ms >= AGED_MS
