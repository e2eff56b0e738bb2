"""A data folder as the storage of an engine: the one place that chooses the concrete journal, log store and snapshots.

    FORMAT file ──▶ newest valid snapshot ──▶ open the journal (`storage.tail_recovery` cuts a torn tail)
                                          ──▶ recover (`engine.recovery`)

A storage of another kind, such as a replicated journal, replaces this module and `Engine.open`; everything else in
`engine` knows only the seams. Everything that can be wrong with a folder is noticed here, before anything is served. A
folder that is refused is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.engine.archiver import Archiver
from driftq.engine.journal_room import JournalRoom
from driftq.engine.projection import StoreReader
from driftq.engine.recovery import Progress, recover
from driftq.engine.segment_mover import SegmentMover
from driftq.engine.snapshot_store import FolderSnapshots
from driftq.storage.archive.bases import BaseCopy
from driftq.storage.data_folder import FORMAT_VERSION, DataFolder, find_folder, finish_folder, new_folder, sync_names
from driftq.storage.file_journal import FileJournal
from driftq.storage.file_log_store import COLD_CACHE_BYTES, SHARE_BYTES, FileLogStore
from driftq.storage.journal_files import HEADER_BYTES
from driftq.storage.shared_segments import SEGMENT_BYTES as SHARED_SEGMENT_BYTES
from driftq.storage.snapshots import remove_unfinished
from driftq.storage.tiers import NO_LIMITS, TierLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.core.context import Chance
    from driftq.core.model.limits import BrokerLimits
    from driftq.engine.archive_bases import ArchiveOptions
    from driftq.storage.archive.bases import Inventory
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.corruption import CorruptSnapshot
    from driftq.storage.data_folder import FolderLock
    from driftq.storage.disk import Disk
    from driftq.storage.tail_recovery import Recovery


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Sizes that shape the files."""

    journal_segment_bytes: int = 64 << 20
    log_segment_bytes: int = 64 << 20
    cache_bytes: int = 64 << 20
    open_files: int = 256
    share_bytes: int = SHARE_BYTES  # what a log may put into shared segments before it gets files of its own
    shared_segment_bytes: int = SHARED_SEGMENT_BYTES
    tier: TierLimits = NO_LIMITS  # how much stays here of what the archive has
    cold_cache_bytes: int = COLD_CACHE_BYTES  # for records that were read back from the archive

    def segment_room_bytes(self) -> int:
        """What an empty journal segment has room for. The sizes below are fractions of it: one spare segment must be
        enough for new work, however small segments are."""
        return self.journal_segment_bytes - HEADER_BYTES

    def block_bytes(self) -> int:
        """What one journal append may hold, unless a single frame is larger."""
        return min(4 << 20, self.segment_room_bytes() // 8)

    def reserve_bytes(self) -> int:
        """Room in the journal that only the end of old work may use when the disk is full."""
        return min(8 << 20, self.segment_room_bytes() // 4)

    def journal_room(self, free_bytes: int) -> JournalRoom:
        """The room rule for a journal of these sizes that can take `free_bytes` now."""
        return JournalRoom(
            free_bytes,
            block_bytes=self.block_bytes(),
            reserve_bytes=self.reserve_bytes(),
            segment_bytes=self.segment_room_bytes(),
        )


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found."""

    created: bool
    snapshot_lsn: int
    tail_lsn: int
    replayed: int
    journal: Recovery
    damaged_snapshots: tuple[CorruptSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class Archive:
    """Where a folder is archived to, and how."""

    objects: ObjectStore
    options: ArchiveOptions


@dataclass(slots=True)
class Opened:
    """An open data folder and the broker recovered from it."""

    disk: Disk
    folder: DataFolder
    options: StorageOptions
    broker: Broker
    journal: FileJournal
    store: FileLogStore
    snapshots: FolderSnapshots
    report: RecoveryReport

    def mover(self, archive: Archive, now_ms: Callable[[], int], post: Callable[..., object]) -> SegmentMover | None:
        """What moves segments to the archive's tier; None if everything stays here."""
        limits = self.options.tier
        if not (limits.local_bytes or limits.local_ms):
            return None
        return SegmentMover(self.disk, self.folder, self.store.tiers, archive.objects, limits, now_ms, post)

    def archiver(self, archive: Archive) -> Archiver:
        """The archiver of this folder, not started."""

        def copy_base(
            generation: str, lsn: int, segment: int, previous: Inventory | None, same_process: bool, token: str
        ) -> BaseCopy:
            return BaseCopy(
                archive.objects, self.disk, self.folder, generation, lsn, segment, previous,
                same_process=same_process, token=token,
            )  # fmt: skip

        return Archiver(
            archive.objects,
            self.folder.store,
            self.journal,
            self.snapshots.newest_lsn,
            copy_base,
            archive.options,
            self.options.journal_segment_bytes,
        )


def open_folder(
    disk: Disk,
    path: str,
    new_store: bytes,
    limits: BrokerLimits,
    chance: Chance,
    options: StorageOptions,
    progress: Progress | None = None,
    *,
    lock: FolderLock | None = None,
) -> Opened:
    """Open a data folder, or make one. The caller holds its lock. Raises what `storage.corruption` defines."""
    folder = find_folder(disk, path)
    if folder is None:
        return _create(disk, path, new_store, limits, chance, options, lock)
    snapshots = FolderSnapshots(disk, folder)
    newest = snapshots.newest()
    remove_unfinished(disk, folder.snapshots)
    base_lsn = newest.lsn if newest is not None else 0
    journal = FileJournal.open(
        disk, folder.journal, folder.store, segment_bytes=options.journal_segment_bytes, known_lsn=base_lsn, lock=lock
    )
    if folder.version < FORMAT_VERSION:
        finish_folder(disk, folder)  # an older version would not find what the log store writes now
    else:
        sync_names(disk, folder)
    store = _log_store(disk, folder, options)
    broker = Broker(limits, StoreReader(store), chance)
    replayed = recover(broker, journal, store, snapshots, newest, progress)
    report = RecoveryReport(False, base_lsn, journal.tail_lsn(), replayed, journal.recovery, snapshots.damaged)
    return Opened(disk, folder, options, broker, journal, store, snapshots, report)


def _create(
    disk: Disk,
    path: str,
    new_store: bytes,
    limits: BrokerLimits,
    chance: Chance,
    options: StorageOptions,
    lock: FolderLock | None,
) -> Opened:
    folder = new_folder(disk, path, new_store)
    journal = FileJournal.create(
        disk, folder.journal, folder.store, segment_bytes=options.journal_segment_bytes, parent=path, lock=lock
    )
    store = _log_store(disk, folder, options)
    finish_folder(disk, folder)
    broker = Broker(limits, StoreReader(store), chance)
    report = RecoveryReport(True, 0, 0, 0, journal.recovery)
    return Opened(disk, folder, options, broker, journal, store, FolderSnapshots(disk, folder), report)


def _log_store(disk: Disk, folder: DataFolder, options: StorageOptions) -> FileLogStore:
    return FileLogStore(
        disk,
        folder.logs,
        options.log_segment_bytes,
        store=folder.store,
        cache_bytes=options.cache_bytes,
        open_files=options.open_files,
        share_bytes=options.share_bytes,
        shared_segment_bytes=options.shared_segment_bytes,
        cold_cache_bytes=options.cold_cache_bytes,
    )
