"""The journal's files: the header of a segment, the two-slot watermark, and reading and creating segments.

A header's checksum is also the seed of every block in that segment, so a block belongs to
one store, one segment number, one first lsn and one history, or it is no block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from driftq.storage import blocks
from driftq.storage.blocks import Scan, ScanEnd
from driftq.storage.corruption import CorruptJournal, FormatTooNew

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File

FORMAT_VERSION = 1
HEADER_BYTES = 4096  # one page: the first block starts on a page of its own

_SEGMENT_MAGIC = b"DQJSEG\r\n"
_SEGMENT = struct.Struct("<8sI4x16sQQQI")  # magic, version, store, number, first_lsn, size_bytes, prev_crc
_SEGMENT_CRC_AT = HEADER_BYTES - 4

WATERMARK_BYTES = 8192
_SLOT_BYTES = 4096  # slots on separate pages, so that writing one cannot tear the other
_WATERMARK_MAGIC = b"DQJWM\r\n\x01"
_SLOT = struct.Struct("<8s16sQQQQ")  # magic, store, turn, lsn, first_segment, last_segment
_SLOT_USED = _SLOT.size + 4


def checksum(data: bytes) -> bytes:
    crc: int = google_crc32c.value(data)
    return crc.to_bytes(4, "little")


class SegmentHeader(NamedTuple):
    """The identity of a journal segment."""

    store: bytes  # 16 bytes: the store's uuid
    number: int
    first_lsn: int
    size_bytes: int
    prev_crc: int  # of the last block of the segment before, 0 for the first

    def encode(self) -> bytes:
        fields = _SEGMENT.pack(
            _SEGMENT_MAGIC, FORMAT_VERSION, self.store, self.number, self.first_lsn, self.size_bytes, self.prev_crc
        )
        page = fields.ljust(_SEGMENT_CRC_AT, b"\0")
        return page + checksum(page)

    def seed(self) -> int:
        """What every block checksum in this segment starts from."""
        return int.from_bytes(self.encode()[_SEGMENT_CRC_AT:], "little")


class UnknownVersion(NamedTuple):
    """The bytes are whole, but of a later format."""

    version: int


def read_segment_header(page: bytes) -> SegmentHeader | UnknownVersion | None:
    """The header, or the version that wrote it if it is not ours, or None if the bytes are damaged."""
    if len(page) < HEADER_BYTES:
        return None
    magic, version, store, number, first_lsn, size_bytes, prev_crc = _SEGMENT.unpack_from(page)
    # The checksum comes first: a flipped bit in the version must not be taken for a later version.
    if page[_SEGMENT_CRC_AT:HEADER_BYTES] != checksum(page[:_SEGMENT_CRC_AT]):
        return None
    if magic != _SEGMENT_MAGIC:
        return None
    if version != FORMAT_VERSION:
        return UnknownVersion(version)
    return SegmentHeader(store, number, first_lsn, size_bytes, prev_crc)


class Watermark(NamedTuple):
    """What is certainly durable, and which segments must therefore exist."""

    turn: int  # grows with every write; the valid slot with the greatest turn counts
    lsn: int
    first_segment: int
    last_segment: int

    def position(self) -> int:
        return self.turn % 2 * _SLOT_BYTES

    def encode(self, store: bytes) -> bytes:
        slot = _SLOT.pack(_WATERMARK_MAGIC, store, *self)
        return slot + checksum(slot)


def read_watermark(data: bytes, store: bytes) -> Watermark | None:
    """The newest valid slot. One torn slot is expected after a crash (they are written in turn); two are damage."""
    valid: list[Watermark] = []
    for position in (0, _SLOT_BYTES):
        slot = data[position : position + _SLOT_USED]
        if len(slot) < _SLOT_USED or checksum(slot[:-4]) != slot[-4:]:
            continue
        magic, owner, turn, lsn, first_segment, last_segment = _SLOT.unpack_from(slot)
        if magic == _WATERMARK_MAGIC and owner == store and turn % 2 == position // _SLOT_BYTES:
            valid.append(Watermark(turn, lsn, first_segment, last_segment))
    return max(valid, default=None)


# --- segment files ---

WATERMARK = "watermark"
SUFFIX = ".journal"
READ_BYTES = 1 << 20
_ZEROS = bytes(READ_BYTES)


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment file with a valid header."""

    path: str
    header: SegmentHeader
    seed: int
    cut_to_bytes: int = 0  # the file's size, if it is shorter than it was made

    @property
    def size_bytes(self) -> int:
        """What the file has room for."""
        return self.cut_to_bytes or self.header.size_bytes


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}{SUFFIX}"


