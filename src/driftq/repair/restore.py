"""Restore: a data folder from an archive, as the broker was at an lsn, at a time, or last.

    1. choose   the newest base that is not after the target; without one, the history from lsn 1
    2. files    the snapshot and the files of the log store, each piece verified
    3. journal  the chunks after the base, each verified and chained to the one before, at the places they came from
    4. FORMAT   written last: a folder without it is no data folder, so a restore that was interrupted is not used

The folder then opens like any folder after a crash: what the log files hold beyond the snapshot is cut, and the journal
is replayed. If a base is damaged, the one before it is used, with more of the journal.

The restored folder is the same store. When it is served with the same archive, it begins a generation of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import google_crc32c

from driftq.core.model.frames import decode
from driftq.storage import blocks, snapshots
from driftq.storage.archive.bases import ArchivedFile, Inventory, Piece, load_inventory
from driftq.storage.archive.chunks import journal_prefix, key_lsn
from driftq.storage.archive.history import FETCHES, DamagedArchive, cut, history_runs, load_manifest
from driftq.storage.archive.manifest import Base, Manifest, Stretch, bases_of, history
from driftq.storage.archive.object_store import ObjectMissing
from driftq.storage.data_folder import DataFolder, finish_folder, new_folder
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    WATERMARK_BYTES,
    SegmentHeader,
    Watermark,
    segment_path,
)
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.disk import Disk, File
    from driftq.storage.journal_reader import JournalRun

_Task = tuple[str, list[tuple[str, int, Piece]]]  # an object; for each piece: the file and the position in it


class NotInArchive(Exception):
    """The archive does not reach back, or on, to this point."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The point to restore; without either, the newest one."""

    lsn: int | None = None
    at_ms: int | None = None
    generation: str = ""  # "": the newest


@dataclass(slots=True)
class RestoreReport:
    """What was restored."""

    generation: str
    base_lsn: int = 0  # 0: from the beginning of the history
    base_bytes: int = 0
    files: int = 0
    chunks: int = 0
    journal_bytes: int = 0
    tail_lsn: int = 0
    shipped_ms: int = 0  # when the last chunk was shipped
    gap: tuple[int, int] | None = None  # lsns that are missing, though later ones are there
    damaged: list[str] = field(default_factory=list)  # bases that could not be used, and why


def restore(
    objects: ObjectStore, disk: Disk, path: str, target: RestorePoint, *, threads: int = FETCHES
) -> RestoreReport:
    """Write the data folder at `path`, which is empty. Raises `NoArchive`, `NotInArchive`, `DamagedArchive`,
    `ObjectStoreError`, `DiskFull` or `DiskFailed`; the folder is then not usable as a data folder."""
    manifest = load_manifest(objects)
    name = target.generation or manifest.head
    if manifest.generation(name) is None:
        known = ", ".join(generation.name for generation in manifest.generations)
        raise NotInArchive(f"the archive has no generation {name}; it has {known}")
    stretches = history(manifest, name)
    damaged: list[str] = []
    folder = new_folder(disk, path, bytes.fromhex(manifest.store))
    for base in _candidates(manifest, stretches, target):
        report = RestoreReport(name, damaged=damaged)
        files = _Files(objects, disk, folder, threads)
        try:
            if base is not None:
                files.restore(load_inventory(objects, base))
        except DamagedArchive as error:
            damaged.append(f"the base at lsn {base.lsn if base is not None else 0}: {error}")
            files.remove()
            continue
        report.base_lsn = report.tail_lsn = base.lsn if base is not None else 0
        report.base_bytes, report.files = files.size_bytes, files.count
        journal = _JournalFiles(disk, folder, base.segment if base is not None else 1)
        known_lsn = manifest.next_lsn - 1 if name == manifest.head else 0
        try:
            _restore_journal(objects, journal, stretches, target, report, known_lsn, threads)
        except NotInArchive:
            files.remove()
            journal.remove()
            raise
        if target.at_ms is not None and report.tail_lsn < (base.valid_lsn if base is not None else 1):
            # The history begins later. Or the broker's clock was not the machine's, and the base is too new.
            files.remove()
            journal.remove()
            continue
        files.sync()
        finish_folder(disk, folder)
        return report
    reasons = "; ".join(damaged) or _first_point(objects, manifest, stretches)
    raise NotInArchive(f"{objects.url} does not reach back to this point: {reasons}")


def _candidates(manifest: Manifest, stretches: list[Stretch], target: RestorePoint) -> Iterator[Base | None]:
    """The bases that a restore may begin with, best first; None is the beginning of the history."""
    for base in bases_of(manifest, stretches[-1].generation):
        if target.lsn is not None and base.valid_lsn > target.lsn:
            continue
        if target.at_ms is not None and base.at_ms > target.at_ms:
            continue
        yield base
    if stretches[0].first_lsn == 1 == manifest.first_lsn:
        yield None


