"""The journal in local files: `FileJournal`. One append is one block, one write and one fdatasync.

    journal/00000007.journal    closed: nothing is written to it any more
    journal/00000008.journal    active: | header page | block | block | block | zeros ... |
    journal/spare.tmp           preallocated, becomes 00000009.journal: the reserve against a full disk
    journal/watermark           two slots: an lsn that is certainly durable, and which segments must exist

Segments are preallocated, so an append never changes a file's size and cannot run out of space. Blocks are chained by
checksum across segments (`storage.blocks`, `storage.journal_files`). The files that are open for writing are in
`storage.journal_writer`; this module decides when they are written, and what a failure means.

**One unsynced block.** A block is written only after the sync of the one before it returned. So at most the last block
can be torn, and `storage.tail_recovery` can distinguish a torn tail from lost data.

**Roll.** When a block does not fit, the spare gets its header, is synced and renamed, and the folder is synced. Only
then is a block written to it; until then the old segment is the last one, and nothing has happened. A segment that is
closed early (`close_segment`) is followed by a new file and not by the spare: frames that are decided but not appended
count on the room there was.

**Trim.** First the watermark is saved, so that the segments need not exist any more; then they are removed.

**Fail-stop.** After a failed write, sync, truncate or rename the object is dead and every later call raises: what a
failed sync left on the device is unknowable, and a second sync may report success without having written anything. So a
failed append is `AppendUnknown`. It is `JournalUnavailable` only if the disk had no room for a new segment: then no
byte of the block was written.

It knows neither threads nor time: calls come one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal, FilesMoved
from driftq.storage.disk import Disk, DiskFailed, DiskFull
from driftq.storage.journal import AppendUnknown, JournalUnavailable, WrongTail
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    WATERMARK_BYTES,
    Segment,
    SegmentHeader,
    Watermark,
    clear_unused,
    name_segment,
    replay_segments,
)
from driftq.storage.journal_reader import JournalReader
from driftq.storage.journal_writer import SPARE, ActiveSegment, SpareSegment, WatermarkFile
from driftq.storage.tail_recovery import JournalTail, Recovery, cut_torn_tail, find_tail, remove_leftovers, survey

if TYPE_CHECKING:
    from driftq.storage.data_folder import FolderLock

SEGMENT_BYTES = 64 << 20
_EXTRA = "extra.tmp"  # a segment that is not made from the spare, before it has its name


class FileJournal:
    """Frames in segment files. Made by `create` or `open`, never directly."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        store: bytes,
        segment_bytes: int,
        segments: list[Segment],
        active: ActiveSegment,
        watermark: WatermarkFile,
        recovery: Recovery,
        lock: FolderLock | None = None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._store = store  # the 16 bytes of the store's uuid: part of every header and checksum
        self._segments = segments  # in order; the last one is active
        self._active = active  # the last segment, and where the journal ends
        self._spare = SpareSegment(disk, folder, segment_bytes)
        self._watermark = watermark
        self._dead: Exception | None = None  # raised by every call after a failure, or after `close`
        self._lock = lock  # of the data folder: checked with the files, released by `close`
        self.recovery = recovery  # what opening found and did
        self.make_room()

    # --- create and open ---

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: str,
        store: bytes,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        first_lsn: int = 1,
        prev_crc: int = 0,
        number: int = 1,
        parent: str | None = None,
        lock: FolderLock | None = None,
    ) -> FileJournal:
        """An empty journal after the history that `prev_crc` stands for; its first segment gets `number`. Leftovers of
        an interrupted creation are removed; a journal that holds frames is refused."""
        disk.make_folder("journal.folder", folder)
        clear_unused(disk, folder)
        marks = disk.create("journal.watermark.create", f"{folder}/{WATERMARK}.tmp", WATERMARK_BYTES)
        watermark = WatermarkFile(marks, store, Watermark(0, first_lsn - 1, number, number))
        watermark.write(watermark.saved)
        disk.rename("journal.watermark.rename", marks.path, f"{folder}/{WATERMARK}")
        marks.path = f"{folder}/{WATERMARK}"
        file = disk.create("journal.allocate", f"{folder}/{SPARE}", segment_bytes)
        header = SegmentHeader(store, number, first_lsn, segment_bytes, prev_crc)
        segment = name_segment(disk, folder, file, header)
        if parent is not None:
            disk.sync_folder("journal.parent.sync", parent)
        active = ActiveSegment(file, JournalTail(segment, HEADER_BYTES, prev_crc, first_lsn - 1, -1))
        recovery = Recovery(first_lsn, first_lsn - 1, first_lsn - 1, 1)
        return cls(disk, folder, store, segment_bytes, [segment], active, watermark, recovery, lock)

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        store: bytes,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        known_lsn: int = 0,
        lock: FolderLock | None = None,
    ) -> FileJournal:
        """The journal as it was left. `known_lsn` is one the caller knows to be durable (its snapshot's).

        Raises `CorruptJournal` or `FormatTooNew` with nothing changed, or `DiskFailed`.
        """
        watermark, segments = survey(disk, folder, store)
        durable_lsn = max(watermark.lsn, known_lsn)
        file = disk.open(segments[-1].path, write=True)
        try:
            tail, torn_bytes = find_tail(file, segments[-1], durable_lsn)
            torn = cut_torn_tail(disk, folder, file, tail, torn_bytes) if torn_bytes else None
            if tail.tail_lsn > durable_lsn and tail.last_block_at >= 0:
                # The last block may be readable only because the system still caches it; after a failed sync, syncing
                # again would not write it. Writing the same bytes again does.
                last = file.read_at(tail.last_block_at, tail.position - tail.last_block_at)
                file.write_at("journal.rewrite", tail.last_block_at, last)
            file.sync("journal.open.sync")
            marks = disk.open(f"{folder}/{WATERMARK}", write=True)
        except BaseException:
            file.close()
            raise
        try:
            # The same holds for the watermark: segments may be removed only when no older slot of it can be read.
            watermark_file = WatermarkFile(marks, store, watermark)
            watermark_file.write(watermark)
            removed = remove_leftovers(disk, folder, watermark.first_segment)
            # A segment may have got its name just before a crash; the name must be durable before a frame relies on it.
            disk.sync_folder("journal.open.sync_folder", folder)
        except BaseException:
            file.close()
            marks.close()
            raise
        shortened = tuple(segment.path for segment in segments if segment.cut_to_bytes)
        recovery = Recovery(
            segments[0].header.first_lsn, tail.tail_lsn, watermark.lsn, len(segments), torn, shortened, removed
        )
        active = ActiveSegment(file, tail)
        return cls(disk, folder, store, segment_bytes, segments, active, watermark_file, recovery, lock)

    # --- the journal seam ---

    def tail_lsn(self) -> int:
        return self._active.tail_lsn

    def first_lsn(self) -> int:
        """The first lsn of the oldest segment."""
        return self._segments[0].header.first_lsn

    def closed_lsn(self) -> int:
        """The last lsn of the closed segments."""
        return self._segments[-1].header.first_lsn - 1

    def close_segment(self) -> None:
        self._check_alive()
        segment_bytes = self._spare.size_bytes
        if self._active.tail_lsn == self.closed_lsn() or self._active.room_bytes() > segment_bytes - HEADER_BYTES:
            return
        try:
            self._roll(segment_bytes, keep_spare=True)
        except DiskFull:
            return  # nothing has happened; a full segment is closed later
        except DiskFailed as error:
            self._dead = error
            raise

    def crc_at(self, lsn: int) -> int | None:
        """The checksum that stands for the history up to `lsn`, where a segment or the journal ends; else None."""
        if lsn == self._active.tail_lsn:
            return self._active.prev_crc
        return next(
            (segment.header.prev_crc for segment in self._segments if segment.header.first_lsn == lsn + 1), None
        )

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        self._check_alive()
        if expected_lsn != self._active.tail_lsn:
            raise WrongTail(expected_lsn, self._active.tail_lsn)
        if not frames:
            return expected_lsn
        try:
            self._make_room_for(frames)
            self._active.write(frames)
        except (DiskFull, DiskFailed) as error:  # a full disk may have taken a part of the block, or all of it
            self._dead = AppendUnknown(str(error))
            raise self._dead from error
        return self._active.tail_lsn

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        """Every frame above `after_lsn` up to the present tail, verified as it is read."""
        if after_lsn + 1 < self.first_lsn():
            reason = f"lsn {after_lsn + 1} was requested; the journal begins at {self.first_lsn()}"
            raise CorruptJournal(self._segments[0].path, 0, after_lsn + 1, self.first_lsn() - 1, reason)
        return replay_segments(self._disk, list(self._segments), after_lsn, self._active.tail_lsn)

    def trim(self, before_lsn: int) -> None:
        self._check_alive()
        keep = 0
        while keep + 1 < len(self._segments) and self._segments[keep + 1].header.first_lsn <= before_lsn:
            keep += 1
        if not keep:
            return
        try:
            trimmed, self._segments = self._segments[:keep], self._segments[keep:]
            # The watermark must say durably that these segments may be missing before one is.
            self._save_watermark()
            for segment in trimmed:
                self._disk.remove("journal.trim.remove", segment.path)
            self._disk.sync_folder("journal.trim.sync_folder", self._folder)
        except DiskFull:
            return  # some filesystems need space to delete; the rest is removed at the next open
        except DiskFailed as error:
            self._dead = error
            raise

    def reader(self, after_lsn: int) -> JournalReader:
        """For a copy of the journal elsewhere: its blocks as they are, from the one after `after_lsn` on, for use on
        another thread. Raises `CorruptJournal` if no block begins there."""
        return JournalReader(self._disk, self._folder, self._store, lambda: self._active.end, after_lsn)

    def segment_numbers(self) -> dict[int, int]:
        """The number of each segment, by the lsn that it begins with: where a copy of the journal can begin."""
        return {segment.header.first_lsn: segment.header.number for segment in list(self._segments)}

    def room_bytes(self) -> int:
        return self._active.room_bytes() + self._spare.room_bytes()

    def close(self) -> None:
        """Save the watermark, so that the next open notices every lost byte; close the files and release the lock."""
        try:
            if self._dead is None and self._watermark.saved.lsn != self._active.tail_lsn:
                self._save_watermark()
        finally:
            self._dead = self._dead or ValueError("the journal is closed")
            for file in (self._active.file, self._watermark.file, self._spare.file):
                if file is not None:
                    file.close()
            if self._lock is not None:
                self._lock.release()

    # --- maintenance: about once a second ---

    def maintain(self) -> None:
        self.check_owner()
        self.save_watermark()
        self.make_room()

    def make_room(self) -> bool:
        """Create the spare segment if there is none. False while the disk has no room for it."""
        self._check_alive()
        try:
            self._spare.allocate()
        except DiskFull:
            return False
        except DiskFailed as error:
            self._dead = error
            raise
        return True

    def save_watermark(self) -> None:
        """Store durably that everything up to the tail is durable."""
        self._check_alive()
        if self._watermark.saved.lsn == self._active.tail_lsn:
            return
        try:
            self._save_watermark()
        except DiskFull:
            return  # only on filesystems that do not preallocate; the older watermark stays valid
        except DiskFailed as error:
            self._dead = error
            raise

    # --- inside ---

    def check_owner(self) -> None:
        """Raises `FilesMoved` if a file that must be there is gone or replaced, or if the folder's lock no longer
        protects anything. Nothing is written after that."""
        self._check_alive()
        for file in (self._active.file, self._watermark.file, self._spare.file):
            if file is not None and not file.is_in_place():
                self._abandon(FilesMoved(file.path))
        for segment in self._segments[:-1]:
            if not self._disk.exists(segment.path):
                self._abandon(FilesMoved(segment.path))
        if self._lock is not None:
            try:
                self._lock.check()
            except FilesMoved as error:
                self._abandon(error)

    def _abandon(self, error: Exception) -> NoReturn:
        """Refuse every later call."""
        self._dead = error
        raise error

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _save_watermark(self) -> None:
        first, last = self._segments[0].header.number, self._segments[-1].header.number
        self._watermark.save(self._active.tail_lsn, first, last)

    def _make_room_for(self, frames: Sequence[bytes]) -> None:
        """Raises `JournalUnavailable` if they do not fit and the disk has no room for another segment."""
        needed_bytes = blocks.block_bytes(frames)
        if needed_bytes > self._active.room_bytes():
            size_bytes = max(self._spare.size_bytes, HEADER_BYTES + needed_bytes)
            try:
                self._roll(size_bytes, keep_spare=size_bytes > self._spare.size_bytes)
            except DiskFull as error:
                raise JournalUnavailable(str(error)) from error

    def _roll(self, size_bytes: int, *, keep_spare: bool) -> None:
        """Continue in a new segment. Until its name is durable, the old one stays the last and nothing has happened."""
        self.check_owner()
        if keep_spare:
            file = self._disk.create("journal.allocate", f"{self._folder}/{_EXTRA}", size_bytes)
        else:
            file = self._spare.allocate()
        number = self._segments[-1].header.number + 1
        header = SegmentHeader(self._store, number, self._active.tail_lsn + 1, size_bytes, self._active.prev_crc)
        try:
            segment = name_segment(self._disk, self._folder, file, header)
        except DiskFull:
            if keep_spare:
                file.close()
                self._disk.remove("journal.extra.remove", file.path)
            raise
        if not keep_spare:
            self._spare.file = None
        self._segments.append(segment)
        self._active.move_to(file, segment)
        self._save_watermark()
        self.make_room()
