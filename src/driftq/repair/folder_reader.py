"""Reads a data folder without changing it, also while a broker runs on it. Shared by verify, dump, statistics, salvage.

Nothing is locked and nothing is written. A running broker may append, trim the journal and remove files at any time, so
a reader that misses a file starts again (`retry_if_moved`), and a torn write at the end of the journal is not damage:
the next start cuts it. The rules of recovery are in `storage.tail_recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from driftq.core.broker import Broker
from driftq.core.model.frames import decode
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.repair.journal_scan import Damage, JournalFrame, scan_journal
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal, CorruptLog, CorruptSnapshot
from driftq.storage.data_folder import DataFolder, find_folder
from driftq.storage.disk import Disk, ReadOnlyDisk
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.journal_files import HEADER_BYTES, load_segment, load_watermark, segment_numbers, segment_path
from driftq.storage.log_store import MemoryLogStore
from driftq.wire import records

if TYPE_CHECKING:
    from driftq.core.model import facts as f

_Result = TypeVar("_Result")
OnBytes = Callable[[int], None]  # called with the number of bytes just read: progress bars
TRIES = 10  # of a read that a running broker disturbs

_UNBOUNDED = 1 << 62  # an end offset: whatever the files hold
_READ_BYTES = 1 << 20


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


# --- journal and snapshots ---


def read_journal(disk: Disk, folder: DataFolder, known_lsn: int = 0) -> Iterator[JournalFrame | Damage]:
    """`scan_journal` without the torn tail. Resumes where it was if a broker trims the journal in the meantime."""
    after_lsn = 0
    for tries_left in range(TRIES, 0, -1):
        watermark = load_watermark(disk, folder.journal, folder.store)
        durable_lsn = max(known_lsn, watermark.lsn if watermark else 0)
        try:
            for item in scan_journal(disk, folder.journal, folder.store, known_lsn):
                if isinstance(item, JournalFrame):
                    if item.lsn > after_lsn:
                        after_lsn = item.lsn
                        yield item
                elif not _is_torn_tail(disk, folder, item, durable_lsn):
                    yield item
            return
        except FileNotFoundError:
            if tries_left == 1:
                raise


def _is_torn_tail(disk: Disk, folder: DataFolder, damage: Damage, durable_lsn: int) -> bool:
    """Whether this is an unacknowledged block at the very end, after everything that is known to be durable."""
    last = max(segment_numbers(disk, folder.journal), default=0)
    at_the_end = damage.file == segment_path(folder.journal, last) and damage.position >= HEADER_BYTES
    return at_the_end and damage.last_lsn == 0 and damage.first_lsn > durable_lsn


def snapshot_facts(disk: Disk, folder: DataFolder) -> Iterator[f.Fact]:
    """The facts of every readable snapshot, oldest first: they name the logs and groups that the journal mentions."""
    for lsn in snapshots.snapshot_lsns(disk, folder.snapshots):
        try:
            snapshot = snapshots.verify(disk, f"{folder.snapshots}/{lsn:020d}{snapshots.SUFFIX}", folder.store)
            for frame in snapshots.read_frames(disk, snapshot, folder.store):
                yield from decode(frame)
        except (CorruptSnapshot, FileNotFoundError):
            continue


def new_broker() -> Broker:
    """An empty broker to fold facts into. Folding needs neither records nor random numbers."""
    return Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())


def fold_snapshot(disk: Disk, folder: DataFolder, snapshot: snapshots.Snapshot, broker: Broker) -> None:
    for frame in snapshots.read_frames(disk, snapshot, folder.store):
        for fact in decode(frame):
            broker.apply(fact)


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


# --- log files ---


class LogFiles:
    """The log files of a folder, read only. What is damaged is reported, not raised."""

    def __init__(self, disk: Disk, folder: DataFolder) -> None:
        self._disk = disk
        self._folder = folder
        self._store = FileLogStore(
            ReadOnlyDisk(disk), folder.logs, store=folder.store, cache_bytes=4 << 20, open_files=16
        )

    def ids(self) -> list[int]:
        """The numbers of the logs that have a folder."""
        return sorted(int(name) for name in self._disk.list(self._folder.logs) if name.isascii() and name.isdigit())

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
            for batch in batches:
                header = records.read_header(batch)
                if header.first_offset > offset or not records.verify(batch):
                    yield CorruptLog(log_id, offset, self._folder.logs, 0, "not what was written", header.end_offset)
                else:
                    yield batch
                offset = header.end_offset

    def close(self) -> None:
        self._store.close()
