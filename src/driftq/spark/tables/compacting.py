"""Which files of a table are worth being rewritten as one. Pure: reads a ledger, names paths."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

from msgspec import Struct

from driftq.spark.tables.ledger import DataFile, Ledger

MIB = 1 << 20


class Compaction(Struct, frozen=True):
    """A folder is compacted when it has `files_min` files below `small_bytes`; one new file gets up to about
    `target_bytes`."""

    files_min: int = 16
    small_bytes: int = 32 * MIB
    target_bytes: int = 128 * MIB


def worth_compacting(ledger: Ledger, rule: Compaction) -> list[DataFile]:
    """The small files of folders that have too many of them, smallest first, as many as make one file each."""
    folders: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in ledger.files.values():
        if file.size_bytes < rule.small_bytes:
            folders[str(PurePosixPath(file.path).parent)].append(file)
    chosen: list[DataFile] = []
    for _, small in sorted(folders.items()):
        taken = _up_to(rule.target_bytes, small)
        if len(taken) >= max(rule.files_min, 2):
            chosen += taken
    return chosen


def _up_to(target_bytes: int, files: list[DataFile]) -> list[DataFile]:
    taken: list[DataFile] = []
    size_bytes = 0
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        if size_bytes + file.size_bytes > target_bytes:
            break
        taken.append(file)
        size_bytes += file.size_bytes
    return taken
