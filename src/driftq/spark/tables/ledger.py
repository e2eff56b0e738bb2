"""The content of a table as a fold over its commits: its files, the offsets it holds, the last batch of each writer.

    Ledger (version 6)                        Ledger (version 7)
        |  check_batch: is it a repeat?           ^
        |  overlaps: which offsets are held?      |
        +------> Commit (version 7) ----fold------+

A commit is one version of the table. What identifies rows depends on the table:

- Rows with topic, partition and offset are identified by these. The ledger knows for each log the ranges of offsets
  that it holds (`held`). A batch is compared by its ranges, whatever its number and its writer are: what is held is
  left out (`overlaps`), and the rest is appended.
- Other rows are identified by the writer and the number of their batch (`check_batch`): the last number is a repeat
  (`BatchKnown`) unless its content is known to be another, and a lower one is refused.

`fold` is the only function that changes anything, and it returns a new ledger. A snapshot is a ledger as JSON: the
names of all fields here are part of the format on disk. Pure: knows no file, no Spark and no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Literal

from msgspec import Struct, field

FORMAT = 1
CHECKSUM_MODULUS = 1 << 64


class FileSpan(Struct, frozen=True):
    """The rows of a partition in a file: first and last offset, how many, and the sum of their hashes mod 2^64."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    checksum: int


class DataFile(Struct, frozen=True):
    """One Parquet file: its path in the table's folder, and what is in it."""

    path: str
    rows: int
    size_bytes: int
    spans: tuple[FileSpan, ...] = ()


class Commit(Struct, frozen=True):
    """One version of the table, as its commit file has it."""

    version: int  # dense, from 0
    kind: Literal["append", "compact"]
    writer: str  # empty for a compaction
    batch_id: int
    at_ms: int
    attempt: str  # the staging folder that the added files come from
    schema: str  # of the table after this commit, as Spark's JSON
    partitioned_by: tuple[str, ...]
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()  # paths that a compaction replaces
    format: int = FORMAT
    content: str = ""  # identifies what the batch was made from; empty if that is not known

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.added)