def _first_point(objects: ObjectStore, manifest: Manifest, stretches: list[Stretch]) -> str:
    """The first point that can be restored, for the message of an error."""
    if stretches[0].first_lsn == 1 == manifest.first_lsn:
        for _, run in history_runs(objects, stretches, 0, 1):
            frames = blocks.scan(run.data, 0, run.segment.seed(), run.prev_crc, run.first_lsn).frames
            return f"it begins with lsn 1, at {to_rfc3339(_frame_ms(frames[0]))}"
        return "it has nothing yet"
    bases = list(bases_of(manifest, stretches[-1].generation))  # newest first
    if not bases:
        return "it has no base yet, and the beginning of its history is gone"
    return f"its first point is lsn {bases[-1].valid_lsn}, at {to_rfc3339(bases[-1].at_ms)}"


class _Files:
    """The files of a base on their way to the disk."""

    def __init__(self, objects: ObjectStore, disk: Disk, folder: DataFolder, threads: int) -> None:
        self._objects = objects
        self._disk = disk
        self._folder = folder
        self._threads = threads
        self._written: list[str] = []
        self._folders: set[str] = set()
        self.size_bytes = 0
        self.count = 0

    def restore(self, inventory: Inventory) -> None:
        tasks: dict[str, list[tuple[str, int, Piece]]] = {}
        for file in inventory.files:
            self._create(file)
            position = 0
            for piece in file.pieces:
                tasks.setdefault(piece.key, []).append((file.path, position, piece))
                position += piece.size_bytes
            if position != file.size_bytes:
                raise DamagedArchive(file.path, f"{position} of {file.size_bytes} bytes are in the inventory")
        self.count, self.size_bytes = len(inventory.files), inventory.size_bytes()
        for_each(self._fetch, list(tasks.items()), self._threads)

    def _create(self, file: ArchivedFile) -> None:
        parts = file.path.split("/")
        if parts[0] not in ("logs", "snapshots") or "." in parts or ".." in parts:
            raise DamagedArchive(file.path, "this is no file of a data folder")
        for depth in range(1, len(parts)):
            folder = "/".join([self._folder.path, *parts[:depth]])
            if folder not in self._folders:
                self._disk.make_folder("restore.folder", folder)
                self._folders.add(folder)
        path = f"{self._folder.path}/{file.path}"
        self._disk.create("restore.create", path).close()
        self._written.append(path)

    def _fetch(self, task: _Task) -> None:
        key, parts = task
        try:
            data = self._objects.get(key)
        except ObjectMissing:
            raise DamagedArchive(key, "the object is missing") from None
        for path, position, piece in parts:
            part = data[piece.position : piece.position + piece.size_bytes]
            if len(part) != piece.size_bytes or google_crc32c.value(part) != piece.crc:
                raise DamagedArchive(key, f"checksum mismatch in the part of {path}")
            file = self._disk.open(f"{self._folder.path}/{path}", write=True)
            try:
                file.write_at("restore.write", position, part)
            finally:
                file.close()

    def remove(self) -> None:
        for path in self._written:
            self._disk.remove("restore.remove", path)
        for folder in sorted(self._folders, reverse=True):  # what is inside of a folder comes first
            self._disk.remove_folder("restore.remove", folder)

    def sync(self) -> None:
        for_each(self._sync, self._written, self._threads)
        for folder in sorted(self._folders):
            self._disk.sync_folder("restore.sync_folder", folder)

    def _sync(self, path: str) -> None:
        with contextlib.closing(self._disk.open(path, write=True)) as file:
            file.sync("restore.sync")


def for_each(call: Callable[..., None], tasks: list, threads: int) -> None:  # type: ignore[type-arg]
    """Run a call for each task, on threads if there are any. The first failure is raised."""
    if not threads:
        for task in tasks:
            call(task)
        return
    with ThreadPoolExecutor(threads, "driftq-restore") as pool:
        for _ in pool.map(call, tasks):
            pass


# --- the journal ---


def _restore_journal(
    objects: ObjectStore,
    journal: _JournalFiles,
    stretches: list[Stretch],
    target: RestorePoint,
    report: RestoreReport,
    known_lsn: int,
    threads: int,
) -> None:
    base_lsn = report.base_lsn
    for chunk, run in history_runs(objects, stretches, base_lsn, threads):
        wanted = cut(run, _last_lsn(run, target))
        if wanted.data:
            journal.write(wanted)
            report.chunks += 1
            report.journal_bytes += len(wanted.data)
            report.tail_lsn, report.shipped_ms = wanted.last_lsn, chunk.at_ms
        if wanted.last_lsn < run.last_lsn:
            break
    else:
        report.gap = find_gap(objects, stretches, report.tail_lsn, known_lsn)
        if target.lsn is not None and report.tail_lsn < target.lsn:
            raise NotInArchive(f"the archive ends at lsn {report.tail_lsn}, before lsn {target.lsn}")
    journal.finish(base_lsn, report.tail_lsn)