def segment_numbers(disk: Disk, folder: str) -> list[int]:
    """The numbers of the segment files, ascending, read from their names."""
    names = (name.removesuffix(SUFFIX) for name in disk.list(folder) if name.endswith(SUFFIX))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def load_watermark(disk: Disk, folder: str, store: bytes) -> Watermark | None:
    """The watermark, or None if the file is missing or no slot of it is whole."""
    path = f"{folder}/{WATERMARK}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return read_watermark(file.read_at(0, WATERMARK_BYTES), store)
    finally:
        file.close()


def load_segment(disk: Disk, folder: str, number: int, store: bytes, lowest_lsn: int = 1) -> Segment:
    """Read and check one header. Raises with the reason if the file is not segment `number` of this store.

    `lowest_lsn` is the lowest that the segment can hold, for the message when its own header is unreadable. A file that
    is shorter than it was made is returned as such: whether its blocks are all there is for the caller to check.
    """
    path = segment_path(folder, number)
    file = disk.open(path)
    try:
        header = read_segment_header(file.read_at(0, HEADER_BYTES))
        size = file.size()
    finally:
        file.close()
    if isinstance(header, UnknownVersion):
        raise FormatTooNew(path, header.version, FORMAT_VERSION)
    if header is None:
        raise CorruptJournal(path, 0, lowest_lsn, 0, "the segment's header is damaged")
    if header.store != store:
        reason = f"the segment belongs to another store ({header.store.hex()}, this one is {store.hex()})"
        raise CorruptJournal(path, 0, header.first_lsn, 0, reason)
    if header.number != number:
        reason = f"this is segment {header.number} under the name of {number}"
        raise CorruptJournal(path, 0, header.first_lsn, 0, reason)
    if size > header.size_bytes:
        reason = f"the segment was made with {header.size_bytes} bytes and now has {size}"
        raise CorruptJournal(path, header.size_bytes, header.first_lsn, 0, reason)
    return Segment(path, header, header.seed(), size if size < header.size_bytes else 0)


def name_segment(disk: Disk, folder: str, file: File, header: SegmentHeader) -> Segment:
    """Fill a preallocated file's header and give it its name, durably. Only then may a block be written into it."""
    page = header.encode()
    file.write_at("journal.header", 0, page)
    file.sync("journal.header.sync")
    path = segment_path(folder, header.number)
    disk.rename("journal.rename", file.path, path)
    file.path = path
    disk.sync_folder("journal.sync_folder", folder)
    return Segment(path, header, header.seed())


def clear_unused(disk: Disk, folder: str) -> None:
    for number in segment_numbers(disk, folder):
        path = segment_path(folder, number)
        file = disk.open(path)
        begin = file.read_at(HEADER_BYTES, blocks.HEADER_BYTES)
        file.close()
        if begin.strip(b"\0") or number > 1:
            reason = "a new journal was to be made here, but this one holds frames (is the FORMAT file missing?)"
            raise CorruptJournal(path, HEADER_BYTES, 1, 0, reason)
    for name in disk.list(folder):
        if name == WATERMARK or name.endswith((".tmp", ".journal")):
            disk.remove("journal.leftover.remove", f"{folder}/{name}")


