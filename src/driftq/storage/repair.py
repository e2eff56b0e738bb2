"""Looking at a journal that may be damaged, and making one that opens again out of what is left of it.

`inspect` only reads. `repair` changes nothing in the journal it was given: it writes a new one beside it, with an
explicit hole where frames are lost, and then puts the new one in its place; the old folder is kept under another name.
Neither knows what a frame means: the caller says what the frame of a hole looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from driftq.storage import blocks
from driftq.storage.damage import CorruptJournal
from driftq.storage.disk import Disk, File
from driftq.storage.headers import HEADER_BYTES, SegmentHeader
from driftq.storage.journalfiles import (
    WATERMARK,
    Segment,
    find_block,
    load_segment,
    load_watermark,
    scan_segment,
    segment_numbers,
    segment_path,
    used_end,
)
from driftq.storage.wal import SEGMENT_BYTES, FileJournal

_FRAMES_PER_BLOCK = 32


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame that is whole, and the position of its block."""

    file: str
    position: int
    lsn: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """A place that is not as it was written. `last_lsn` 0: nobody can tell how many frames were there, perhaps none."""

    file: str
    position: int
    first_lsn: int
    last_lsn: int
    reason: str

    @property
    def is_torn_tail(self) -> bool:
        return self.last_lsn == 0


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did. `holes` are the lsn ranges that are lost."""

    kept_as: str
    frames: int
    holes: tuple[tuple[int, int], ...]


def inspect(disk: Disk, folder: str, store: bytes) -> Iterator[FoundFrame | Damage]:
    """Every frame that can still be read, in order, and every damage in its place. Changes nothing."""
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
        segment, wrong = _identify(disk, folder, number, store, next_lsn or int(number == 1), prev_crc)
        if wrong:
            yield Damage(path, 0, next_lsn or 1, 0, wrong)
        if segment is None:
            prev_crc = 0
            continue
        if next_lsn and segment.header.first_lsn > next_lsn:
            first_lsn = segment.header.first_lsn
            reason = f"the frames before this segment, which begins at lsn {first_lsn}, are missing"
            yield Damage(path, 0, next_lsn, first_lsn - 1, reason)
        file = disk.open(path)
        try:
            next_lsn, prev_crc = yield from _inspect_segment(file, segment, next_lsn)
        finally:
            file.close()
    if watermark is not None and 0 < next_lsn <= watermark.lsn:
        reason = f"the journal ends, though lsn {watermark.lsn} is known to have been durable"
        yield Damage(segment_path(folder, last_number), 0, next_lsn, watermark.lsn, reason)


def _identify(
    disk: Disk, folder: str, number: int, store: bytes, next_lsn: int, prev_crc: int
) -> tuple[Segment | None, str]:
    """A segment by its header, or by what its header must have been if the segment before is whole."""
    try:
        return load_segment(disk, folder, number, store), ""
    except CorruptJournal as error:
        wrong = error.reason
    if not next_lsn:
        return None, wrong
    path = segment_path(folder, number)
    file = disk.open(path)
    try:
        header = SegmentHeader(store, number, next_lsn, file.size(), prev_crc)
        guess = Segment(path, header, header.seed())
        _, first = next(scan_segment(file, guess))
        return (guess if first.frames else None), wrong
    finally:
        file.close()


def _inspect_segment(
    file: File, segment: Segment, next_lsn: int
) -> Generator[FoundFrame | Damage, None, tuple[int, int]]:
    """One segment, going on behind each damage; returns where the chain stands at its end (next lsn, checksum)."""
    next_lsn = max(next_lsn, segment.header.first_lsn)
    start = (HEADER_BYTES, segment.header.prev_crc, segment.header.first_lsn)
    while True:
        position, prev_crc, _ = start
        for base, found in scan_segment(file, segment, start):
            yield from _placed(file, segment.path, base, found, next_lsn)
            position, prev_crc = base + found.position, found.prev_crc
            next_lsn = max(next_lsn, found.next_lsn)
        if used_end(file, position, segment.header.size_bytes) == position:
            return next_lsn, prev_crc
        later = find_block(file, segment, position, next_lsn)
        if later is None:
            yield Damage(segment.path, position, next_lsn, 0, "the bytes behind the last block are no block")
            return next_lsn, prev_crc
        yield Damage(segment.path, position, next_lsn, later.first_lsn - 1, "the block is damaged")
        next_lsn = later.first_lsn
        start = (later.position, later.prev_crc, later.first_lsn)


def _placed(file: File, path: str, base: int, found: blocks.Scan, from_lsn: int) -> Iterator[FoundFrame]:
    """The frames of a scan, each with the position of its block."""
    position, lsn = base, found.first_lsn
    while lsn < found.next_lsn:
        header = blocks.HEADER.unpack(file.read_at(position, blocks.HEADER_BYTES))
        length, count = header[3], header[5]
        for each in range(max(lsn, from_lsn), lsn + count):
            yield FoundFrame(path, position, each, found.frames[each - found.first_lsn])
        position += length
        lsn += count


# ----------------------------------------------------------------------------------------------------------- repairing


def repair(
    disk: Disk,
    folder: str,
    store: bytes,
    hole_frame: Callable[[int, int], bytes],
    *,
    base_lsn: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
) -> RepairReport:
    """Replace a damaged journal by one that opens, and keep the damaged one beside it.

    `hole_frame(first_lsn, last_lsn)` makes the frame that replay gives for each lost lsn. `base_lsn` is the lsn of the
    newest snapshot: frames up to it are not needed, and everything up to it is known to have been there.
    """
    parent = folder.rpartition("/")[0] or "/"
    work = f"{folder}.repaired"
    if disk.exists(folder):
        _remove_folder(disk, work)
        report = _rewrite(disk, folder, work, store, hole_frame, base_lsn, segment_bytes)
        disk.rename("repair.put_aside", folder, report.kept_as)
    else:
        # The repair before this one was interrupted between its two renames: what it wrote is whole.
        report = RepairReport(_aside(disk, folder, -1), 0, ())
    disk.rename("repair.put_in_place", work, folder)
    disk.sync_folder("repair.sync_folder", parent)
    return report


def _rewrite(
    disk: Disk,
    folder: str,
    work: str,
    store: bytes,
    hole_frame: Callable[[int, int], bytes],
    base_lsn: int,
    segment_bytes: int,
) -> RepairReport:
    holes: list[tuple[int, int]] = []
    frames = 0
    next_lsn = _first_lsn(disk, folder, store, base_lsn)
    journal = FileJournal.create(disk, work, store, segment_bytes=segment_bytes, first_lsn=next_lsn)
    pending: list[bytes] = []

    def flush(upto_lsn: int) -> None:
        """Write what is pending, and a hole from there up to `upto_lsn`."""
        nonlocal next_lsn
        next_lsn = journal.append(journal.tail_lsn(), pending) + 1
        pending.clear()
        if next_lsn <= upto_lsn:
            holes.append((next_lsn, upto_lsn))
            next_lsn = journal.append_hole(upto_lsn + 1 - next_lsn, hole_frame(next_lsn, upto_lsn)) + 1

    try:
        for found in inspect(disk, folder, store):
            if isinstance(found, FoundFrame) and found.lsn >= next_lsn + len(pending):
                if found.lsn > next_lsn + len(pending) or len(pending) >= _FRAMES_PER_BLOCK:
                    flush(found.lsn - 1)
                pending.append(found.frame)
                frames += 1
        watermark = load_watermark(disk, folder, store)
        flush(max(base_lsn, watermark.lsn if watermark else 0))
    finally:
        journal.close()
    return RepairReport(_aside(disk, folder, 0), frames, tuple(holes))


def _first_lsn(disk: Disk, folder: str, store: bytes, base_lsn: int) -> int:
    """Where the new journal begins: where the old one did, if that can be told, or behind the snapshot."""
    for found in inspect(disk, folder, store):
        if isinstance(found, FoundFrame):
            return min(found.lsn, base_lsn + 1)
    return base_lsn + 1


def _aside(disk: Disk, folder: str, back: int) -> str:
    turn = 1
    while disk.exists(f"{folder}.damaged-{turn}"):
        turn += 1
    return f"{folder}.damaged-{turn + back}"


def _remove_folder(disk: Disk, folder: str) -> None:
    if disk.exists(folder):
        for name in disk.list(folder):
            disk.remove("repair.leftover.remove", f"{folder}/{name}")
        disk.remove_folder("repair.leftover.remove", folder)
