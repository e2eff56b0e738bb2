"""Reads a data folder without changing it, damaged or in use. Shared by verify, dump, statistics, truncate and salvage.

Nothing is locked and nothing is written. A running broker may append, trim the journal and remove files at any time, so
a reader that misses a file starts again (`retry_if_moved`).

    segment 1                        segment 2
    [header][block][block][?????][block][padding]   [header][block]...
              frames  frames  |     frames             frames
                              Damage(first_lsn, last_lsn)

A block of the journal has a checksum that is seeded with its segment's identity, so a valid block after a damage is
recognised on its own (`find_block`), and its first lsn shows which frames are missing before it. A torn write at the
end is not damage: the next start cuts it (`storage.tail_recovery`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from driftq.core.broker import Broker
from driftq.core.model.frames import UnknownFact, decode
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.storage import blocks, snapshots
from driftq.storage.archive.cloud_objects import BadAddress, open_object_store
from driftq.storage.archive.object_store import ObjectMissing, ObjectStoreError
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptJournal, CorruptLog, CorruptSnapshot
from driftq.storage.data_folder import DataFolder, find_folder
from driftq.storage.disk import Disk, ReadOnlyDisk
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    Segment,
    SegmentHeader,
    find_block,
    load_segment,
    load_watermark,
    scan_segment,
    segment_numbers,
    segment_path,
    used_end,
)
from driftq.storage.log_store import MemoryLogStore
from driftq.storage.tiers import WrongObject, fetch_window
from driftq.wire import records

if TYPE_CHECKING:
    from driftq.core.model import facts as f
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.disk import File

_Result = TypeVar("_Result")
OnBytes = Callable[[int], None]  # called with the number of bytes just read: progress bars
TRIES = 10  # of a read that a running broker disturbs

_UNBOUNDED = 1 << 62  # an end offset: whatever the files hold
_READ_BYTES = 1 << 20
OPEN_LOG_FILES = 16


class NoDataFolder(Exception):
    """There is no data folder at this path."""


def ignore_bytes(size: int) -> None:
    """The `OnBytes` of a caller that shows no progress."""


def require_folder(disk: Disk, path: str) -> DataFolder:
    """The data folder at a path. Raises `NoDataFolder`, or what `storage.corruption` defines for a bad FORMAT file."""
    folder = find_folder(disk, path)
    if folder is None:
        raise NoDataFolder(f"there is no data folder at {path}")
    return folder


def retry_if_moved(read: Callable[[], _Result]) -> _Result:
    """Start again when a file disappears: a checkpoint of the running broker has replaced it."""
    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def file_bytes(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


# --- the journal ---


@dataclass(frozen=True, slots=True)
class JournalFrame:
    """A readable frame, and the file and position of its block."""

    file: str
    position: int
    lsn: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the journal that are not as they were written."""

    file: str
    position: int
    first_lsn: int  # the first frame that is missing
    last_lsn: int  # the last one; 0: unknown, perhaps no frame was there
    reason: str
    is_torn: bool = False  # a write at the end of the journal that was not acknowledged


def read_journal(disk: Disk, folder: DataFolder, known_lsn: int = 0) -> Iterator[JournalFrame | Damage]:
    """`scan_journal` without the torn write. Resumes where it was if a broker trims the journal in the meantime."""
    after_lsn = 0
    for tries_left in range(TRIES, 0, -1):
        try:
            for item in scan_journal(disk, folder.journal, folder.store, known_lsn):
                if isinstance(item, Damage):
                    if not item.is_torn:
                        yield item
                elif item.lsn > after_lsn:
                    after_lsn = item.lsn
                    yield item
            return
        except FileNotFoundError:
            if tries_left == 1:
                raise