def _last_lsn(run: JournalRun, target: RestorePoint) -> int:
    """The last lsn of a run that belongs to the target."""
    if target.lsn is not None:
        return min(run.last_lsn, target.lsn)
    if target.at_ms is not None:
        scan = blocks.scan(run.data, 0, run.segment.seed(), run.prev_crc, run.first_lsn)
        for lsn, frame in enumerate(scan.frames, run.first_lsn):
            if _frame_ms(frame) > target.at_ms:
                return lsn - 1
    return run.last_lsn


def _frame_ms(frame: bytes) -> int:
    """When its facts became true; 0 if they do not have a time."""
    return max((getattr(fact, "at_ms", 0) for fact in decode(frame)), default=0)


def find_gap(objects: ObjectStore, stretches: list[Stretch], tail_lsn: int, known_lsn: int) -> tuple[int, int] | None:
    """Lsns that are missing, although the archive has later ones or is known to have had them up to `known_lsn`."""
    for stretch in stretches:
        limit = stretch.last_lsn
        firsts = [key_lsn(row.key) for row in objects.list(journal_prefix(stretch.generation))]
        later = [first for first in firsts if first > tail_lsn + 1 and (limit is None or first <= limit)]
        if later:
            return tail_lsn + 1, min(later) - 1
        if limit is not None and limit > tail_lsn:
            return tail_lsn + 1, limit
    return (tail_lsn + 1, known_lsn) if known_lsn > tail_lsn else None


class _JournalFiles:
    """The segments of a restored journal: the same bytes at the same places."""

    def __init__(self, disk: Disk, folder: DataFolder, first_number: int) -> None:
        self._disk = disk
        self._folder = folder
        self._first_number = first_number  # of the segment after the base
        self._segment: SegmentHeader | None = None
        self._file: File | None = None
        self._end = 0  # where the next run must begin
        self._numbers: list[int] = []

    def write(self, run: JournalRun) -> None:
        if self._file is None or run.segment != self._segment:
            self._next_segment(run)
        assert self._file is not None
        if run.position != self._end:
            where = f"lsn {run.first_lsn}"
            raise DamagedArchive(where, f"the run begins at byte {run.position} of its segment, not at {self._end}")
        self._file.write_at("restore.journal.write", run.position, run.data)
        self._end = run.position + len(run.data)

    def _next_segment(self, run: JournalRun) -> None:
        self._close()
        segment = run.segment
        if not self._numbers:
            self._disk.make_folder("restore.folder", self._folder.journal)
        elif segment.number != self._numbers[-1] + 1:
            raise DamagedArchive(f"lsn {run.first_lsn}", f"segment {segment.number} follows {self._numbers[-1]}")
        path = segment_path(self._folder.journal, segment.number)
        self._file = self._disk.create("restore.journal.create", path, segment.size_bytes)
        self._file.write_at("restore.journal.header", 0, segment.encode())
        self._segment, self._end = segment, HEADER_BYTES
        self._numbers.append(segment.number)

    def finish(self, base_lsn: int, tail_lsn: int) -> None:
        self._close()
        if not self._numbers:
            self._begin_after(base_lsn)
            return
        marks = self._disk.create("restore.watermark.create", f"{self._folder.journal}/{WATERMARK}", WATERMARK_BYTES)
        watermark = Watermark(0, tail_lsn, self._numbers[0], self._numbers[-1])
        marks.write_at("restore.watermark.write", watermark.position(), watermark.encode(self._folder.store))
        marks.sync("restore.watermark.sync")
        marks.close()
        self._disk.sync_folder("restore.sync_folder", self._folder.journal)
        self._disk.sync_folder("restore.sync_folder", self._folder.path)

    def remove(self) -> None:
        self._close()
        if self._disk.exists(self._folder.journal):
            for name in self._disk.list(self._folder.journal):
                self._disk.remove("restore.remove", f"{self._folder.journal}/{name}")
            self._disk.remove_folder("restore.remove", self._folder.journal)

    def _begin_after(self, base_lsn: int) -> None:
        """An empty journal that continues the history of the snapshot, and the numbers of its segments."""
        newest = snapshots.load_newest(self._disk, self._folder.snapshots, self._folder.store).snapshot
        crc = newest.chain_crc if newest is not None else 0
        FileJournal.create(
            self._disk,
            self._folder.journal,
            self._folder.store,
            first_lsn=base_lsn + 1,
            prev_crc=crc,
            number=self._first_number,
        ).close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.sync("restore.journal.sync")
            self._file.close()
            self._file = None
