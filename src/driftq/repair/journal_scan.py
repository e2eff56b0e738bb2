"""Reads a journal that may be damaged: every frame that is readable, in order, and every damage.

    segment 1                        segment 2
    [header][block][block][?????][block][padding]   [header][block]...
              frames  frames  |     frames             frames
                              Damage(first_lsn, last_lsn)

A block has a checksum that is seeded with its segment's identity, so a valid block after a damage is recognised on its
own (`find_block`), and its first lsn shows which frames are missing before it. Reads only; frames are opaque bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    Segment,
    SegmentHeader,
    find_block,
    load_segment,
    load_watermark,
    scan_segment,
    segment_numbers,
    segment_path,
    used_end,
)

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File


@dataclass(frozen=True, slots=True)
class JournalFrame:
    """A readable frame, and the file and position of its block."""

    file: str
    position: int
    lsn: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the journal that are not as they were written."""

    file: str
    position: int
    first_lsn: int  # the first frame that is missing
    last_lsn: int  # the last one; 0: unknown, perhaps no frame was there
    reason: str


def scan_journal(disk: Disk, folder: str, store: bytes, known_lsn: int = 0) -> Iterator[JournalFrame | Damage]:
    """Every readable frame, in order, with every damage between them.

    `known_lsn` was durable for certain (it is the newest snapshot's): a journal that ends before it is damaged.
    """
    watermark = load_watermark(disk, folder, store)
    if watermark is None:
        yield Damage(f"{folder}/{WATERMARK}", 0, 1, 0, "the watermark is missing or damaged")
    numbers = [n for n in segment_numbers(disk, folder) if watermark is None or n >= watermark.first_segment]
    first_number = watermark.first_segment if watermark else min(numbers, default=1)
    last_number = max([watermark.last_segment if watermark else 0, *numbers])
    next_lsn, prev_crc = 0, 0  # 0: not known yet
    for number in range(first_number, last_number + 1):
        path = segment_path(folder, number)
        if number not in numbers:
            yield Damage(path, 0, next_lsn or 1, 0, "the segment is missing")
            prev_crc = 0
            continue
        segment, reason = _identify(disk, folder, number, store, next_lsn or int(number == 1), prev_crc)
        if reason:
            yield Damage(path, 0, next_lsn or 1, 0, reason)
        if segment is None:
            prev_crc = 0
            continue
        first_lsn = segment.header.first_lsn
        if next_lsn and first_lsn > next_lsn:
            reason = f"the frames before this segment, which begins at lsn {first_lsn}, are missing"
            yield Damage(path, 0, next_lsn, first_lsn - 1, reason)
        file = disk.open(path)
        try:
            next_lsn, prev_crc = yield from _scan_segment(file, segment, next_lsn)
        finally:
            file.close()
    durable_lsn = max(known_lsn, watermark.lsn if watermark else 0)
    if 0 < next_lsn <= durable_lsn:
        reason = f"the journal ends here, though lsn {durable_lsn} is known to have been durable"
        yield Damage(segment_path(folder, last_number), 0, next_lsn, durable_lsn, reason)


def _identify(
    disk: Disk, folder: str, number: int, store: bytes, next_lsn: int, prev_crc: int
) -> tuple[Segment | None, str]:
    """A segment by its header; if that is damaged, by the header it must have had after the segment before it."""
    try:
        return load_segment(disk, folder, number, store), ""
    except CorruptJournal as error:
        reason = error.reason
    if not next_lsn:
        return None, reason
    path = segment_path(folder, number)
    file = disk.open(path)
    try:
        header = SegmentHeader(store, number, next_lsn, file.size(), prev_crc)
        guess = Segment(path, header, header.seed())
        _, scan = next(scan_segment(file, guess))
        return (guess if scan.frames else None), reason
    finally:
        file.close()


def _scan_segment(
    file: File, segment: Segment, next_lsn: int
) -> Generator[JournalFrame | Damage, None, tuple[int, int]]:
    """One segment, resuming after each damage. Returns the state of the chain at its end: next lsn, checksum."""
    next_lsn = max(next_lsn, segment.header.first_lsn)
    start = (HEADER_BYTES, segment.header.prev_crc, segment.header.first_lsn)
    while True:
        position, prev_crc, _ = start
        for base, scan in scan_segment(file, segment, start):
            yield from _frames(file, segment.path, base, scan, next_lsn)
            position, prev_crc = base + scan.position, scan.prev_crc
            next_lsn = max(next_lsn, scan.next_lsn)
        if used_end(file, position, segment.header.size_bytes) == position:
            return next_lsn, prev_crc
        later = find_block(file, segment, position, next_lsn)
        if later is None:
            yield Damage(segment.path, position, next_lsn, 0, "the bytes after the last block are not a block")
            return next_lsn, prev_crc
        yield Damage(segment.path, position, next_lsn, later.first_lsn - 1, "the block is damaged")
        next_lsn = later.first_lsn
        start = (later.position, later.prev_crc, later.first_lsn)


def _frames(file: File, path: str, base: int, scan: blocks.Scan, from_lsn: int) -> Iterator[JournalFrame]:
    """The frames of a scan, each with the position of its block."""
    position, first_lsn = base, scan.first_lsn
    while first_lsn < scan.next_lsn:
        header = blocks.HEADER.unpack(file.read_at(position, blocks.HEADER_BYTES))
        length, count = header[3], header[5]
        for lsn in range(max(first_lsn, from_lsn), first_lsn + count):
            yield JournalFrame(path, position, lsn, scan.frames[lsn - scan.first_lsn])
        position += length
        first_lsn += count
