"""The byte tables of docs/internals/formats.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from driftq.storage import blocks, journal_files, log_segment, shared_segment, snapshots
from driftq.storage.data_folder import finish_folder, new_folder
from driftq.storage.shared_segment import SharedSegment
from driftq.wire import records
from tests.support.simdisk import SimDisk

PAGE = Path(__file__).parents[3] / "docs/internals/formats.md"


def table(section: str, number: int = 0) -> list[tuple[int, int]]:
    """Position and size of each field in a section's table, where both are plain numbers."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = text.split("\n\n| at | size")[number + 1].split("\n\n")[0]
    return [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", rows, re.MULTILINE)]


def check(rows: list[tuple[int, int]], code_format: str, *, last_at: int) -> None:
    """The rows follow each other as the fields and gaps of a struct do; `last_at` is where the last row must be."""
    at = 0
    expected = []
    for count, kind in re.findall(r"(\d*)([sxHIQq])", code_format):
        sizes = {"s": 1, "x": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
        for size in [int(count)] if kind in "sx" else [sizes[kind]] * int(count or 1):
            if kind != "x":
                expected.append((at, size))
            at += size
    assert rows[: len(expected)] == expected
    assert rows[-1][0] == last_at


def test_the_tables_say_what_the_code_does() -> None:
    check(table("Batch"), records.HEADER.format, last_at=48)
    check(table("Block"), blocks.HEADER.format, last_at=28)
    check(table("Journal segment"), journal_files._SEGMENT.format, last_at=journal_files.HEADER_BYTES - 4)
    check(table("Watermark"), journal_files._SLOT.format, last_at=journal_files._SLOT.size)
    check(table("Snapshot"), snapshots._HEADER.format, last_at=snapshots._HEADER.size)
    check(table("Log segment and index"), log_segment._HEADER.format, last_at=log_segment._HEADER.size)
    check(table("Log segment and index", 1), log_segment._INDEX.format, last_at=48)
    assert log_segment._ENTRY.size == 32
    shared = "Shared segment and index"
    check(table(shared), shared_segment._HEADER.format, last_at=shared_segment._HEADER.size)
    check(table(shared, 1), shared_segment._ENTRY.format, last_at=28)
    check(table(shared, 2), shared_segment._INDEX.format, last_at=40)
    assert sum(column.itemsize for column in shared_segment._columns(SharedSegment(1, "1.log", bytes(16)))) == 36


def test_the_format_file_looks_as_it_is_shown() -> None:
    disk = SimDisk()
    finish_folder(disk, new_folder(disk, "d", bytes(range(16))))
    assert disk.files()["d/FORMAT"].decode() in PAGE.read_text(encoding="utf-8")