def scan_segment(file: File, segment: Segment, start: tuple[int, int, int] | None = None) -> Iterator[tuple[int, Scan]]:
    """The blocks of a segment in runs, each with the position its run starts at.

    Where the last run ends, the chain ends. Whether that is the end of the data or damage is for the caller to judge.
    `start` is where to begin inside: position, checksum of the block before, lsn.
    """
    header = segment.header
    position, prev_crc, next_lsn = start or (HEADER_BYTES, header.prev_crc, header.first_lsn)
    want = READ_BYTES
    while True:
        data = file.read_at(position, min(want, header.size_bytes - position))
        scan = blocks.scan(data, 0, segment.seed, prev_crc, next_lsn)
        more = scan.ended is ScanEnd.SHORT and position + len(data) < header.size_bytes and len(data) == want
        if more and not scan.position:
            # One block is longer than what was read: its length is known now, and bounded by the segment.
            want = max(want + READ_BYTES, blocks.HEADER.unpack_from(data)[3])
            continue
        yield position, scan
        position += scan.position
        prev_crc, next_lsn, want = scan.prev_crc, scan.next_lsn, READ_BYTES
        if not more:
            return


def replay_segments(disk: Disk, segments: list[Segment], after_lsn: int, tail_lsn: int) -> Iterator[tuple[int, bytes]]:
    """The frames above `after_lsn` up to `tail_lsn`, with their lsns. Raises `CorruptJournal` at the first damage."""
    if after_lsn >= tail_lsn:
        return
    for index, segment in enumerate(segments):
        following = segments[index + 1].header if index + 1 < len(segments) else None
        if following and following.first_lsn <= after_lsn + 1:
            continue
        file = disk.open(segment.path)
        try:
            for base, scan in scan_segment(file, segment):  # noqa: B007 -- the last pair is used after the loop
                yield from _pairs(scan, after_lsn, tail_lsn)
                if scan.next_lsn > tail_lsn:
                    return
        finally:
            file.close()
        if following is None or (scan.next_lsn, scan.prev_crc) != (following.first_lsn, following.prev_crc):
            last = max(scan.next_lsn, following.first_lsn - 1 if following else tail_lsn)
            at = base + scan.position
            raise CorruptJournal(segment.path, at, scan.next_lsn, last, "the block is damaged or missing")


def _pairs(scan: Scan, after_lsn: int, tail_lsn: int) -> Iterator[tuple[int, bytes]]:
    skip = max(0, after_lsn + 1 - scan.first_lsn)
    take = max(0, min(len(scan.frames), tail_lsn + 1 - scan.first_lsn))
    frames = scan.frames if not skip and take == len(scan.frames) else scan.frames[skip:take]
    return zip(range(scan.first_lsn + skip, scan.first_lsn + take), frames, strict=False)


def frames_between(
    disk: Disk, folder: str, store: bytes, after_lsn: int, upto_lsn: int
) -> Iterator[tuple[int, list[bytes]]]:
    """The frames above `after_lsn` up to `upto_lsn`, both ends of closed segments, in runs with the chain's checksum
    after each. For a reader in another process than the one that writes: only closed segments are read."""
    for number in segment_numbers(disk, folder):
        segment = load_segment(disk, folder, number, store)
        if segment.header.first_lsn > min(upto_lsn, after_lsn + 1):
            break
        file = disk.open(segment.path)
        try:
            for base, scan in scan_segment(file, segment):
                if scan.next_lsn - 1 > upto_lsn:
                    reason = f"lsn {upto_lsn} is not the end of a closed segment"
                    raise CorruptJournal(segment.path, base, upto_lsn, upto_lsn, reason)
                skip = max(0, after_lsn + 1 - scan.first_lsn)
                yield scan.prev_crc, scan.frames[skip:]
        finally:
            file.close()
        after_lsn = max(after_lsn, scan.next_lsn - 1)
    if after_lsn < upto_lsn:
        raise CorruptJournal(folder, 0, after_lsn + 1, upto_lsn, "frames are missing or damaged")


def used_end(file: File, position: int, size: int) -> int:
    """The position after the last non-zero byte from `position` on; `position` if there is none."""
    end = position
    while position < size:
        data = file.read_at(position, min(READ_BYTES, size - position))
        if not data:
            break
        if data != _ZEROS[: len(data)]:
            end = position + len(data.rstrip(b"\0"))
        position += len(data)
    return end


def find_block(file: File, segment: Segment, position: int, above_lsn: int) -> blocks.FoundBlock | None:
    """The first valid block above an lsn from `position` on, wherever it begins (see `blocks.find`)."""
    data = file.read_at(position, segment.header.size_bytes - position)
    block = blocks.find(data, 0, segment.seed, above_lsn)
    return block._replace(position=position + block.position) if block else None
