"""A data folder on a simulated disk, made of given frames, and ways to damage it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from driftq.core.model.frames import decode, encode
from driftq.engine.projection import project
from driftq.repair.folder_reader import JournalFrame, new_broker, scan_journal
from driftq.storage import snapshots
from driftq.storage.data_folder import DataFolder, finish_folder, new_folder
from driftq.storage.file_journal import FileJournal
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.journal_files import HEADER_BYTES
from tests.support.simdisk import SimDisk

PATH = "d"
STORE = bytes(range(16))
SEGMENT_BYTES = HEADER_BYTES + 12_288


def write_folder(
    disk: SimDisk, frames: Sequence[bytes], *, snapshot_lsn: int = 0, log_files: bool = True
) -> DataFolder:
    """The folder that a broker leaves when it has committed these frames, one block each, and stopped cleanly."""
    folder = new_folder(disk, PATH, STORE)
    journal = FileJournal.create(disk, folder.journal, STORE, segment_bytes=SEGMENT_BYTES, parent=PATH)
    store = FileLogStore(disk, folder.logs, 2_000, store=STORE)
    broker = new_broker()
    for lsn, frame in enumerate(frames, 1):
        journal.append(lsn - 1, [frame])
        facts = decode(frame)
        for fact in facts:
            broker.apply(fact)
        if log_files:
            project(store, facts)
        if lsn == snapshot_lsn:
            store.sync()
            images = [encode([fact]) for fact in broker.snapshot()]
            snapshots.save(disk, folder.snapshots, STORE, lsn, images, chain_crc=journal.crc_at(lsn) or 0)
    journal.close()
    store.close()
    finish_folder(disk, folder)
    return folder


def damage_frame(disk: SimDisk, folder: DataFolder, lsn: int, random: Random) -> None:
    """Flip one bit in the block of a frame."""
    items = scan_journal(disk, folder.journal, STORE)
    frame = next(item for item in items if isinstance(item, JournalFrame) and item.lsn == lsn)
    disk.flip(frame.file, 8 * frame.position + random.randrange(8 * (32 + len(frame.frame))))


def log_segments(disk: SimDisk) -> list[str]:
    return sorted(path for path in disk.files() if "/logs/" in path and path.endswith(".log"))
