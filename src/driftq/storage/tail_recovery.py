"""Opening a journal after whatever happened: the tail-or-middle rule.

Exactly one block is unsynced at a time. So damage at an lsn that is above the durable watermark, with no valid later
block behind it, can only be a block that was never acknowledged: it is copied aside and cut. Everything else is
acknowledged data that is damaged or missing, and is refused with its place. Nothing is cut before all was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal
from driftq.storage.disk import Disk, DiskFull, File
from driftq.storage.journal_files import (
    HEADER_BYTES,
    WATERMARK,
    Segment,
    Watermark,
    find_block,
    load_segment,
    load_watermark,
    scan_segment,
    segment_numbers,
    segment_path,
    used_end,
)


@dataclass(frozen=True, slots=True)
class TornTail:
    """A block that was being written when the machine stopped. It was never acknowledged."""

    file: str
    position: int
    size_bytes: int
    first_lsn: int
    kept_as: str | None  # None: the disk had no room for the copy


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found and did."""

    first_lsn: int
    tail_lsn: int
    watermark_lsn: int
    segments: int
    torn: TornTail | None = None
    shortened: tuple[str, ...] = ()  # segments that are shorter than they were made, and whole
    removed: tuple[str, ...] = ()  # leftovers of interrupted work: half-made segments, half-done trims


@dataclass(slots=True)
class JournalTail:
    """Where the next block goes."""

    segment: Segment
    position: int
    prev_crc: int
    tail_lsn: int
    last_block_at: int  # -1: the last segment holds no block yet


def survey(disk: Disk, folder: str, store: bytes) -> tuple[Watermark, list[Segment]]:
    """The watermark and every segment that must be there, in order, or the reason why not. Changes nothing."""
    watermark = load_watermark(disk, folder, store)
    numbers = segment_numbers(disk, folder)
    if watermark is None:
        reason = "the watermark is missing or damaged, so nobody can tell a torn tail from lost data"
        raise CorruptJournal(f"{folder}/{WATERMARK}", 0, 1, 0, reason)
    live = [number for number in numbers if number >= watermark.first_segment]
    expected = range(watermark.first_segment, max([watermark.last_segment, *live]) + 1)
    segments: list[Segment] = []
    for number in expected:
        if number not in live:
            first = segments[-1].header.first_lsn if segments else 1
            reason = f"the segment is missing, though segments {expected[0]} to {expected[-1]} must exist"
            raise CorruptJournal(segment_path(folder, number), 0, first, 0, reason)
        lowest_lsn = segments[-1].header.first_lsn if segments else 1
        segment = load_segment(disk, folder, number, store, lowest_lsn)
        if segments and segment.header.first_lsn < segments[-1].header.first_lsn:
            reason = f"the segment starts at lsn {segment.header.first_lsn}, before the segment in front of it"
            raise CorruptJournal(segment.path, 0, segment.header.first_lsn, 0, reason)
        segments.append(segment)
    for segment, following in pairwise(segments):
        if segment.cut_to_bytes:
            _check_whole(disk, segment, following)
    return watermark, segments


def _check_whole(disk: Disk, segment: Segment, following: Segment) -> None:
    """A closed segment that lost bytes at its end must have lost padding only."""
    file = disk.open(segment.path)
    try:
        for base, found in scan_segment(file, segment):  # noqa: B007 -- the last pair is used behind the loop
            pass
    finally:
        file.close()
    if (found.next_lsn, found.prev_crc) != (following.header.first_lsn, following.header.prev_crc):
        raise CorruptJournal(
            segment.path, base + found.position, found.next_lsn, following.header.first_lsn - 1, _was_cut(segment)
        )


def _was_cut(segment: Segment) -> str:
    return f"the segment was made with {segment.header.size_bytes} bytes and was cut to {segment.cut_to_bytes}"


def find_tail(file: File, segment: Segment, durable_lsn: int) -> tuple[JournalTail, int]:
    """Where the last segment ends, and how many torn bytes lie behind that. Raises if the damage is not a torn tail."""
    position, prev_crc, next_lsn, last_block_at = HEADER_BYTES, segment.header.prev_crc, segment.header.first_lsn, -1
    for base, found in scan_segment(file, segment):
        position, prev_crc, next_lsn = base + found.position, found.prev_crc, found.next_lsn
        if found.last_block_at >= 0:
            last_block_at = base + found.last_block_at
    end = used_end(file, position, segment.size_bytes)
    tail = JournalTail(segment, position, prev_crc, next_lsn - 1, last_block_at)
    if next_lsn <= durable_lsn:
        what = "the block is damaged" if end > position else "the journal ends"
        reason = f"{what} here, though lsn {durable_lsn} is known to have been durable"
        raise CorruptJournal(segment.path, position, next_lsn, durable_lsn, reason)
    if segment.cut_to_bytes:
        # Padding behind the last block proves that no block was there; so does a watermark that knows of none.
        padded = end == position and segment.cut_to_bytes - position >= blocks.HEADER_BYTES
        if not padded and (end > position or tail.tail_lsn > durable_lsn):
            raise CorruptJournal(segment.path, position, next_lsn, 0, f"{_was_cut(segment)}, inside or behind a block")
    if end == position:
        return tail, 0
    later = find_block(file, segment, position, next_lsn)
    if later is not None:
        reason = f"the block is damaged, and the valid block at byte {later.position} proves that it was durable"
        raise CorruptJournal(segment.path, position, next_lsn, later.first_lsn - 1, reason)
    return tail, end - position


def cut_torn_tail(disk: Disk, folder: str, file: File, tail: JournalTail, size: int) -> TornTail:
    """Keep a copy of the torn bytes, then make the place all zeros again, durably."""
    torn = file.read_at(tail.position, size)
    first_lsn = tail.tail_lsn + 1
    kept_as: str | None = _keep_copy(disk, folder, first_lsn, torn)
    file.write_at("journal.cut", tail.position, bytes(size))
    file.sync("journal.cut.sync")
    return TornTail(tail.segment.path, tail.position, size, first_lsn, kept_as)


def _keep_copy(disk: Disk, folder: str, first_lsn: int, torn: bytes) -> str | None:
    """The copy is for a curious person, so a full disk may skip it; a failing disk may not be ignored."""
    turn = 1
    while disk.exists(path := f"{folder}/torn-{first_lsn}-{turn}.bytes"):
        turn += 1
    try:
        copy = disk.create("journal.torn.create", path)
    except DiskFull:
        return None
    try:
        copy.write_at("journal.torn.write", 0, torn)
        copy.sync("journal.torn.sync")
    except DiskFull:
        disk.remove("journal.torn.remove", path)
        return None
    finally:
        copy.close()
    return path


def remove_leftovers(disk: Disk, folder: str, first_segment: int) -> tuple[str, ...]:
    """Half-made files (`.tmp`) and segments that a trim had given up before it was interrupted."""
    removed = [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".tmp")]
    removed += [segment_path(folder, number) for number in segment_numbers(disk, folder) if number < first_segment]
    for path in removed:
        disk.remove("journal.leftover.remove", path)
    return tuple(removed)
