"""The files of one log that has grown: segments in a folder of its own.

    logs/<log_id>/<first_offset>.log      batches exactly as they travel, one after the other
    logs/<log_id>/<first_offset>.index    where the runs of about 32 KiB in it begin, with a checksum for each
    logs/<log_id>/<first_offset>.tier     instead of both: the segment is in the archive (cold_segments)

      LogFolder ── LogSegment per file ── BatchRun: read, verified and cached at once
                     (log_segment)

Files are looked at when the folder is first used: whatever they hold beyond what the snapshot had is cut, because
replaying the journal appends it again. Batches that a full disk refused stay in `unwritten` and are readable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driftq.storage.cold_segments import SUFFIX as TIER_SUFFIX
from driftq.storage.cold_segments import (
    ColdPlace,
    ColdRange,
    ColdWindow,
    load_cold,
    read_place,
    tier_path,
    windows_from,
)
from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import DiskFull
from driftq.storage.log_segment import LogSegment, encode_header, encode_index, index_path, load, read_run
from driftq.storage.log_store import Placed, SegmentSpan, batch_ms

if TYPE_CHECKING:
    from driftq.storage.disk import Disk
    from driftq.storage.log_sync import LogSync
    from driftq.storage.stored_log import ClosedSegments, OpenFiles, RunCache

AGED_MS = 60_000  # a segment younger than this is not closed because of its age


@dataclass(slots=True)
class FolderContext:
    """What the folders of one store have in common."""

    disk: Disk
    store: bytes
    segment_bytes: int
    files: OpenFiles
    cache: RunCache
    cold_cache: RunCache  # of runs that were read from the archive
    closed: ClosedSegments
    dirty: dict[int, LogFolder] = field(default_factory=dict)  # folders with something to sync, by log
    with_trimmed: set[int] = field(default_factory=set)  # logs that were opened and have segments below their start
    has_new_folders: bool = False  # a folder was created and the root is not synced yet


class LogFolder:
    """The own files of one log.

    first_offset()      written            end
      | in segment files   | `unwritten` |
    """

    __slots__ = (
        "_context", "_dirty", "_new_names", "_opened", "log_id", "path", "segments", "start", "unwritten", "written",
    )  # fmt: skip

    def __init__(
        self, context: FolderContext, log_id: int, path: str, start: int, written: int, *, opened: bool
    ) -> None:
        self._context = context
        self.log_id = log_id
        self.path = path
        self.start = start  # of the log: records below are never read again
        self.written = written  # records below are in the files, or in shared segments
        self._opened = opened  # False: the files were not looked at since the start, `segments` is not filled
        self.segments: list[LogSegment] = []  # in order; the last one gets the next batch
        self.unwritten: list[Placed] = []  # batches that a full disk refused
        self._dirty: dict[str, LogSegment] = {}  # segments to sync, by path
        self._new_names = False  # a file was created or removed, so the folder is to be synced

    def first_offset(self) -> int:
        """Where the own part of the log begins."""
        self._open()
        if self.segments:
            return self.segments[0].first_offset
        return self.unwritten[0][0] if self.unwritten else self.written

    # --- write ---

    def append(self, batches: Sequence[Placed]) -> bool:
        """False if the disk had no room: the batches wait in memory."""
        self.unwritten.extend(batches)
        return self.write_waiting()

    def write_waiting(self) -> bool:
        while self.unwritten:
            try:
                written = self._write()
            except DiskFull:
                return False
            del self.unwritten[:written]
        return True

    def begin_sync(self, work: LogSync) -> None:
        for segment in self._dirty.values():
            index = encode_index(self._context.store, self.log_id, segment)
            work.add_file(segment.path, index_path(segment), index)
        if self._new_names:
            work.add_folder(self.path)
        self._dirty = {}
        self._new_names = False

    def _write(self) -> int:
        """Write as many unwritten batches as belong into one run, with one call; returns how many."""
        self._open()
        context = self._context
        first_offset, _, batch = self.unwritten[0]
        segment = self.segments[-1] if self.segments else None
        if (
            segment is None
            or segment.closed
            or segment.end_offset != first_offset
            or (segment.runs and segment.size_bytes + len(batch) > context.segment_bytes)
            or _is_aged(segment, self.start, batch_ms(batch))
        ):
            segment = self._new_segment(first_offset)
        firsts, batches, end_offset = self._next_batches(segment.run_room(context.segment_bytes))
        data = b"".join(batches)
        context.files[segment.path].write_at("log.append", segment.size_bytes, data)
        run = segment.add(first_offset, end_offset - first_offset, data, max(map(batch_ms, batches)))
        if run.size_bytes == len(data):
            run.firsts, run.batches = [], []
        if run.batches is not None and run.firsts is not None:
            run.firsts += firsts
            run.batches += batches
            context.cache.touch(run)
        self.written = segment.end_offset
        self._dirty[segment.path] = segment
        context.dirty[self.log_id] = self
        return len(batches)

    def _next_batches(self, room_bytes: int) -> tuple[list[int], list[bytes], int]:
        """The first offsets and bytes of the unwritten batches that fit, at least one, and the offset after them."""
        firsts: list[int] = []
        batches: list[bytes] = []
        end_offset = 0
        for first_offset, count, batch in self.unwritten:
            room_bytes -= len(batch)
            if room_bytes < 0 and batches:
                break
            firsts.append(first_offset)
            batches.append(batch)
            end_offset = first_offset + count
        return firsts, batches, end_offset

    def _new_segment(self, first_offset: int) -> LogSegment:
        context = self._context
        path = f"{self.path}/{first_offset:020d}.log"
        if not self.segments:
            context.disk.make_folder("log.folder", self.path)
            context.has_new_folders = True
        if context.disk.exists(path):
            # A segment of this name without a usable batch: the last attempt found no room, or it is damaged.
            self._remove(path)
        file = context.disk.create("log.create", path)
        context.files.add(path, file)
        self._note_names()
        file.write_at("log.header", 0, encode_header(context.store, self.log_id, first_offset))
        segment = LogSegment(path, first_offset)
        if self.segments:
            context.closed.note(self, self.segments[-1])
        self.segments.append(segment)
        return segment

    # --- read ---

    def batches(self, offset: int, end_offset: int) -> Iterator[bytes]:
        """The batches that hold [offset, end_offset), in order. Raises `CorruptLog` or `ColdRange`."""
        while offset < end_offset:
            firsts, batches, offset_after = self._batches_at(offset, end_offset)
            for index in range(bisect_right(firsts, offset) - 1, len(firsts)):
                if firsts[index] >= end_offset:
                    return
                yield batches[index]
            offset = offset_after

    def _batches_at(self, offset: int, end: int) -> tuple[list[int], list[bytes], int]:
        """The run that holds an offset: the first offsets of its batches, their bytes, and the offset after it."""
        if self.unwritten and offset >= self.unwritten[0][0]:
            return [entry[0] for entry in self.unwritten], [entry[2] for entry in self.unwritten], end
        self._open()
        at = bisect_right(self.segments, offset, key=lambda segment: segment.first_offset) - 1
        if at >= 0:
            self._load_once(self.segments[at])
        if at < 0 or offset >= self.segments[at].end_offset:
            following = self.segments[at + 1].first_offset if at + 1 < len(self.segments) else end
            if at < 0:
                raise CorruptLog(self.log_id, offset, self.path, 0, "the records are missing", following)
            missing = self.segments[at]
            raise CorruptLog(self.log_id, offset, missing.path, missing.size_bytes, missing.wrong, following)
        segment = self.segments[at]
        index = segment.find(offset)
        run = segment.runs[index]
        run_end = segment.firsts[index + 1] if index + 1 < len(segment.runs) else segment.end_offset
        if run.batches is None and segment.cold is not None:
            raise ColdRange(self.log_id, offset, segment, index)
        if run.batches is None:
            try:
                wrong = read_run(self._context.files[segment.path], run)
            except OSError as error:
                wrong = f"cannot be read: {error.strerror}"
            if wrong:
                raise CorruptLog(self.log_id, offset, segment.path, run.position, wrong, run_end)
        if segment.cold is None:
            self._context.cache.touch(run)
        else:
            self._context.cold_cache.touch(run)
            self._context.closed.cold_reads += 1
        assert run.firsts is not None
        assert run.batches is not None
        return run.firsts, run.batches, run_end

    def cold_windows(self, offset: int, size_bytes: int) -> list[ColdWindow]:
        """The windows of a cold segment that hold so much from an offset on; none if it is here."""
        self._open()
        at = bisect_right(self.segments, offset, key=lambda segment: segment.first_offset) - 1
        segment = self.segments[at] if at >= 0 else None
        if segment is None or segment.cold is None or offset >= segment.end_offset:
            return []
        self._load_once(segment)
        return windows_from(segment, segment.find(offset), size_bytes, segment.end_offset) if segment.runs else []

    def offset_at(self, at_ms: int, start: int, end: int) -> int | None:
        """The first offset from `start` on whose batch was appended at or after `at_ms`, if there is one."""
        self._open()
        for segment in self.segments:
            if segment.cold is not None and (segment.cold.last_ms < at_ms or segment.end_offset <= start):
                continue  # its index need not be read
            self._load_once(segment)
            # A segment that a full disk left empty has no run.
            for index in range(segment.find(start), len(segment.runs)):
                run = segment.runs[index]
                run_end = segment.firsts[index + 1] if index + 1 < len(segment.runs) else segment.end_offset
                if run.last_ms >= at_ms and run_end > start:
                    firsts, batches, _ = self._batches_at(run.first_offset, end)
                    late = (first for first, batch in zip(firsts, batches, strict=True) if batch_ms(batch) >= at_ms)
                    return max(next(late), start)
        late = (first for first, _, batch in self.unwritten if batch_ms(batch) >= at_ms)
        first_late = next(late, None)
        return None if first_late is None else max(first_late, start)

    def spans(self) -> list[SegmentSpan]:
        return [
            SegmentSpan(segment.first_offset, segment.end_offset, segment.size_bytes, segment.last_ms())
            for segment in self._loaded()
        ]

    # --- the files ---

    def has_closed(self, segment: LogSegment) -> bool:
        """Whether it is still a segment of this log, and not the one that gets the next batch. It is loaded then."""
        at = bisect_right(self.segments, segment.first_offset, key=lambda known: known.first_offset) - 1
        if not 0 <= at < len(self.segments) - 1 or self.segments[at] is not segment:
            return False
        self._load_once(segment)
        return bool(segment.runs)

    def encoded_index(self, segment: LogSegment) -> bytes:
        """The index of a closed segment, whose file is here."""
        return encode_index(self._context.store, self.log_id, segment)

    def drop_file(self, segment: LogSegment, place: ColdPlace) -> None:
        """The archive has this segment, and its tier file is durable: from now on it is read from there. The caller
        deletes the file."""
        self._context.files.forget(segment.path)
        self._dirty.pop(segment.path, None)
        self._context.closed.forget(segment)
        segment.make_cold(place)
        self._context.closed.note_cold(segment)

    def remove_below(self, start: int) -> None:
        """Delete the segments that end at or below an offset."""
        self._open()
        while self.segments and self.segments[0].end_offset <= start and not self.unwritten:
            segment = self.segments.pop(0)
            self._dirty.pop(segment.path, None)
            self._context.closed.forget(segment)
            self._remove(segment.path)

    def remove_all(self) -> None:
        for segment in self.segments:
            self._context.closed.forget(segment)
        for path in [f"{self.path}/{name}" for name in self._context.disk.list(self.path)]:
            self._context.files.forget(path)
            self._context.disk.remove("log.remove", path)
            self._note_names()

    def _open(self) -> None:
        """Look at the files for the first time: trust them up to what was written, cut the rest."""
        if self._opened:
            return
        end = self.written
        names = self._context.disk.list(self.path)
        firsts = sorted({int(name[:20]) for name in names if name.endswith((".log", TIER_SUFFIX))})
        kept = [first for first in firsts if first < end]
        for first in firsts[len(kept) :]:
            self._remove(f"{self.path}/{first:020d}.log")
            self._note_names()
        self.segments = [LogSegment(f"{self.path}/{first:020d}.log", first) for first in kept]
        for segment, following in zip(self.segments, kept[1:], strict=False):
            # All of it lies below what was synced: its index is read when the records are.
            segment.end_offset = following
            segment.loaded = False
        for segment in self.segments:
            if f"{segment.first_offset:020d}.log" not in names:
                self._open_cold(segment)
            elif segment is not self.segments[-1]:
                self._context.closed.note(self, segment)
        if self.segments and self.segments[-1].cold is None and not self.segments[-1].closed:
            self._load(self.segments[-1], end, is_last=True)
        if len(self.segments) > 1 and self.segments[1].first_offset <= self.start:
            self._context.with_trimmed.add(self.log_id)
        self._opened = True

    def _open_cold(self, segment: LogSegment) -> None:
        """A segment of which only the place in the archive is here."""
        place = read_place(self._tier_file(segment), self._context.store, self.log_id, segment.first_offset)
        if place is not None:
            segment.make_cold(place)
            self._context.closed.note_cold(segment)
            return
        segment.wrong = f"{tier_path(segment.path)} is damaged; it names their place in the archive"
        segment.end_offset, segment.loaded, segment.closed = segment.first_offset, True, True

    def _tier_file(self, segment: LogSegment) -> bytes:
        file = self._context.disk.open(tier_path(segment.path))
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def _load(self, segment: LogSegment, end: int, *, is_last: bool = False) -> None:
        context = self._context
        if segment.cold is not None:
            load_cold(self._tier_file(segment), context.store, self.log_id, segment)
            context.closed.note_loaded(segment)
            return
        file = context.files[segment.path]
        if load(context.disk, file, context.store, self.log_id, segment, end, is_last=is_last):
            self._dirty[segment.path] = segment
            self._note_names()

    def _loaded(self) -> list[LogSegment]:
        """All segments, those with a file here with their runs."""
        self._open()
        for segment in self.segments:
            if segment.cold is None:
                self._load_once(segment)
        return self.segments

    def _load_once(self, segment: LogSegment) -> None:
        if not segment.loaded:
            self._load(segment, segment.end_offset)

    def _note_names(self) -> None:
        self._new_names = True
        self._context.dirty[self.log_id] = self

    def _remove(self, path: str) -> None:
        disk = self._context.disk
        self._context.files.forget(path)
        if disk.exists(path):
            disk.remove("log.remove", path)
        index, tier = path.removesuffix(".log") + ".index", tier_path(path)
        if disk.exists(index):
            disk.remove("index.remove", index)
        if disk.exists(tier):
            disk.remove("tier.remove", tier)


def _is_aged(segment: LogSegment, start: int, now_ms: int) -> bool:
    """Whether retention has reached into a segment. It then gets no more records, so that it can be deleted soon."""
    return start > segment.first_offset and bool(segment.runs) and now_ms - segment.runs[0].last_ms >= AGED_MS
