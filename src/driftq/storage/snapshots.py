"""Snapshots: frames that stand for everything up to an lsn, in one file each, written and read as a stream.

Owns `snapshots/`: a header, blocks of frames (the same as the journal's, numbered from 1), and an end that repeats the
count and the digest of all frames. A snapshot gets its name only when it is whole and durable; two generations stay,
and none is ever deleted because it is damaged. The caller knows whether the journal can do without one.

What a snapshot holds is in `core.state.snapshot`; how one is folded, in `engine.snapshot_store`; when, and what the
journal drops then, in `engine.checkpointer`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from driftq.storage import blocks
from driftq.storage.blocks import ScanEnd
from driftq.storage.corruption import CorruptSnapshot, FormatTooNew
from driftq.storage.disk import Disk, DiskFull, File
from driftq.storage.journal_files import checksum

FORMAT_VERSION = 1
GENERATIONS = 2
SUFFIX = ".snapshot"
_MAGIC = b"DQSNAP\r\n"
_HEADER = struct.Struct("<8sI4x16sQI4x")  # magic, version, store, lsn, chain_crc; then 4 bytes of checksum
HEADER_BYTES = _HEADER.size + 8
_END_MAGIC = b"DQSEND\r\n"
_END = struct.Struct("<8sQ32s")  # magic, count, sha256 of all frames; then 4 bytes of checksum
END_BYTES = _END.size + 8
_BLOCK_BYTES = 256 << 10
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was read through once and is whole."""

    path: str
    lsn: int
    chain_crc: int  # the journal's `crc_at` that lsn, or 0 where it was not noted
    frame_count: int


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest snapshot that is whole, and the newer ones that are not.

    With `damaged` not empty, the caller must make sure that the journal still holds every lsn above `snapshot.lsn` (or
    every lsn at all, if there is no snapshot) and warn; if it does not, nothing may be started from here.
    """

    snapshot: Snapshot | None
    damaged: tuple[CorruptSnapshot, ...]

    def base_lsn(self) -> int:
        """The lsn that the replay starts after."""
        return self.snapshot.lsn if self.snapshot else 0


def save(disk: Disk, folder: str, store: bytes, lsn: int, frames: Iterable[bytes], *, chain_crc: int = 0) -> Snapshot:
    """Write a snapshot and make it durable, then let generations beyond the second go."""
    path = f"{folder}/{lsn:020d}{SUFFIX}"
    disk.make_folder("snapshot.folder", folder)
    remove_unfinished(disk, folder)
    file = disk.create("snapshot.create", f"{path}.tmp")
    try:
        count = _write(file, store, lsn, chain_crc, frames)
        file.sync("snapshot.sync")
    except DiskFull:
        disk.remove("snapshot.leftover.remove", file.path)
        raise
    finally:
        file.close()
    disk.rename("snapshot.rename", f"{path}.tmp", path)
    sync_names(disk, folder)
    for old in snapshot_lsns(disk, folder)[:-GENERATIONS]:
        disk.remove("snapshot.remove", f"{folder}/{old:020d}{SUFFIX}")
    return Snapshot(path, lsn, chain_crc, count)


def sync_names(disk: Disk, folder: str) -> None:
    """Make the names of the snapshots durable. The process that wrote the last one may have ended before it did."""
    disk.sync_folder("snapshot.sync_folder", folder)
    disk.sync_folder("snapshot.parent.sync_folder", folder.rpartition("/")[0] or "/")


def load_newest(disk: Disk, folder: str, store: bytes) -> Newest:
    """Find the newest whole snapshot, by reading it through. Deletes nothing. Raises `FormatTooNew`."""
    damaged: list[CorruptSnapshot] = []
    for lsn in reversed(snapshot_lsns(disk, folder)):
        try:
            return Newest(verify(disk, f"{folder}/{lsn:020d}{SUFFIX}", store), tuple(damaged))
        except CorruptSnapshot as error:
            damaged.append(error)
    return Newest(None, tuple(damaged))


def verify(disk: Disk, path: str, store: bytes) -> Snapshot:
    """Read a snapshot through and compare its digest."""
    file = disk.open(path)
    try:
        lsn, chain_crc, _ = _read_header(file, store)
        if f"{lsn:020d}{SUFFIX}" != path.rpartition("/")[2]:
            raise CorruptSnapshot(path, 0, f"this is the snapshot of lsn {lsn} under another name")
        count = sum(1 for _ in _frames(file, store))
    finally:
        file.close()
    return Snapshot(path, lsn, chain_crc, count)


def read_frames(disk: Disk, snapshot: Snapshot, store: bytes) -> Iterator[bytes]:
    """The frames of a verified snapshot, in order, never all at once in memory. Checked again on the way."""
    file = disk.open(snapshot.path)
    try:
        yield from _frames(file, store)
    finally:
        file.close()


def snapshot_lsns(disk: Disk, folder: str) -> list[int]:
    """The lsns of the snapshots that are there, ascending. The journal must be kept after the first of them, so that
    the older generation can be used."""
    names = (name.removesuffix(SUFFIX) for name in disk.list(folder) if name.endswith(SUFFIX))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def remove_unfinished(disk: Disk, folder: str) -> None:
    """Snapshots that were being written when the machine stopped: they never had a name."""
    for name in disk.list(folder):
        if name.endswith(".tmp"):
            disk.remove("snapshot.leftover.remove", f"{folder}/{name}")


# ------------------------------------------------------------------------------------------------------------- writing


def _write(file: File, store: bytes, lsn: int, chain_crc: int, frames: Iterable[bytes]) -> int:
    header = _sealed(_HEADER.pack(_MAGIC, FORMAT_VERSION, store, lsn, chain_crc))
    file.write_at("snapshot.header", 0, header)
    seed = int.from_bytes(header[_HEADER.size : _HEADER.size + 4], "little")
    digest = hashlib.sha256()
    position, prev_crc, count = HEADER_BYTES, 0, 0
    for run in _runs(frames):
        block, prev_crc = blocks.encode(seed, prev_crc, count + 1, run)
        for frame in run:
            digest.update(frame)
        file.write_at("snapshot.write", position, block)
        position += len(block)
        count += len(run)
    file.write_at("snapshot.end", position, _sealed(_END.pack(_END_MAGIC, count, digest.digest())))
    return count


def _runs(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    run: list[bytes] = []
    size = 0
    for frame in frames:
        run.append(frame)
        size += len(frame) + 4
        if size >= _BLOCK_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _sealed(fields: bytes) -> bytes:
    return fields + checksum(fields) + bytes(4)


# ------------------------------------------------------------------------------------------------------------- reading


def _read_header(file: File, store: bytes) -> tuple[int, int, int]:
    """The snapshot's lsn, its chain_crc and the seed of its blocks."""
    page = file.read_at(0, HEADER_BYTES)
    if len(page) < HEADER_BYTES or page != _sealed(page[: _HEADER.size]):
        raise CorruptSnapshot(file.path, 0, "the header is damaged")
    magic, version, owner, lsn, chain_crc = _HEADER.unpack_from(page)
    if magic != _MAGIC:
        raise CorruptSnapshot(file.path, 0, "this is not a snapshot")
    if version > FORMAT_VERSION:
        raise FormatTooNew(file.path, version, FORMAT_VERSION)
    if owner != store:
        raise CorruptSnapshot(file.path, 0, f"it belongs to another store ({owner.hex()}, this one is {store.hex()})")
    return lsn, chain_crc, int.from_bytes(page[_HEADER.size : _HEADER.size + 4], "little")


def _frames(file: File, store: bytes) -> Iterator[bytes]:
    _, _, seed = _read_header(file, store)
    end = file.size() - END_BYTES
    digest = hashlib.sha256()
    position, prev_crc, next_lsn, want = HEADER_BYTES, 0, 1, _READ_BYTES
    while position < end:
        data = file.read_at(position, min(want, end - position))
        scan = blocks.scan(data, 0, seed, prev_crc, next_lsn)
        if not scan.position:
            if scan.ended is ScanEnd.NO_BLOCK or position + len(data) >= end or want > blocks.BLOCK_BYTES_MAX:
                raise CorruptSnapshot(file.path, position, "a block is damaged")
            want *= 4
            continue
        for frame in scan.frames:
            digest.update(frame)
        yield from scan.frames
        position += scan.position
        prev_crc, next_lsn, want = scan.prev_crc, scan.next_lsn, _READ_BYTES
    expected = _sealed(_END.pack(_END_MAGIC, next_lsn - 1, digest.digest()))
    if position != end or file.read_at(end, END_BYTES) != expected:
        raise CorruptSnapshot(file.path, end, "the end is missing or does not fit the frames")