def scan_journal(disk: Disk, folder: str, store: bytes, known_lsn: int = 0) -> Iterator[JournalFrame | Damage]:
    """Every readable frame, in order, with every damage between them and the torn write at the end.

    `known_lsn` was durable for certain (it is the newest snapshot's): a journal that ends before it is damaged.
    """
    watermark = load_watermark(disk, folder, store)
    if watermark is None:
        yield Damage(f"{folder}/{WATERMARK}", 0, 1, 0, "the watermark is missing or damaged")
    numbers = [n for n in segment_numbers(disk, folder) if watermark is None or n >= watermark.first_segment]
    first_number = watermark.first_segment if watermark else min(numbers, default=1)
    last_number = max([watermark.last_segment if watermark else 0, *numbers])
    durable_lsn = max(known_lsn, watermark.lsn if watermark else 0)
    next_lsn, prev_crc = 0, 0  # 0: not known yet
    for number in range(first_number, last_number + 1):
        path = segment_path(folder, number)
        if number not in numbers:
            yield Damage(path, 0, next_lsn or 1, 0, "the segment is missing")
            prev_crc = 0
            continue
        segment, reason = _identify(disk, folder, number, store, next_lsn or int(number == 1), prev_crc)
        if reason:
            yield Damage(path, 0, next_lsn or 1, 0, reason)
        if segment is None:
            prev_crc = 0
            continue
        first_lsn = segment.header.first_lsn
        if next_lsn and first_lsn > next_lsn:
            reason = f"the frames before this segment, which begins at lsn {first_lsn}, are missing"
            yield Damage(path, 0, next_lsn, first_lsn - 1, reason)
        file = disk.open(path)
        try:
            next_lsn, prev_crc = yield from _scan_segment(
                file, segment, next_lsn, durable_lsn if number == last_number else None
            )
        finally:
            file.close()
    if 0 < next_lsn <= durable_lsn:
        reason = f"the journal ends here, though lsn {durable_lsn} is known to have been durable"
        yield Damage(segment_path(folder, last_number), 0, next_lsn, durable_lsn, reason)


def _identify(
    disk: Disk, folder: str, number: int, store: bytes, next_lsn: int, prev_crc: int
) -> tuple[Segment | None, str]:
    """A segment by its header; if that is damaged, by the header it must have had after the segment before it."""
    try:
        return load_segment(disk, folder, number, store), ""
    except CorruptJournal as error:
        reason = error.reason
    if not next_lsn:
        return None, reason
    path = segment_path(folder, number)
    file = disk.open(path)
    try:
        header = SegmentHeader(store, number, next_lsn, file.size(), prev_crc)
        guess = Segment(path, header, header.seed())
        _, scan = next(scan_segment(file, guess))
        return (guess if scan.frames else None), reason
    finally:
        file.close()


def _scan_segment(
    file: File, segment: Segment, next_lsn: int, torn_after_lsn: int | None
) -> Generator[JournalFrame | Damage, None, tuple[int, int]]:
    """One segment, resuming after each damage. Returns the state of the chain at its end: next lsn, checksum."""
    next_lsn = max(next_lsn, segment.header.first_lsn)
    start = (HEADER_BYTES, segment.header.prev_crc, segment.header.first_lsn)
    while True:
        position, prev_crc, _ = start
        for base, scan in scan_segment(file, segment, start):
            yield from _frames(file, segment.path, base, scan, next_lsn)
            position, prev_crc = base + scan.position, scan.prev_crc
            next_lsn = max(next_lsn, scan.next_lsn)
        if used_end(file, position, segment.header.size_bytes) == position:
            return next_lsn, prev_crc
        later = find_block(file, segment, position, next_lsn)
        if later is None:
            is_torn = torn_after_lsn is not None and next_lsn > torn_after_lsn
            yield Damage(segment.path, position, next_lsn, 0, "the bytes after the last block are not a block", is_torn)
            return next_lsn, prev_crc
        yield Damage(segment.path, position, next_lsn, later.first_lsn - 1, "the block is damaged")
        next_lsn = later.first_lsn
        start = (later.position, later.prev_crc, later.first_lsn)


def _frames(file: File, path: str, base: int, scan: blocks.Scan, from_lsn: int) -> Iterator[JournalFrame]:
    """The frames of a scan, each with the position of its block."""
    position, first_lsn = base, scan.first_lsn
    while first_lsn < scan.next_lsn:
        header = blocks.HEADER.unpack(file.read_at(position, blocks.HEADER_BYTES))
        length, count = header[3], header[5]
        for lsn in range(max(first_lsn, from_lsn), first_lsn + count):
            yield JournalFrame(path, position, lsn, scan.frames[lsn - scan.first_lsn])
        position += length
        first_lsn += count


# --- snapshots ---


def snapshot_facts(disk: Disk, folder: DataFolder) -> Iterator[f.Fact]:
    """The facts of every readable snapshot, oldest first: they name the logs and groups that the journal mentions."""
    for lsn in snapshots.snapshot_lsns(disk, folder.snapshots):
        try:
            snapshot = snapshots.verify(disk, f"{folder.snapshots}/{lsn:020d}{snapshots.SUFFIX}", folder.store)
            for frame in snapshots.read_frames(disk, snapshot, folder.store):
                yield from decode(frame)
        except (CorruptSnapshot, FileNotFoundError):
            continue


