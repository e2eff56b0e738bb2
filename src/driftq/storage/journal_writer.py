"""The three files that a file journal writes to: the active segment, the spare one, and the watermark.

Each knows its file and what was last written to it; when to write, and what a failure means, is the journal's business
(`storage.file_journal`). Every method raises `DiskFull` or `DiskFailed` as the disk does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from driftq.storage import blocks
from driftq.storage.journal_files import HEADER_BYTES, Watermark

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File
    from driftq.storage.journal_files import Segment
    from driftq.storage.tail_recovery import JournalTail

SPARE = "spare.tmp"


class JournalEnd(NamedTuple):
    """Up to where everything is durable. Replaced as a whole, so that other threads may read it."""

    number: int  # of the segment
    position: int
    lsn: int


class ActiveSegment:
    """The segment that gets the next block, and the end of the journal."""

    __slots__ = ("_position", "_seed", "_size_bytes", "end", "file", "prev_crc", "tail_lsn")

    def __init__(self, file: File, tail: JournalTail) -> None:
        self.file = file
        self.prev_crc = tail.prev_crc  # the checksum of the last block: it stands for the whole history
        self.tail_lsn = tail.tail_lsn  # the last durable frame
        self._seed = tail.segment.seed  # what the checksums of its blocks start from
        self._size_bytes = tail.segment.size_bytes
        self._position = tail.position  # where the next block goes
        self.end = JournalEnd(tail.segment.header.number, tail.position, tail.tail_lsn)

    def room_bytes(self) -> int:
        return self._size_bytes - self._position

    def write(self, frames: Sequence[bytes]) -> None:
        """Write one block and sync it. A crash may leave any part of it; the checksum shows that."""
        parts, crc = blocks.encode_parts(self._seed, self.prev_crc, self.tail_lsn + 1, frames)
        position = self._position
        for part in parts:
            self.file.write_at("journal.append", position, part)
            position += len(part)
        self.file.sync("journal.sync")
        self._position = position
        self.prev_crc = crc
        self.tail_lsn += len(frames)
        self.end = JournalEnd(self.end.number, self._position, self.tail_lsn)

    def move_to(self, file: File, segment: Segment) -> None:
        """Continue in a new segment, whose name is durable."""
        self.file.close()
        self.file = file
        self._seed, self._size_bytes, self._position = segment.seed, segment.size_bytes, HEADER_BYTES
        self.end = JournalEnd(segment.header.number, HEADER_BYTES, self.tail_lsn)


class SpareSegment:
    """The preallocated next segment: the reserve against a full disk."""

    __slots__ = ("_disk", "_path", "file", "size_bytes")

    def __init__(self, disk: Disk, folder: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{folder}/{SPARE}"
        self.size_bytes = size_bytes  # of every new segment, unless one block is larger
        self.file: File | None = None  # None while the disk has no room for it

    def room_bytes(self) -> int:
        return max(0, self.size_bytes - HEADER_BYTES) if self.file is not None else 0

    def allocate(self) -> File:
        """The spare, made now if there is none."""
        if self.file is None:
            self.file = self._disk.create("journal.allocate", self._path, self.size_bytes)
        return self.file


class WatermarkFile:
    """The file with the watermark's two slots."""

    __slots__ = ("_store", "file", "saved")

    def __init__(self, file: File, store: bytes, saved: Watermark) -> None:
        self.file = file
        self.saved = saved  # as last written
        self._store = store  # the 16 bytes of the store's uuid

    def write(self, watermark: Watermark) -> None:
        """Write a watermark into the slot of its turn and sync it."""
        self.file.write_at("journal.watermark.write", watermark.position(), watermark.encode(self._store))
        self.file.sync("journal.watermark.sync")
        self.saved = watermark

    def save(self, lsn: int, first_segment: int, last_segment: int) -> None:
        """Everything up to `lsn` is durable, and these segments exist: store that in the slot of the next turn."""
        self.write(Watermark(self.saved.turn + 1, lsn, first_segment, last_segment))