class HeldRange(Struct, frozen=True):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class Ledger(Struct):
    """The fold of all commits up to a version."""

    version: int = -1  # -1: nothing is committed yet
    schema: str = ""
    partitioned_by: tuple[str, ...] = ()
    writers: dict[str, int] = field(default_factory=dict)  # the last batch id of each writer
    files: dict[str, DataFile] = field(default_factory=dict)  # by path
    # The offsets in the table, by topic and partition: ranges in order that neither overlap nor touch.
    held: dict[str, dict[str, list[HeldRange]]] = field(default_factory=dict)
    format: int = FORMAT
    contents: dict[str, str] = field(default_factory=dict)  # of the last batch of each writer, where it is known

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one held: where a new reader continues."""
        return {
            topic: {int(number): ranges[-1].last + 1 for number, ranges in partitions.items()}
            for topic, partitions in self.held.items()
        }


class BatchRefused(Struct, frozen=True):
    """A batch that is not committed, and what to do about it."""

    code: Literal["BATCH_REGRESSED", "CONTENT_DIFFERS", "ROWS_REPEATED", "SCHEMA_CHANGED"]
    message: str


class BatchKnown(Struct, frozen=True):
    """The batch is in the table already; nothing was written."""

    writer: str
    batch_id: int


class Overlap(Struct, frozen=True):
    """Offsets of a log, from `first` to `last`, that are in a batch and in the table."""

    topic: str
    partition: int
    first: int
    last: int


def check_batch(
    ledger: Ledger, writer: str, batch_id: int, content: str = ""
) -> BatchKnown | BatchRefused | None:  # fmt: skip
    """Check a batch of rows without offsets, before they are computed. None: it may be committed."""
    last = ledger.writers.get(writer)
    if last is None or batch_id > last:
        return None
    before = ledger.contents.get(writer, "")
    if batch_id == last and before and content and before != content:
        return BatchRefused(
            "CONTENT_DIFFERS",
            f"writer {writer!r} has committed batch {last} from other offsets than those it reads now: its checkpoint "
            "is an older copy, or lost its last files in a power failure. Nothing was written. Restore the newest "
            "checkpoint, or write to another table with a new one.",
        )
    if batch_id == last:
        return BatchKnown(writer, batch_id)
    return BatchRefused(
        "BATCH_REGRESSED",
        f"writer {writer!r} has committed batch {last} and now writes batch {batch_id}: its checkpoint is older than "
        "the table. Nothing was written. Restore the newest checkpoint, or write to another table with a new one.",
    )


def check_rows(spans: Iterable[FileSpan]) -> BatchRefused | None:
    """Check that no offset is in a batch more than once. There is one span for each log."""
    for span in spans:
        if span.rows > span.last - span.first + 1:
            return BatchRefused(
                "ROWS_REPEATED",
                f"{span.topic}/{span.partition}: {span.rows} rows between offsets {span.first} and {span.last}: "
                "an offset occurs more than once in the batch.",
            )
    return None


def overlaps(ledger: Ledger, spans: Iterable[FileSpan]) -> list[Overlap]:
    """The ranges of a batch that the table already holds."""
    return [
        Overlap(span.topic, span.partition, max(span.first, held.first), min(span.last, held.last))
        for span in spans
        for held in ledger.held.get(span.topic, {}).get(str(span.partition), ())
        if span.first <= held.last and held.first <= span.last
    ]


def files_with(ledger: Ledger, ranges: Iterable[Overlap]) -> list[DataFile]:
    """The files that hold rows of these ranges."""
    by_log: defaultdict[tuple[str, int], list[Overlap]] = defaultdict(list)
    for overlap in ranges:
        by_log[overlap.topic, overlap.partition].append(overlap)
    return [
        file
        for file in ledger.files.values()
        if any(
            span.first <= overlap.last and overlap.first <= span.last
            for span in file.spans
            for overlap in by_log.get((span.topic, span.partition), ())
        )
    ]


def fold(ledger: Ledger, commit: Commit) -> Ledger:
    """The ledger after one more commit. The argument is not changed."""
    assert commit.version == ledger.version + 1, "commits are dense"
    files = {path: file for path, file in ledger.files.items() if path not in set(commit.removed)}
    files.update({file.path: file for file in commit.added})
    writers, held, contents = ledger.writers, ledger.held, ledger.contents
    if commit.kind == "append":
        writers = {**writers, commit.writer: commit.batch_id}
        contents = {**contents, commit.writer: commit.content}
        held = {topic: dict(partitions) for topic, partitions in held.items()}
        for span in merge_spans(span for file in commit.added for span in file.spans):
            partitions = held.setdefault(span.topic, {})
            number = str(span.partition)
            partitions[number] = merge_ranges([*partitions.get(number, ()), HeldRange(span.first, span.last)])
    return Ledger(
        commit.version, commit.schema, commit.partitioned_by, writers, files, held, contents=contents
    )  # fmt: skip


def merge_spans(spans: Iterable[FileSpan]) -> list[FileSpan]:
    """One span for each log: the widest bounds, the sum of rows and of checksums."""
    by_log: dict[tuple[str, int], FileSpan] = {}
    for span in spans:
        log = (span.topic, span.partition)
        other = by_log.get(log)
        by_log[log] = span if other is None else _merge_two(span, other)
    return [by_log[log] for log in sorted(by_log)]


def _merge_two(one: FileSpan, other: FileSpan) -> FileSpan:
    return FileSpan(
        one.topic,
        one.partition,
        min(one.first, other.first),
        max(one.last, other.last),
        one.rows + other.rows,
        (one.checksum + other.checksum) % CHECKSUM_MODULUS,
    )


def merge_ranges(ranges: list[HeldRange]) -> list[HeldRange]:
    """Ranges in order; those that overlap or touch become one."""
    merged: list[HeldRange] = []
    for held in sorted(ranges, key=lambda held: held.first):
        if merged and held.first <= merged[-1].last + 1:
            merged[-1] = HeldRange(merged[-1].first, max(merged[-1].last, held.last))
        else:
            merged.append(held)
    return merged


# --- compaction: which files are worth rewriting as one ---------------------------------------------------------------


MIB = 1 << 20


class Compaction(Struct, frozen=True):
    """A folder is compacted if it has `files_min` files below `small_bytes`; a new file has up to about
    `target_bytes`."""

    files_min: int = 16
    small_bytes: int = 32 * MIB
    target_bytes: int = 128 * MIB


def files_to_compact(ledger: Ledger, rule: Compaction) -> list[DataFile]:
    """The small files of folders that have too many, smallest first, up to the size of one new file for each folder."""
    folders: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in ledger.files.values():
        if file.size_bytes < rule.small_bytes:
            folders[str(PurePosixPath(file.path).parent)].append(file)
    chosen: list[DataFile] = []
    for _, small in sorted(folders.items()):
        taken = _smallest_up_to(rule.target_bytes, small)
        if len(taken) >= max(rule.files_min, 2):
            chosen += taken
    return chosen


def _smallest_up_to(target_bytes: int, files: list[DataFile]) -> list[DataFile]:
    taken: list[DataFile] = []
    size_bytes = 0
    for file in sorted(files, key=lambda file: (file.size_bytes, file.path)):
        if size_bytes + file.size_bytes > target_bytes:
            break
        taken.append(file)
        size_bytes += file.size_bytes
    return taken
