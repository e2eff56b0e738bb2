"""The fixed parts of the journal's files: a segment's header and the two-slot watermark.

Pure: bytes in, values out. A header's checksum is also the seed of every block in that segment, so a block belongs to
one store, one segment number, one first lsn and one history, or it is no block.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

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
    """Who a journal segment is."""

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
    """The newest valid slot. One torn slot is weather, since they are written in turn; two are damage."""
    found: list[Watermark] = []
    for position in (0, _SLOT_BYTES):
        slot = data[position : position + _SLOT_USED]
        if len(slot) < _SLOT_USED or checksum(slot[:-4]) != slot[-4:]:
            continue
        magic, owner, turn, lsn, first_segment, last_segment = _SLOT.unpack_from(slot)
        if magic == _WATERMARK_MAGIC and owner == store and turn % 2 == position // _SLOT_BYTES:
            found.append(Watermark(turn, lsn, first_segment, last_segment))
    return max(found, default=None)
