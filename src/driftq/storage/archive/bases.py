"""A base: a snapshot and the files of the log store, copied to the archive while the broker runs.

    inventory      logs/7/00000000000000000000.log    one object of its own          closed: it never changes
                   logs/7/00000000000000081920.log    pieces of packs                still growing
                   logs/shared/00000003.log           pieces of packs
                   snapshots/00000000000000009000.snapshot

What is copied is what a crash would leave: after a checkpoint the files hold everything up to its snapshot, and perhaps
more, which a start cuts off and replays. So files are copied without stopping the broker, and a restored folder is
opened like any folder after a crash.

Files only grow, so a base ships what the one before lacks. A file that other processes wrote is shipped again unless it
was *settled*: closed, and unchanged from one base to the next, so that a checkpoint has synced it. Packs of which
little is still used are replaced: what is in them is shipped again.

If a file vanishes in the meantime, because retention removed it, the base is given up: the next one needs less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
from msgspec import DecodeError, Struct, ValidationError, json

from driftq.storage.archive.history import DamagedArchive
from driftq.storage.archive.manifest import Base
from driftq.storage.archive.object_store import ObjectExists, ObjectMissing, ObjectStore
from driftq.storage.cold_segments import SUFFIX, ColdPlace, decode_place, index_of

if TYPE_CHECKING:
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk, File

PACK_BYTES = 16 << 20
PIECES_MAX = 16  # a growing file with more of them is shipped again as a whole
PACK_LIVE_MIN = 4  # a pack of which less than a quarter is used is replaced


class FileGone(Exception):
    """A file was removed while it was to be copied. The base is given up."""


class Piece(Struct, frozen=True, array_like=True):
    """Bytes of a file in an object."""

    key: str
    position: int  # in the object
    size_bytes: int
    crc: int


class ArchivedFile(Struct, frozen=True, array_like=True):
    """A file of a data folder."""

    path: str  # in the folder
    size_bytes: int
    settled: bool  # it does not change any more
    pieces: tuple[Piece, ...]


class Inventory(Struct, frozen=True):
    """What belongs to a base."""

    lsn: int
    files: tuple[ArchivedFile, ...]
    packs: dict[str, int] = {}  # the size of each pack that it uses

    def file(self, path: str) -> ArchivedFile | None:
        return next((file for file in self.files if file.path == path), None)

    def keys(self) -> set[str]:
        return {piece.key for file in self.files for piece in file.pieces}

    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class FoundFile(NamedTuple):
    """A file to copy, as it was seen."""

    path: str
    size_bytes: int
    is_closed: bool
    object_name: str  # for a closed segment of one log; "": it goes into packs
    cold: ColdPlace | None = None  # it is not here: the archive has it
    tier_file: str = ""  # what has its bytes at its end, if it is the index of such a segment


def load_inventory(objects: ObjectStore, base: Base) -> Inventory:
    """Raises `DamagedArchive` or `ObjectStoreError`."""
    try:
        data = objects.get(base.key)
        if google_crc32c.value(data) != base.crc:
            raise DamagedArchive(base.key, "checksum mismatch")
        return json.decode(data, type=Inventory)
    except ObjectMissing:
        raise DamagedArchive(base.key, "the inventory is missing") from None
    except (DecodeError, ValidationError) as error:
        raise DamagedArchive(base.key, str(error)) from error


def find_files(disk: Disk, folder: DataFolder, snapshot_lsn: int) -> list[FoundFile]:
    """The snapshot and every file of the log store."""
    snapshot = f"snapshots/{snapshot_lsn:020d}.snapshot"
    files = [FoundFile(snapshot, _size(disk, f"{folder.path}/{snapshot}"), True, "")]
    for name in disk.list(folder.logs):
        files += _log_files(disk, folder, name)
    return files


def _log_files(disk: Disk, folder: DataFolder, name: str) -> Iterator[FoundFile]:
    names = disk.list(f"{folder.logs}/{name}")
    logs = [entry for entry in names if entry.endswith(".log")]
    for entry in names:
        path = f"logs/{name}/{entry.removesuffix(SUFFIX)}.log"
        if entry.endswith(SUFFIX) and path.rpartition("/")[2] not in names:
            tier_file = f"logs/{name}/{entry}"
            place, index_bytes = _place(disk, f"{folder.path}/{tier_file}")
            yield FoundFile(path, place.size_bytes, True, "", place)
            yield FoundFile(f"{path.removesuffix('.log')}.index", index_bytes, True, "", tier_file=tier_file)
    for entry in logs:
        path = f"logs/{name}/{entry}"
        is_closed = entry != logs[-1]
        size_bytes = _size(disk, f"{folder.path}/{path}")
        first = entry.removesuffix(".log")
        own = f"logs/{name}/{first}-{size_bytes}" if is_closed and name != "shared" else ""
        yield FoundFile(path, size_bytes, is_closed, own)
        index = f"{first}.index"
        if is_closed and index in names:
            path = f"logs/{name}/{index}"
            yield FoundFile(path, _size(disk, f"{folder.path}/{path}"), True, "")


def _place(disk: Disk, path: str) -> tuple[ColdPlace, int]:
    """Where a segment is, and the size of its index."""
    file = _open(disk, path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    place = decode_place(data)
    if place is None:
        raise DamagedArchive(path, "damaged; it names the place of a segment in the archive")
    return place, len(index_of(data))


def _size(disk: Disk, path: str) -> int:
    file = _open(disk, path)
    try:
        return file.size()
    finally:
        file.close()


def _open(disk: Disk, path: str) -> File:
    try:
        return disk.open(path)
    except FileNotFoundError:
        raise FileGone(path) from None


class BaseCopy:
    """The copy of one base, in steps: each call of `step` stores at most one object."""

    def __init__(
        self,
        objects: ObjectStore,
        disk: Disk,
        folder: DataFolder,
        generation: str,
        lsn: int,
        segment: int,
        previous: Inventory | None,
        *,
        same_process: bool,
        token: str,
    ) -> None:
        """`segment` is the number of the journal's segment that begins after `lsn`, `previous` the inventory of the
        last base of the same history. Raises `FileGone`."""
        self._objects = objects
        self._disk = disk
        self._folder = folder
        self._generation = generation
        self.lsn = lsn
        self._segment = segment
        self._token = token
        self._files = find_files(disk, folder, lsn)
        self._known = {file.path: file for file in previous.files} if previous is not None else {}
        self._packs = dict(previous.packs) if previous is not None else {}
        self._same_process = same_process
        self._wasted = self._wasted_packs(previous)
        self._done: list[ArchivedFile] = []
        self._pack: list[bytes] = []
        self._pack_bytes = 0
        self._pack_count = 0
        self.shipped_bytes = 0

    def run(self, stop: Callable[[], bool] = lambda: False) -> Inventory | None:
        """Store everything that is missing; None if `stop` said so. Raises `FileGone` or `ObjectStoreError`."""
        for file_seen in self._files:
            if stop():
                return None
            self._done.append(self._copy(file_seen))
        self._flush()
        used = {piece.key for file in self._done for piece in file.pieces}
        return Inventory(self.lsn, tuple(self._done), {key: size for key, size in self._packs.items() if key in used})

    def save(self, inventory: Inventory, valid_lsn: int, at_ms: int) -> Base:
        """Store the inventory; the base that a manifest can list then. `valid_lsn` is the end of the journal after all
        files were copied."""
        data = json.encode(inventory)
        key = f"{self._generation}/bases/{self.lsn:020d}-{self._token}.json"
        self._put(key, data)
        crc, size_bytes = google_crc32c.value(data), inventory.size_bytes()
        return Base(self._generation, self.lsn, valid_lsn, at_ms, key, crc, self._segment, size_bytes)

    def _copy(self, file_seen: FoundFile) -> ArchivedFile:
        if file_seen.cold is not None:
            return self._refer_to(file_seen.path, file_seen.cold)
        known = self._reusable(file_seen)
        if known is not None and known.size_bytes == file_seen.size_bytes:
            if not file_seen.object_name or len(known.pieces) == 1:
                return ArchivedFile(file_seen.path, file_seen.size_bytes, file_seen.is_closed, known.pieces)
        if file_seen.object_name:
            return self._copy_whole(file_seen)
        pieces, start = (known.pieces, known.size_bytes) if known is not None else ((), 0)
        added = tuple(self._pieces(file_seen, start))
        return ArchivedFile(file_seen.path, file_seen.size_bytes, False, pieces + added)

    def _refer_to(self, path: str, place: ColdPlace) -> ArchivedFile:
        """A segment that is only in the archive stays in every base. Raises `DamagedArchive` if it is in another."""
        known = self._known.get(path)
        if known is None or [piece.key for piece in known.pieces] != [place.key]:
            try:
                self._objects.get_range(place.key, 0, 1)
            except ObjectMissing:
                reason = f"{path} is only in the archive {place.url}; restore from there, then archive to another place"
                raise DamagedArchive(place.key, reason) from None
        return ArchivedFile(path, place.size_bytes, True, (Piece(place.key, 0, place.size_bytes, place.crc),))

    def _reusable(self, file_seen: FoundFile) -> ArchivedFile | None:
        known = self._known.get(file_seen.path)
        if known is None or known.size_bytes > file_seen.size_bytes:
            return None
        is_whole = known.settled and known.size_bytes == file_seen.size_bytes
        if not is_whole and (not self._same_process or len(known.pieces) >= PIECES_MAX):
            return None
        return None if any(piece.key in self._wasted for piece in known.pieces) else known

    def _copy_whole(self, file_seen: FoundFile) -> ArchivedFile:
        data = self._read(file_seen, 0, file_seen.size_bytes)
        key = f"{self._generation}/{file_seen.object_name}"
        self._put(key, data)
        piece = Piece(key, 0, len(data), google_crc32c.value(data))
        return ArchivedFile(file_seen.path, file_seen.size_bytes, False, (piece,))

    def _pieces(self, file_seen: FoundFile, start: int) -> Iterator[Piece]:
        while start < file_seen.size_bytes:
            size = min(file_seen.size_bytes - start, PACK_BYTES - self._pack_bytes)
            data = self._read(file_seen, start, size)
            yield Piece(self._pack_key(), self._pack_bytes, size, google_crc32c.value(data))
            self._pack.append(data)
            self._pack_bytes += size
            start += size
            if self._pack_bytes >= PACK_BYTES:
                self._flush()

    def _read(self, file_seen: FoundFile, start: int, size: int) -> bytes:
        path, tier_file = file_seen.path, file_seen.tier_file
        file = _open(self._disk, f"{self._folder.path}/{tier_file or path}")
        try:
            if tier_file:
                start += file.size() - file_seen.size_bytes
            data = file.read_at(start, size)
        finally:
            file.close()
        if len(data) < size:
            raise FileGone(path)
        return data

    def _pack_key(self) -> str:
        return f"{self._generation}/packs/{self.lsn:020d}-{self._token}-{self._pack_count:05d}"

    def _flush(self) -> None:
        if self._pack:
            data = b"".join(self._pack)
            self._put(self._pack_key(), data)
            self._packs[self._pack_key()] = len(data)
            self._pack, self._pack_bytes = [], 0
            self._pack_count += 1

    def _put(self, key: str, data: bytes) -> None:
        try:
            self._objects.put_new(key, data)
        except ObjectExists:
            if self._objects.get(key) != data:
                raise DamagedArchive(key, "another object has this name") from None
        self.shipped_bytes += len(data)

    def _wasted_packs(self, previous: Inventory | None) -> set[str]:
        """Packs of which little is still used."""
        used: Counter[str] = Counter()
        present = {file_seen.path for file_seen in self._files if not file_seen.object_name}
        for file in previous.files if previous is not None else ():
            for piece in file.pieces if file.path in present else ():
                used[piece.key] += piece.size_bytes
        return {key for key, size in self._packs.items() if PACK_LIVE_MIN * used[key] < size}
