"""Recovery: from a data folder to a running state.

    FORMAT file ──▶ newest valid snapshot ──▶ fold its frames     into the broker and the log store
                        │
                        └─▶ open the journal (`storage.tail_recovery` cuts a torn tail)
                            check that the snapshot belongs to this journal's history
                            replay every frame above the snapshot, fold it

Everything that can be wrong with a folder is noticed here, before anything is served. A folder that is refused is left
as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.core.model.frames import decode
from driftq.engine.projection import StoreReader, project
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptSnapshot
from driftq.storage.data_folder import DataFolder, find_folder, finish_folder, new_folder
from driftq.storage.file_journal import FileJournal
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.journal_files import HEADER_BYTES

if TYPE_CHECKING:
    from driftq.core.context import Chance
    from driftq.core.model.facts import Fact
    from driftq.core.model.limits import BrokerLimits
    from driftq.storage.data_folder import FolderLock
    from driftq.storage.disk import Disk
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore
    from driftq.storage.tail_recovery import Recovery

Progress = Callable[[int, int], None]  # (lsn reached, lsn to reach)
REPORT_EVERY = 50_000
PROJECTED_BYTES = 256 << 10  # the log store is written once per this many bytes of frames


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Sizes that shape the files."""

    journal_segment_bytes: int = 64 << 20
    log_segment_bytes: int = 64 << 20
    cache_bytes: int = 64 << 20
    open_files: int = 256

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


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found."""

    created: bool
    snapshot_lsn: int
    tail_lsn: int
    replayed: int
    journal: Recovery
    damaged_snapshots: tuple[CorruptSnapshot, ...] = ()


@dataclass(slots=True)
class Opened:
    """An open data folder and the broker recovered from it."""

    disk: Disk
    folder: DataFolder
    options: StorageOptions
    broker: Broker
    journal: FileJournal
    store: FileLogStore
    report: RecoveryReport


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
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    snapshots.remove_unfinished(disk, folder.snapshots)
    base_lsn = newest.base_lsn()
    journal = FileJournal.open(
        disk, folder.journal, folder.store, segment_bytes=options.journal_segment_bytes, known_lsn=base_lsn, lock=lock
    )
    store = _log_store(disk, folder, options)
    broker = Broker(limits, StoreReader(store), chance)
    if newest.snapshot is not None:
        _check_chain(journal, newest.snapshot)
        for frame in snapshots.read_frames(disk, newest.snapshot, folder.store):
            facts = decode(frame)
            for fact in facts:
                broker.apply(fact)
            project(store, facts)
    replayed = _replay(journal, broker, store, base_lsn, progress)
    report = RecoveryReport(False, base_lsn, journal.tail_lsn(), replayed, journal.recovery, newest.damaged)
    return Opened(disk, folder, options, broker, journal, store, report)


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
    return Opened(disk, folder, options, broker, journal, store, RecoveryReport(True, 0, 0, 0, journal.recovery))


def _log_store(disk: Disk, folder: DataFolder, options: StorageOptions) -> FileLogStore:
    return FileLogStore(
        disk,
        folder.logs,
        options.log_segment_bytes,
        store=folder.store,
        cache_bytes=options.cache_bytes,
        open_files=options.open_files,
    )


def _check_chain(journal: Journal, snapshot: snapshots.Snapshot) -> None:
    """The snapshot must belong to this journal's history, not to another one of the same length."""
    crc = journal.crc_at(snapshot.lsn)
    if snapshot.chain_crc and crc is not None and crc != snapshot.chain_crc:
        raise CorruptSnapshot(snapshot.path, 0, f"the journal's history up to lsn {snapshot.lsn} is another one")


def _replay(journal: Journal, broker: Broker, store: LogStore, base_lsn: int, progress: Progress | None) -> int:
    apply = broker.apply
    tail_lsn = journal.tail_lsn()
    count = 0
    folded: list[Fact] = []
    folded_bytes = 0
    for lsn, frame in journal.replay(base_lsn):
        facts = decode(frame)
        for fact in facts:
            apply(fact)
        folded += facts
        folded_bytes += len(frame)
        if folded_bytes >= PROJECTED_BYTES:
            project(store, folded)
            folded, folded_bytes = [], 0
        count += 1
        if progress is not None and count % REPORT_EVERY == 0:
            progress(lsn, tail_lsn)
    project(store, folded)
    return count