def foreign_snapshots(disk: Disk, folder: DataFolder, readable: list[snapshots.Snapshot]) -> Iterator[CorruptSnapshot]:
    """Snapshots of another history than the journal's. Visible where a segment begins right after a snapshot."""
    by_lsn = {snapshot.lsn: snapshot for snapshot in readable if snapshot.chain_crc}
    for number in segment_numbers(disk, folder.journal):
        try:
            header = load_segment(disk, folder.journal, number, folder.store).header
        except (CorruptJournal, FileNotFoundError):
            continue
        snapshot = by_lsn.get(header.first_lsn - 1)
        if snapshot is not None and snapshot.chain_crc != header.prev_crc:
            yield CorruptSnapshot(snapshot.path, 0, "the snapshot and the journal belong to different histories")


# --- the state ---


def new_broker() -> Broker:
    """An empty broker to fold facts into. Folding needs neither records nor random numbers."""
    return Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())


class FolderFold:
    """The state of a folder: a snapshot, or nothing, and the frames of the journal after it."""

    def __init__(self, disk: Disk, folder: DataFolder, base: snapshots.Snapshot | None) -> None:
        self.broker = new_broker()
        self.base_lsn = self.lsn = base.lsn if base is not None else 0  # `lsn`: the last one that is folded
        self.is_spoilt = False  # a frame was folded in part: the state is not that of any lsn
        if base is not None:
            for frame in snapshots.read_frames(disk, base, folder.store):
                for fact in decode(frame):
                    self.broker.apply(fact)

    def take(self, frame: JournalFrame) -> Damage | None:
        """Fold a frame, unless the snapshot has it. Returns why neither it nor any later frame can be folded."""
        if frame.lsn <= self.base_lsn:
            return None
        if frame.lsn != self.lsn + 1:
            reason = f"lsn {frame.lsn} follows lsn {self.lsn}: the frames between them are missing"
            return Damage(frame.file, frame.position, self.lsn + 1, frame.lsn - 1, reason)
        try:
            for fact in decode(frame.frame):
                self.broker.apply(fact)
        except UnknownFact:
            raise
        except Exception as error:  # a frame that is readable and makes no sense
            self.is_spoilt = True
            reason = f"the frame does not fit the state before it ({type(error).__name__}: {error})"
            return Damage(frame.file, frame.position, frame.lsn, frame.lsn, reason)
        self.lsn = frame.lsn
        return None


# --- log files ---


class LogFiles:
    """The log files of a folder, read only. What is damaged is reported, not raised."""

    def __init__(self, disk: Disk, folder: DataFolder) -> None:
        self._disk = disk
        self._folder = folder
        self._store = FileLogStore(
            ReadOnlyDisk(disk), folder.logs, store=folder.store, cache_bytes=4 << 20, open_files=OPEN_LOG_FILES
        )
        self._archives: dict[str, ObjectStore] = {}  # by address, of segments that are not here

    def ids(self) -> list[int]:
        """The numbers of the logs that have a folder or batches in shared segments."""
        return sorted(self._store.log_ids())

    def end(self, log_id: int) -> int:
        """The offset after the last record in the files, whatever the journal says; 0 if there is none."""
        self._store.restore(log_id, 0, _UNBOUNDED)
        return max((span.end_offset for span in self._store.spans(log_id)), default=0)

    def batches(self, log_id: int, start: int, end: int) -> Iterator[bytes | CorruptLog]:
        """The batches that cover [start, end), and the damage between them. The first may begin before `start`."""
        self._store.restore(log_id, start, end)
        offset = start
        while offset < end:
            try:
                batches = self._store.read(log_id, offset, end, _READ_BYTES)
            except CorruptLog as error:
                yield error
                offset = error.end_offset
                continue
            except ColdRange as cold:
                away = self._fetch(cold)
                if away:
                    reason = f"the records are only in the archive, and it cannot be read: {away}"
                    yield CorruptLog(log_id, offset, cold.place.key, 0, reason, cold.segment_end)
                    offset = cold.segment_end
                continue
            for batch in batches:
                header = records.read_header(batch)
                if header.first_offset > offset or not records.verify(batch):
                    yield CorruptLog(log_id, offset, self._folder.logs, 0, "not what was written", header.end_offset)
                else:
                    yield batch
                offset = header.end_offset

    def _fetch(self, cold: ColdRange) -> str:
        """Read what is only in the archive from there; returns why that failed."""
        url = cold.place.url
        try:
            objects = self._archives.get(url)
            if objects is None:
                objects = self._archives[url] = open_object_store(url)
            for window in cold.windows():
                self._store.tiers.keep(window, fetch_window(objects, window))
        except ObjectMissing as error:
            return f"{error} is missing in {url}"
        except (ObjectStoreError, BadAddress, WrongObject) as error:
            return f"{url}: {error}"
        return ""

    def close(self) -> None:
        self._store.close()
