"""A consistent copy of a data folder, also while a broker works in it.

    freeze ──▶ FrozenFolder ──entries──▶ FolderCopy ──finish──▶ a data folder that opens
               (links to the files)      (or a tar stream over HTTP, and a FolderCopy at its other end)

A broker appends to files and removes whole files; it changes no byte that a reader relies on. So a hard link to each
file and the length that counts are a copy that costs nothing, and the bytes are read when there is time. The links are
in a hold, a folder inside the data folder. Files are noted in this order, because each may be older than the next and
never newer:

    1. snapshots     2. watermark     3. journal, up to its last whole block     4. log files, up to their present size

Everything that was acknowledged before is in the journal by then. It is consistent if the newest of these snapshots is
still in the folder at the end: files that it needs are removed only after it was (`engine.checkpointer`). Otherwise it
is done again. An index may be written after its log file was noted; one that describes more than was noted is left out.

A copy counts once it has a FORMAT file, which is written last. This module does not know where bytes are sent, and
checks no record: `repair.verify` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from driftq.storage import blocks, log_segment, shared_segment, snapshots
from driftq.storage.archive.cloud_objects import ArchivedBytesAway, archived_bytes
from driftq.storage.cold_segments import SUFFIX, ColdPlace, decode_place, index_of
from driftq.storage.corruption import CorruptJournal
from driftq.storage.data_folder import PRIVATE, DataFolder, FolderInUse, FolderLock, find_folder
from driftq.storage.disk import Disk, DiskFull, OsDisk
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    WATERMARK_BYTES,
    SegmentHeader,
    load_segment,
    read_segment_header,
    read_watermark,
    scan_segment,
    segment_numbers,
    segment_path,
)

HOLD = "backup.hold-"  # and the process that made it
TRIES = 20
PIECE_BYTES = 256 << 10
_FORMAT = "FORMAT"
_NAME = re.compile(
    r"FORMAT|journal/watermark|journal/\d{8}\.journal|snapshots/\d{20}\.snapshot"
    r"|logs/shared/\d{1,20}\.(log|index)|logs/\d{1,20}/\d{20}\.(log|index)",
    re.ASCII,
)


class BackupFailed(Exception):
    """No copy could be made; the message says why and what to do."""


class _Changed(Exception):
    """Files were removed while they were noted: begin again."""


class BackupEntry(NamedTuple):
    """One file of a copy: `data`, or the first bytes of the file at `path`; then zeros."""

    name: str  # its path inside the folder
    path: str = ""
    size_bytes: int = 0
    data: bytes = b""
    zeros: int = 0
    cold: ColdPlace | None = None  # its bytes are only in the archive

    @property
    def total_bytes(self) -> int:
        return self.size_bytes + len(self.data) + self.zeros

    def pieces(self) -> Iterator[bytes]:
        """Its bytes. Raises `BackupFailed` if the file has become shorter: a broker was started in between; or if the
        archive cannot be read."""
        if self.cold is not None:
            try:
                yield from archived_bytes(self.cold)
            except ArchivedBytesAway as error:
                raise BackupFailed(str(error)) from error
        elif self.path:
            with open(self.path, "rb") as file:
                left = self.size_bytes
                while left:
                    piece = file.read(min(PIECE_BYTES, left))
                    if not piece:
                        raise BackupFailed(
                            f"{self.name} was cut while it was copied. Was the broker restarted? Try again"
                        )
                    left -= len(piece)
                    yield piece
        if self.data:
            yield self.data
        if self.zeros:
            yield bytes(self.zeros)


class FrozenFolder:
    """The files of a data folder as they were at one moment. Close it to release what it holds."""

    def __init__(self, lsn: int, entries: list[BackupEntry], last: BackupEntry, hold: _Hold) -> None:
        self.lsn = lsn  # the last frame of the journal that is in it
        self._entries = entries
        self._last = last  # the FORMAT file
        self._hold = hold

    def entries(self) -> Iterator[BackupEntry]:
        """Every file, the FORMAT file last."""
        log_bytes = {entry.name: entry.size_bytes for entry in self._entries}
        for entry in self._entries:
            if entry.data or not entry.name.endswith(".index"):
                yield entry
                continue
            index = _index(entry, log_bytes.get(f"{entry.name.removesuffix('.index')}.log", 0))
            if index is not None:
                yield index
        yield self._last

    def close(self) -> None:
        self._hold.close()


def freeze(path: str) -> FrozenFolder:
    """Note the files of a data folder, whether a broker works in it or not. Raises `BackupFailed`, and what
    `storage.corruption` defines for a FORMAT file or a journal that is damaged."""
    disk = OsDisk()
    folder = find_folder(disk, path)
    if folder is None:
        raise BackupFailed(f"there is no data folder at {path}")
    remove_stale_holds(path)
    hold = _new_hold(path)
    try:
        for _ in range(TRIES):
            try:
                return _frozen(disk, folder, hold)
            except (_Changed, FileNotFoundError):
                hold.clear()
    except BaseException:
        hold.close()
        raise
    hold.close()
    raise BackupFailed(f"{path} changed faster than its files could be noted; try again when the broker has less to do")


def _frozen(disk: Disk, folder: DataFolder, hold: _Hold) -> FrozenFolder:
    kept = [f"snapshots/{lsn:020d}{snapshots.SUFFIX}" for lsn in snapshots.snapshot_lsns(disk, folder.snapshots)]
    entries = [hold.entry(name) for name in kept]
    watermark = _read(f"{folder.journal}/{WATERMARK}")[:WATERMARK_BYTES]
    journal, first_lsn, lsn = _journal_entries(disk, folder, hold, watermark)
    usable = [entry for entry in entries if _snapshot_lsn(entry.name) + 1 >= first_lsn]
    if first_lsn > 1 and not usable:
        raise _Changed
    logs = [entry for name in _log_names(folder) for entry in _log_entries(folder, hold, name)]
    present = snapshots.snapshot_lsns(disk, folder.snapshots)
    if (_snapshot_lsn(kept[-1]) not in present) if kept else len(present) >= snapshots.GENERATIONS:
        raise _Changed
    mark = BackupEntry(f"journal/{WATERMARK}", data=watermark)
    format_file = BackupEntry(_FORMAT, data=_read(f"{folder.path}/{_FORMAT}"))
    return FrozenFolder(lsn, [*usable, mark, *journal, *logs], format_file, hold)


def _snapshot_lsn(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(snapshots.SUFFIX))


def _journal_entries(
    disk: Disk, folder: DataFolder, hold: _Hold, watermark_bytes: bytes
) -> tuple[list[BackupEntry], int, int]:
    """The segments up to the last whole block, with the first and the last lsn in them."""
    watermark = read_watermark(watermark_bytes, folder.store)
    if watermark is None:
        raise CorruptJournal(f"{folder.journal}/{WATERMARK}", 0, 1, 0, "the watermark is damaged")
    numbers = [number for number in segment_numbers(disk, folder.journal) if number >= watermark.first_segment]
    if numbers != list(range(watermark.first_segment, max([watermark.last_segment, *numbers]) + 1)):
        raise _Changed  # trimmed, or (found again each time) a segment is missing
    entries: list[BackupEntry] = []
    first_lsn, next_lsn = 0, 0
    for number in numbers:
        entry = hold.entry(f"journal/{segment_path('', number)[1:]}")
        segment = load_segment(disk, entry.path.rpartition("/")[0], number, folder.store)
        first_lsn = first_lsn or segment.header.first_lsn
        position = HEADER_BYTES
        file = disk.open(entry.path)
        try:
            for base, scan in scan_segment(file, segment):
                position, next_lsn = base + scan.position, scan.next_lsn
        finally:
            file.close()
        # Zeros after the last block show that no block is missing, also where the rest of the file is not restored.
        room = segment.header.size_bytes - position
        entries.append(entry._replace(size_bytes=position, zeros=min(blocks.HEADER_BYTES, room)))
    return entries, first_lsn, next_lsn - 1


def _log_names(folder: DataFolder) -> Iterator[str]:
    if not os.path.isdir(folder.logs):
        return
    for log in sorted(os.listdir(folder.logs)):
        with contextlib.suppress(NotADirectoryError):
            for name in sorted(os.listdir(f"{folder.logs}/{log}")):
                path = f"logs/{log}/{name}"
                if _NAME.fullmatch(path) or name.endswith(SUFFIX):
                    yield path


def _log_entries(folder: DataFolder, hold: _Hold, name: str) -> Iterator[BackupEntry]:
    """A file as it is. Of a segment that is only in the archive the file that it was: a copy stands alone."""
    if not name.endswith(SUFFIX):
        yield hold.entry(name)
        return
    stem = name.removesuffix(SUFFIX)
    if os.path.exists(f"{folder.path}/{stem}.log"):
        return  # it has not left the disk
    data = _read(f"{folder.path}/{name}")
    place = decode_place(data)
    if place is None:
        raise BackupFailed(f"{name} is damaged; it names the place of a segment in the archive")
    yield BackupEntry(f"{stem}.log", size_bytes=place.size_bytes, cold=place)
    yield BackupEntry(f"{stem}.index", data=index_of(data))


def _index(entry: BackupEntry, log_bytes: int) -> BackupEntry | None:
    """An index as it is now, if it describes no more than was noted of its log file."""
    data = _read(entry.path)
    described = shared_segment if entry.name.startswith("logs/shared/") else log_segment
    end = described.index_end(data)
    return BackupEntry(entry.name, data=data) if end is not None and end <= log_bytes else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- what keeps files from disappearing ---


class _Hold:
    """Keeps the files of a folder readable: by the folder's lock while no broker runs, else by links."""

    def __init__(self, folder: str, lock: FolderLock | None, links: str, descriptor: int) -> None:
        self._folder = folder
        self._lock = lock
        self._links = links
        self._descriptor = descriptor  # of the folder of links, locked as long as this process needs it

    def entry(self, name: str) -> BackupEntry:
        path = f"{self._folder}/{name}"
        if self._links:
            link = f"{self._links}/{name}"
            os.makedirs(os.path.dirname(link), mode=PRIVATE, exist_ok=True)
            try:
                os.link(path, link)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise BackupFailed(
                    f"{path} cannot be linked ({error.strerror}), so a running broker cannot be copied here. Stop it "
                    "for the copy, or let the filesystem take a snapshot of the folder"
                ) from error
            path = link
        return BackupEntry(name, path, os.stat(path).st_size)

    def clear(self) -> None:
        if self._links:
            for name in os.listdir(self._links):
                shutil.rmtree(f"{self._links}/{name}", ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
        if self._links:
            shutil.rmtree(self._links, ignore_errors=True)
            os.close(self._descriptor)
            self._links = ""


def _new_hold(folder: str) -> _Hold:
    try:
        return _Hold(folder, FolderLock(folder), "", -1)
    except FolderInUse:
        pass
    links = f"{folder}/{HOLD}{os.getpid()}"
    try:
        os.mkdir(links, PRIVATE)
    except FileExistsError:
        raise BackupFailed("another backup of this folder is under way; wait until it is done") from None
    except OSError as error:
        raise BackupFailed(
            f"{folder} cannot be written by this user ({error.strerror}): copy over HTTP, or as the broker's user"
        ) from error
    descriptor = os.open(links, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return _Hold(folder, None, links, descriptor)


def remove_stale_holds(folder: str) -> None:
    """Remove what backups left that were killed: their links keep files on the disk that nothing needs."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        if not name.startswith(HOLD):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
            finally:
                os.close(descriptor)


# --- the other end ---


class FolderCopy:
    """A folder that files are added to. It is a data folder after `finish`, and none before."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.files = 0
        self._format: bytes | None = None
        try:
            os.makedirs(path, mode=PRIVATE, exist_ok=True)
            if os.listdir(path):
                raise BackupFailed(f"{path} is not empty. Name a new folder for the copy.")
        except OSError as error:
            raise BackupFailed(f"{path} cannot be made: {error.strerror}") from error
        os.chmod(path, PRIVATE)

    def add(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write one file, durably. Raises `DiskFull`, or `BackupFailed` for a name that no data folder has."""
        if not _NAME.fullmatch(name):
            raise BackupFailed(f"{name!r} is no file of a data folder: this is not a backup of driftq")
        if name == _FORMAT:
            self._format = b"".join(pieces)
            return
        path = f"{self.path}/{name}"
        os.makedirs(os.path.dirname(path), mode=PRIVATE, exist_ok=True)
        file = OsDisk().create("backup.create", path)
        try:
            position = 0
            for piece in pieces:
                file.write_at("backup.write", position, piece)
                position += len(piece)
            file.sync("backup.sync")
        finally:
            file.close()
        self.files += 1
        self.size_bytes += position

    def finish(self) -> None:
        """Give the journal its full size, make all names durable, and write the FORMAT file."""
        if self._format is None:
            raise BackupFailed("the copy ended before its last file; try again")
        journal = f"{self.path}/journal"
        numbers = segment_numbers(OsDisk(), journal)
        for number in numbers:
            _allocate(segment_path(journal, number), is_last=number == numbers[-1])
        disk = OsDisk()
        for folder, _, _ in os.walk(self.path):
            disk.sync_folder("backup.sync_folder", folder)
        target = f"{self.path}/{_FORMAT}"
        file = disk.create("backup.create", f"{target}.tmp")
        file.write_at("backup.write", 0, self._format)
        file.sync("backup.sync")
        file.close()
        disk.rename("backup.rename", f"{target}.tmp", target)
        disk.sync_folder("backup.sync_folder", self.path)
        disk.sync_folder("backup.sync_folder", os.path.dirname(os.path.abspath(self.path)))


def _allocate(path: str, *, is_last: bool) -> None:
    """A segment has its full size from the beginning, so that appending to the last one needs no room."""
    with open(path, "r+b") as file:
        header = read_segment_header(file.read(HEADER_BYTES))
        if not isinstance(header, SegmentHeader):
            raise BackupFailed(f"{path} is not a segment of a journal; see `driftq inspect verify` for the original")
        try:
            if is_last:
                os.posix_fallocate(file.fileno(), 0, header.size_bytes)
            else:
                file.truncate(header.size_bytes)
        except OSError as error:
            raise DiskFull(f"{path}: {error.strerror}") from error
        os.fsync(file.fileno())
