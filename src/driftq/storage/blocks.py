"""The unit that one commit writes.

A *frame* is one command's encoded facts: opaque bytes, numbered by lsn, dense. A *block* is what one journal append
puts on the disk: a fixed header and its frames, chained to the block before it by checksum. The checksum is seeded with
the identity of the file (`seed`), so that a block of another file or another store is not valid here.

Pure: bytes in, bytes out. This module knows neither files nor what a frame means. Snapshots use the same blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import google_crc32c

MAGIC = b"DQJ\x01"
HEADER = struct.Struct("<4sIIIQII")  # magic, crc, prev_crc, length, first_lsn, count, flags
HEADER_BYTES = HEADER.size  # 32
LENGTH = struct.Struct("<I")
ALIGNMENT = 8
CHECKED_FROM = 8  # the checksum covers everything after itself
BLOCK_BYTES_MAX = 1 << 30

HOLE = 0x1  # only in journals that an older version repaired: `count` lsns were lost, one frame stands for each
KNOWN_FLAGS = HOLE
_LARGE_BYTES = 2_048  # frames of this size are joined once, and their checksum is computed before
_APART_BYTES = 256 << 10  # frames of this size are not joined

_extend = google_crc32c.extend
_unpack = HEADER.unpack_from
_length_at = LENGTH.unpack_from


class BlockTooLarge(ValueError):
    """The frames of one append do not fit into a block."""


class ScanEnd(Enum):
    """Why a scan stopped."""

    SHORT = "the data ends inside or directly before a block"
    NO_BLOCK = "there is no block of this chain at this position"


class Scan(NamedTuple):
    """What a scan read, and where and in which state it stopped: the arguments of the next one."""

    first_lsn: int
    frames: list[bytes]
    position: int
    prev_crc: int
    next_lsn: int
    last_block_at: int  # position of the last whole block, -1 if there was none
    ended: ScanEnd


def block_bytes(frames: Sequence[bytes]) -> int:
    """The length of a block of these frames."""
    size = HEADER_BYTES + 4 * len(frames) + sum(map(len, frames))
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def encode(seed: int, prev_crc: int, first_lsn: int, frames: Sequence[bytes]) -> tuple[bytes, int]:
    """One block and its checksum, which the next block carries as `prev_crc`."""
    parts, crc = encode_parts(seed, prev_crc, first_lsn, frames)
    return b"".join(parts), crc


def encode_parts(seed: int, prev_crc: int, first_lsn: int, frames: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The same for a caller that can write a block in parts: large frames are not copied."""
    length = block_bytes(frames)
    if length > BLOCK_BYTES_MAX or not frames:
        raise BlockTooLarge(f"{len(frames)} frames in a block of {length} bytes; at most {BLOCK_BYTES_MAX} are allowed")
    parts = [HEADER.pack(MAGIC, 0, prev_crc, length, first_lsn, len(frames), 0)[CHECKED_FROM:]]
    for frame in frames:
        parts.append(LENGTH.pack(len(frame)))
        parts.append(frame)
    parts.append(bytes(length - HEADER_BYTES - 4 * len(frames) - sum(map(len, frames))))
    if length < _LARGE_BYTES * len(frames):
        parts = [b"".join(parts)]
    # Large frames are copied once at most: fresh memory costs more than a checksum in pieces.
    crc = seed
    for part in parts:
        crc = _extend(crc, part)
    apart = 2 if length >= _APART_BYTES * len(frames) else len(parts)
    return [b"".join((MAGIC, LENGTH.pack(crc), *parts[:apart])), *parts[apart:]], crc


def scan(data: bytes, position: int, seed: int, prev_crc: int, next_lsn: int) -> Scan:
    """Read blocks of one chain from `position` as long as they are whole, in place and unbroken."""
    first_lsn = next_lsn
    frames: list[bytes] = []
    add = frames.append
    size = len(data)
    last_block_at = -1
    ended = ScanEnd.SHORT
    while size - position >= HEADER_BYTES:
        magic, crc, prev, length, lsn, count, flags = _unpack(data, position)
        if magic != MAGIC or prev != prev_crc or lsn != next_lsn or not _plausible(length, count):
            ended = ScanEnd.NO_BLOCK
            break
        end = position + length
        if end > size:
            break
        if _extend(seed, data[position + CHECKED_FROM : end]) != crc:
            ended = ScanEnd.NO_BLOCK
            break
        at = position + HEADER_BYTES
        if flags:
            frames += _hole_frames(data, at, end, count, flags)
        else:
            for _ in range(count):
                begin = at + 4
                at = begin + _length_at(data, at)[0]
                add(data[begin:at])
            assert at <= end, "a block whose checksum is right holds more than its length"
        last_block_at = position
        position = end
        prev_crc = crc
        next_lsn += count
    return Scan(first_lsn, frames, position, prev_crc, next_lsn, last_block_at, ended)


def _plausible(length: int, count: int) -> bool:
    return HEADER_BYTES < length <= BLOCK_BYTES_MAX and not length % ALIGNMENT and count > 0


def _hole_frames(data: bytes, at: int, end: int, count: int, flags: int) -> list[bytes]:
    if flags & ~KNOWN_FLAGS:
        raise AssertionError(
            f"a block with unknown flags {flags:#x}: the segment's format version should have been higher"
        )
    size = _length_at(data, at)[0]
    assert at + 4 + size <= end
    return [data[at + 4 : at + 4 + size]] * count


class FoundBlock(NamedTuple):
    """A block that stands on its own: its checksum fits the file, whatever lies before it."""

    position: int
    first_lsn: int
    frame_count: int
    prev_crc: int


def find(data: bytes, position: int, seed: int, above_lsn: int) -> FoundBlock | None:
    """The next valid block from `position` on that begins above `above_lsn`, wherever it is.

    Only one block is unsynced at a time, so a block that begins above an lsn proves that the lsn was synced.
    """
    while True:
        position = data.find(MAGIC, position)
        if position < 0 or len(data) - position < HEADER_BYTES:
            return None
        _, crc, prev, length, lsn, count, _ = _unpack(data, position)
        end = position + length
        if not position % ALIGNMENT and lsn > above_lsn and _plausible(length, count) and end <= len(data):
            if _extend(seed, data[position + CHECKED_FROM : end]) == crc:
                return FoundBlock(position, lsn, count, prev)
        position += 1
