"""Looking at a journal that may be damaged, and making one that opens again out of what is left of it.

`inspect` and `left_over` only read. `repair` changes nothing in the journal it was given: it writes a new one beside
it, with an explicit hole where frames are lost, and then puts the new one in its place; the old folder is kept under
another name. None knows what a frame means: the caller says what the frame of a hole looks like, and may put another
frame in the place of one that no longer fits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal
from driftq.storage.file_journal import SEGMENT_BYTES, FileJournal
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
class Hole:
    """Frames that are lost: nothing of them can be read any more."""

    first_lsn: int
    last_lsn: int


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


def left_over(disk: Disk, folder: str, store: bytes, base_lsn: int) -> Iterator[FoundFrame | Hole]:
    """What there is above `base_lsn`, as a dense row of frames and holes up to the last lsn known to have existed."""
    next_lsn = base_lsn + 1
    for found in inspect(disk, folder, store):
        if isinstance(found, FoundFrame) and found.lsn >= next_lsn:
            if found.lsn > next_lsn:
                yield Hole(next_lsn, found.lsn - 1)
            yield found
            next_lsn = found.lsn + 1
    watermark = load_watermark(disk, folder, store)
    if watermark is not None and watermark.lsn >= next_lsn:
        yield Hole(next_lsn, watermark.lsn)


def unchanged(found: FoundFrame) -> bytes:
    return found.frame


def repair(
    disk: Disk,
    folder: str,
    store: bytes,
    hole_frame: Callable[[int, int], bytes],
    *,
    base_lsn: int = 0,
    prev_crc: int = 0,
    change: Callable[[FoundFrame], bytes] = unchanged,
    closing: Callable[[], Iterable[bytes]] = tuple,
    segment_bytes: int = SEGMENT_BYTES,
) -> RepairReport:
    """Replace a damaged journal by one that opens, and keep the damaged one beside it.

    `hole_frame(first_lsn, last_lsn)` makes the frame that replay gives for each lost lsn, `change` the one to keep for
    each that is left, `closing` those to add at the end. `base_lsn` is the lsn of the newest snapshot and `prev_crc`
    what it says of the history before: the new journal begins behind it.
    """
    parent = folder.rpartition("/")[0] or "/"
    work = f"{folder}.repaired"
    if disk.exists(folder):
        _remove_folder(disk, work)
        journal = FileJournal.create(
            disk, work, store, segment_bytes=segment_bytes, first_lsn=base_lsn + 1, prev_crc=prev_crc
        )
        try:
            report = _fill(journal, left_over(disk, folder, store, base_lsn), hole_frame, change, closing)
        finally:
            journal.close()
        report = replace(report, kept_as=_aside(disk, folder, 0))
        disk.rename("repair.put_aside", folder, report.kept_as)
    else:
        # The repair before this one was interrupted between its two renames: what it wrote is whole.
        report = RepairReport(_aside(disk, folder, -1), 0, ())
    disk.rename("repair.put_in_place", work, folder)
    disk.sync_folder("repair.sync_folder", parent)
    return report


def is_half_done(disk: Disk, folder: str) -> bool:
    """Whether a repair was interrupted between its two renames: to repair again ends it."""
    return not disk.exists(folder) and disk.exists(f"{folder}.repaired")


def _fill(
    journal: FileJournal,
    left: Iterator[FoundFrame | Hole],
    hole_frame: Callable[[int, int], bytes],
    change: Callable[[FoundFrame], bytes],
    closing: Callable[[], Iterable[bytes]],
) -> RepairReport:
    holes: list[tuple[int, int]] = []
    frames = 0
    pending: list[bytes] = []

    def flush() -> None:
        journal.append(journal.tail_lsn(), pending)
        pending.clear()

    for found in left:
        if isinstance(found, Hole):
            flush()
            holes.append((found.first_lsn, found.last_lsn))
            count = found.last_lsn + 1 - found.first_lsn
            journal.append_hole(count, hole_frame(found.first_lsn, found.last_lsn))
            continue
        pending.append(change(found))
        frames += 1
        if len(pending) >= _FRAMES_PER_BLOCK:
            flush()
    flush()
    for frame in closing():
        journal.append(journal.tail_lsn(), [frame])
    return RepairReport("", frames, tuple(holes))


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
