"""The records of every log in files: `FileLogStore`.

    logs/shared/<number>.log      batches of all logs that are small, in the order in which they came
    logs/<log_id>/                segment files of a log that has grown

      FileLogStore ── one StoredLog per used log ── LogFolder, once it has grown (log_folder)
           ├─ SharedSegments: everything else (shared_segments)
           ├─ OpenFiles: a bounded number of descriptors
           └─ RunCache: a bounded amount of batches in memory

**Small logs share.** A log has no file of its own until it has put `share_bytes` into shared segments. What comes after
that goes to a folder of its own; what is in shared segments stays there. So a log is a shared part and, above it, an
own part, and a million idle logs cost no file, no directory entry and no sync. A log that has a folder never shares
again: whatever its files hold is above its shared part.

**Append** is one write into the page cache. Those of small logs gather until `flush`, or until there are many. The
journal already has the records durably, so nothing is synced here.

**Checkpoint.** `begin_sync` returns the syncs of everything that was appended so far (`storage.log_sync`). After them a
snapshot may rely on the files, and the journal may be trimmed.

**Restart.** `restore` notes for each log of the snapshot what it held. Files are looked at when a log is first used:
whatever they hold beyond the snapshot is cut or does not count, because replaying the journal appends it again.

**Trim and drop** only move the start of a log, or forget it. Files are deleted by `collect`, when no snapshot is left
from which a replay could still need them; `tidy` then compacts shared segments, a little at a time.

**Full disk.** Batches that could not be written stay in memory and are readable; `make_room` retries. In the meantime
`is_full` makes the broker refuse new work.

**Cold segments.** A closed segment that the archive has can leave the disk (`storage.tiers`). To read its records
raises `ColdRange`, until they were downloaded into a cache of bounded size.

**Damage** stops no append, only the reads of the damaged run or entry: `CorruptLog`.

It knows neither the journal nor snapshots; the caller keeps the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftq.storage.cold_segments import ColdRange, ColdWindow
from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import Disk, DiskFull
from driftq.storage.log_folder import FolderContext, LogFolder
from driftq.storage.log_store import Placed, SegmentSpan
from driftq.storage.log_sync import LogSync
from driftq.storage.shared_segments import SEGMENT_BYTES as SHARED_SEGMENT_BYTES
from driftq.storage.shared_segments import SharedSegments
from driftq.storage.stored_log import ClosedSegments, Garbage, IdleLogs, OpenFiles, RunCache, StoredLog
from driftq.storage.tiers import SegmentTiers

SEGMENT_BYTES = 64 << 20
CACHE_BYTES = 64 << 20
COLD_CACHE_BYTES = 64 << 20
OPEN_FILES = 256
SHARE_BYTES = 64 << 10  # what a log may put into shared segments
ENTRY_COST_BYTES = 1_000  # counted for each batch in addition to its bytes: the rows of a log are few
COMPACT_AFTER = 16  # a compaction starts when a sixteenth of the logs was trimmed or dropped


class FileLogStore:
    """Logs as files under one folder. Called from one thread at a time."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        store: bytes = bytes(16),
        cache_bytes: int = CACHE_BYTES,
        open_files: int = OPEN_FILES,
        share_bytes: int = 0,
        shared_segment_bytes: int = SHARED_SEGMENT_BYTES,
        cold_cache_bytes: int = COLD_CACHE_BYTES,
    ) -> None:
        """With `share_bytes` 0 every log has files of its own."""
        self._disk = disk
        self._folder = folder
        self._share_bytes = share_bytes
        self._logs: dict[int, StoredLog] = {}  # those that were used since the start, or have a folder
        self._idle = IdleLogs()  # the others
        self._files = OpenFiles(disk, open_files)
        self._cache = RunCache(cache_bytes)
        self._cold_cache = RunCache(cold_cache_bytes)
        closed = ClosedSegments()
        self._context = FolderContext(disk, store, segment_bytes, self._files, self._cache, self._cold_cache, closed)
        self.tiers = SegmentTiers(disk, store, closed, self._cold_cache)
        self._waiting: dict[int, LogFolder] = {}  # folders with batches that a full disk refused, by log
        self._trimmed: dict[int, StoredLog] = {}  # since the last `collect`
        self._dropped: dict[int, None] = {}  # since the last `collect`, in order
        self._unsafe_drops: set[int] = set()  # logs that were dropped and that a kept snapshot may still have
        self._garbage: list[Garbage] = []  # what to delete once no snapshot needs it, oldest first
        self._changes = 0  # logs that were trimmed or dropped since the last compaction started
        self._swept = False  # folders of logs that were dropped before the last stop were looked for
        self._next_log_id = 0  # of the snapshot; logs from here on are new since
        self._is_restored = False  # every log that a snapshot has is known: something was appended or collected
        disk.make_folder("log.root", folder)
        # Logs that have a folder. Those of logs that no longer exist are removed by the first `collect`.
        self._with_folder = _folder_ids(disk, folder)
        self._shared = SharedSegments(disk, f"{folder}/shared", store, self._files, shared_segment_bytes)

    # --- write ---

    def append(self, log_id: int, first_offset: int, count: int, batch: bytes) -> None:
        self.extend(log_id, ((first_offset, count, batch),))

    def extend(self, log_id: int, batches: Sequence[Placed]) -> None:
        log = self._find(log_id)
        if log is None:
            log = self._new_log(log_id, batches[0][0])
        if not self._is_restored:
            self._end_restore()
        end = log.end
        for first_offset, count, _ in batches:
            if first_offset != end:
                raise ValueError(f"log {log_id} ends at {end}; a batch for {first_offset} cannot follow")
            end = first_offset + count
        shared = self._share(log, batches) if log.folder is None else 0
        if shared < len(batches):
            log.folder = log.folder or self._new_folder(log, batches[shared][0], opened=True)
            if not log.folder.append(batches[shared:]):
                self._waiting[log_id] = log.folder
        log.end = end

    def _share(self, log: StoredLog, batches: Sequence[Placed]) -> int:
        """Put batches into shared segments until the log has its share; returns how many."""
        for index, (first_offset, count, batch) in enumerate(batches):
            log.shared_bytes += len(batch) + ENTRY_COST_BYTES
            if log.shared_bytes > self._share_bytes:
                return index
            self._shared.append(log.log_id, first_offset, count, batch)
        return len(batches)

    def flush(self) -> None:
        if not self._shared.is_full:
            self._shared.flush()

    def skip(self, log_id: int, end_offset: int) -> None:
        log = self._find(log_id) or self._new_log(log_id, end_offset)
        log.end = max(log.end, end_offset)

    def make_room(self) -> bool:
        """Retry what a full disk refused. False while there is still no room."""
        for log_id, folder in list(self._waiting.items()):
            if not folder.write_waiting():
                return False
            del self._waiting[log_id]
        return self._shared.flush()

    def is_full(self) -> bool:
        return bool(self._waiting) or self._shared.is_full

    def begin_sync(self) -> LogSync:
        if not self.make_room():
            raise DiskFull(f"{self._folder}: {len(self._waiting)} logs and the shared segments wait for room")
        work = LogSync(self._disk, self._folder)
        for folder in self._context.dirty.values():
            folder.begin_sync(work)
        self._context.dirty.clear()
        self._shared.begin_sync(work)
        if self._context.has_new_folders:
            work.add_root()
            self._context.has_new_folders = False
        return work

    def sync(self) -> None:
        self.begin_sync().run()

    def _new_log(self, log_id: int, first_offset: int) -> StoredLog:
        log = self._logs[log_id] = StoredLog(log_id, first_offset, first_offset, 0)
        if log_id in self._with_folder:
            # Files with this number are from before a crash; the replay appends what they held again. It does not share
            # now: if the removal is lost in a power cut, the files must not be taken for its own part.
            log.folder = self._new_folder(log, first_offset, opened=True)
            log.folder.remove_all()
        self._dropped.pop(log_id, None)
        return log

    def _new_folder(self, log: StoredLog, end: int, *, opened: bool) -> LogFolder:
        self._with_folder.add(log.log_id)
        path = f"{self._folder}/{log.log_id}"
        return LogFolder(self._context, log.log_id, path, log.start, end, opened=opened)

    def _find(self, log_id: int) -> StoredLog | None:
        """A log that is used now."""
        log = self._logs.get(log_id)
        if log is None and (bounds := self._idle.take(log_id)) is not None:
            log = self._logs[log_id] = StoredLog(log_id, *bounds, bounds[1])
        return log

    # --- read ---

    def end(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        if log is None:
            bounds = self._idle.bounds(log_id)
            return bounds[1] if bounds else 0
        return log.end

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        log = self._find(log_id)
        batches: list[bytes] = []
        if log is None:
            return batches
        size = 0
        try:
            for batch in self._batches(log, max(offset, log.start), min(end_offset, log.end)):
                size += len(batch)
                if batches and size > max_bytes:
                    break
                batches.append(batch)
        except ColdRange as cold:
            if not batches:
                raise cold.wanting(max_bytes, end_offset) from None
        except CorruptLog:
            if not batches:
                raise  # otherwise those before the damage; the next read raises
        return batches

    def cold_windows(self, log_id: int, offset: int, size_bytes: int) -> list[ColdWindow]:
        """What a reader that continues at an offset needs from the archive; nothing if its records are here."""
        log = self._find(log_id)
        if log is None or log.folder is None or not log.folder.first_offset() <= offset < log.end:
            return []
        return log.folder.cold_windows(offset, size_bytes)

    def _batches(self, log: StoredLog, offset: int, end_offset: int) -> Iterator[bytes]:
        """The batches that hold [offset, end_offset), in order."""
        shared_end = min(end_offset, log.shared_end())
        if offset < shared_end:
            for entry in self._shared.entries(log.log_id, offset, shared_end):
                if entry.first_offset > offset:
                    raise self._missing(log, offset, entry.first_offset)
                yield self._shared.read(log.log_id, entry)
                offset = entry.end_offset
            if offset < shared_end:
                raise self._missing(log, offset, shared_end)
        if log.folder is not None:
            yield from log.folder.batches(offset, end_offset)

    def _missing(self, log: StoredLog, offset: int, following: int) -> CorruptLog:
        folder = f"{self._folder}/shared" if log.folder is None else log.folder.path
        return CorruptLog(log.log_id, offset, folder, 0, "the records are missing", following)

    def offset_at(self, log_id: int, at_ms: int) -> int:
        log = self._find(log_id)
        if log is None:
            return 0
        for entry in self._shared.entries(log_id, log.start, log.shared_end()):
            if self._shared.time_of(entry) >= at_ms:
                return max(entry.first_offset, log.start)
        if log.folder is not None:
            offset = log.folder.offset_at(at_ms, log.start, log.end)
            if offset is not None:
                return offset
        return log.end

    def spans(self, log_id: int) -> list[SegmentSpan]:
        log = self._find(log_id)
        if log is None:
            return []
        entries = self._shared.entries(log_id, log.start, log.shared_end())
        spans = log.folder.spans() if log.folder is not None else []
        if entries:
            size_bytes = sum(entry.segment.sizes[entry.row] for entry in entries)
            last_ms = max(map(self._shared.time_of, entries))
            spans.insert(0, SegmentSpan(entries[0].first_offset, entries[-1].end_offset, size_bytes, last_ms))
        return spans

    def log_ids(self) -> set[int]:
        """The logs that have files, or batches in shared segments, whether they exist or not."""
        return self._with_folder | self._shared.log_ids()

    # --- restore, trim, drop, collect ---

    def restore_numbers(self, next_log_id: int) -> None:
        self._next_log_id = next_log_id

    def restore(self, log_id: int, start_offset: int, end_offset: int) -> None:
        if log_id not in self._with_folder and log_id not in self._logs:
            if self._idle.add(log_id, start_offset, end_offset):
                return
        self._idle.take(log_id)
        log = self._logs[log_id] = StoredLog(log_id, start_offset, end_offset, end_offset)
        if log_id in self._with_folder:
            log.folder = self._new_folder(log, log.end, opened=False)

    def _end_restore(self) -> None:
        if not self._is_restored:
            self._is_restored = True
            self._shared.drop_replayed(self._is_in_snapshot)

    def trim(self, log_id: int, start_offset: int) -> None:
        log = self._find(log_id)
        if log is not None and start_offset > log.start:
            log.start = min(start_offset, log.end)
            if log.folder is not None:
                log.folder.start = log.start
            self._trimmed[log_id] = log

    def drop(self, log_id: int) -> None:
        log = self._find(log_id)
        self._logs.pop(log_id, None)
        for table in (self._context.dirty, self._waiting, self._trimmed):
            table.pop(log_id, None)
        if log is not None:
            self._dropped[log_id] = None
            self._unsafe_drops.add(log_id)

    def collect(self, now_lsn: int, safe_lsn: int) -> None:
        self._end_restore()
        self._shared.collect()
        self._garbage.append(self._note_garbage(now_lsn))
        while self._garbage and self._garbage[0].lsn <= safe_lsn and not self.tiers.is_moving:
            garbage = self._garbage.pop(0)
            self._context.closed.make_final(garbage.closed)
            self._changes += len(garbage.trimmed) + len(garbage.dropped)
            for log, start in garbage.trimmed:
                if self._logs.get(log.log_id) is log:
                    log.kept_from = start
                    if log.folder is not None:
                        log.folder.remove_below(start)
            for log_id in garbage.dropped:
                self._unsafe_drops.discard(log_id)
                if log_id not in self._logs and log_id in self._with_folder:
                    self._remove_folder(log_id)
        if self._changes > (len(self._logs) + self._idle.count) // COMPACT_AFTER:
            self._changes = 0
            self._shared.start_compaction()

    def tidy(self) -> bool:
        """A small step of the compaction of shared segments. False if there is nothing to do now."""
        return not self._shared.is_full and self._shared.compact(self._is_live)

    def _is_in_snapshot(self, log_id: int, first_offset: int, end_offset: int, is_loaded: bool) -> bool:
        """At the start: whether an entry may be one that the replay does not write again. A log that is not known was
        dropped before the snapshot, and the snapshot before it may have it."""
        log = self._logs.get(log_id)
        if log is not None:
            return first_offset < log.replayed_from
        bounds = self._idle.bounds(log_id)
        return log_id < self._next_log_id if bounds is None else first_offset < bounds[1]

    def _is_live(self, log_id: int, first_offset: int, end_offset: int, is_loaded: bool) -> bool:
        """Whether an entry of a shared segment may still be read, now or after a restart from a kept snapshot."""
        log = self._logs.get(log_id)
        if log is None:
            bounds = self._idle.bounds(log_id)
            if bounds is not None:
                return end_offset > bounds[0] and first_offset < bounds[1]
            return log_id in self._unsafe_drops
        if is_loaded and first_offset >= log.replayed_from:
            return False
        return end_offset > log.kept_from and first_offset < log.end

    def _note_garbage(self, now_lsn: int) -> Garbage:
        for log_id in self._context.with_trimmed & self._logs.keys():
            self._trimmed[log_id] = self._logs[log_id]
        noted = Garbage(
            now_lsn,
            [(log, log.start) for log in self._trimmed.values()],
            list(self._dropped),
            self._context.closed.take_fresh(),
        )
        if not self._swept:
            # Logs that were dropped before a crash, and what a replay has written again.
            self._with_folder = _folder_ids(self._disk, self._folder)
            noted.dropped.extend(log_id for log_id in sorted(self._with_folder) if log_id not in self._logs)
            self._changes += 1 + len(self._logs) + self._idle.count
            self._swept = True
        self._trimmed, self._dropped = {}, {}
        self._context.with_trimmed.clear()
        return noted

    def close(self) -> None:
        self._files.close()
        self._cache.clear()
        self._cold_cache.clear()

    def _remove_folder(self, log_id: int) -> None:
        folder = f"{self._folder}/{log_id}"
        self._with_folder.discard(log_id)
        if self._disk.exists(folder):
            LogFolder(self._context, log_id, folder, 0, 0, opened=True).remove_all()
            self._context.dirty.pop(log_id, None)
            self._disk.remove_folder("log.folder.remove", folder)


def _folder_ids(disk: Disk, folder: str) -> set[int]:
    return {int(name) for name in disk.list(folder) if name.isascii() and name.isdigit()}
