"""Opens a journal after a crash: is damage at its end a torn write, which is expected, or lost data, which is an error?

A block is written only after the sync of the one before it returned, so exactly one block can be unsynced:

    | block 7 | block 8 | block 9 |  ???  | 0000 ...
                   ▲                 ▲
        durable_lsn: the watermark   the first bytes that are no valid block of the chain
        or the snapshot guarantees it

    the damage is at or below durable_lsn            acknowledged data is lost               refuse
    a valid block follows somewhere after it         block 10 was synced before that one     refuse
    neither                                          the last write, never acknowledged      copy it aside, cut it

The refusal names file, byte, and lsn range. Nothing is cut before everything was checked. A segment that is shorter
than it was made may have lost blocks without a trace; it is accepted only if zeros after its last block prove that it
did not.
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
    """What the opening of a journal found and did."""

    first_lsn: int
    tail_lsn: int
    watermark_lsn: int
    segments: int
    torn: TornTail | None = None
    shortened: tuple[str, ...] = ()  # segments that lost padding at their end, and no block
    removed: tuple[str, ...] = ()  # leftovers of interrupted work: unfinished segments and trims


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
        reason = "the watermark is missing or damaged, so a torn tail cannot be distinguished from lost data"
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
            reason = f"the segment starts at lsn {segment.header.first_lsn}, before the segment that precedes it"
            raise CorruptJournal(segment.path, 0, segment.header.first_lsn, 0, reason)
        segments.append(segment)
    for segment, following in pairwise(segments):
        if segment.cut_to_bytes:
            _check_whole(disk, segment, following)
    return watermark, segments


def _check_whole(disk: Disk, segment: Segment, following: Segment) -> None:
    """A closed segment that lost bytes at its end may have lost only padding."""
    file = disk.open(segment.path)
    try:
        for base, scan in scan_segment(file, segment):  # noqa: B007 -- the last pair is used after the loop
            pass
    finally:
        file.close()
    if (scan.next_lsn, scan.prev_crc) != (following.header.first_lsn, following.header.prev_crc):
        raise CorruptJournal(
            segment.path, base + scan.position, scan.next_lsn, following.header.first_lsn - 1, _was_cut(segment)
        )


def _was_cut(segment: Segment) -> str:
    return f"the segment was made with {segment.header.size_bytes} bytes and was cut to {segment.cut_to_bytes}"


def find_tail(file: File, segment: Segment, durable_lsn: int) -> tuple[JournalTail, int]:
    """Where the last segment ends, and how many torn bytes follow. Raises if the damage is not a torn tail."""
    position, prev_crc, next_lsn, last_block_at = HEADER_BYTES, segment.header.prev_crc, segment.header.first_lsn, -1
    for base, scan in scan_segment(file, segment):
        position, prev_crc, next_lsn = base + scan.position, scan.prev_crc, scan.next_lsn
        if scan.last_block_at >= 0:
            last_block_at = base + scan.last_block_at
    end = used_end(file, position, segment.size_bytes)
    tail = JournalTail(segment, position, prev_crc, next_lsn - 1, last_block_at)
    if next_lsn <= durable_lsn:
        what = "the block is damaged" if end > position else "the journal ends"
        reason = f"{what} here, though lsn {durable_lsn} is known to have been durable"
        raise CorruptJournal(segment.path, position, next_lsn, durable_lsn, reason)
    if segment.cut_to_bytes:
        # Zeros after the last block prove that there was no other block; so does a watermark at that block.
        padded = end == position and segment.cut_to_bytes - position >= blocks.HEADER_BYTES
        if not padded and (end > position or tail.tail_lsn > durable_lsn):
            raise CorruptJournal(segment.path, position, next_lsn, 0, f"{_was_cut(segment)}, inside or after a block")
    if end == position:
        return tail, 0
    later = find_block(file, segment, position, next_lsn)
    if later is not None:
        reason = f"the block is damaged, and the valid block at byte {later.position} proves that it was durable"
        raise CorruptJournal(segment.path, position, next_lsn, later.first_lsn - 1, reason)
    return tail, end - position


def cut_torn_tail(disk: Disk, folder: str, file: File, tail: JournalTail, size: int) -> TornTail:
    """Keep a copy of the torn bytes, then overwrite them with zeros, durably."""
    torn = file.read_at(tail.position, size)
    first_lsn = tail.tail_lsn + 1
    kept_as: str | None = _keep_copy(disk, folder, first_lsn, torn)
    file.write_at("journal.cut", tail.position, bytes(size))
    file.sync("journal.cut.sync")
    return TornTail(tail.segment.path, tail.position, size, first_lsn, kept_as)


def _keep_copy(disk: Disk, folder: str, first_lsn: int, torn: bytes) -> str | None:
    """The copy is only for a person who investigates, so a full disk may skip it. A failing disk is an error."""
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
    """Remove unfinished files (`.tmp`) and segments that an interrupted trim left."""
    removed = [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".tmp")]
    removed += [segment_path(folder, number) for number in segment_numbers(disk, folder) if number < first_segment]
    for path in removed:
        disk.remove("journal.leftover.remove", path)
    return tuple(removed)
