"""What a table holds: its files, the offsets of each log, the last batch of each writer; and the checks of a batch.

    Ledger (version 6)                        Ledger (version 7)
        |  check_batch: is it a repeat?           ^
        |  overlaps: which offsets are held?      |
        +------> actions of version 7 ------------+      see `actions`

What identifies rows depends on the table:

- Rows with topic, partition and offset are identified by these. The ledger knows for each log the ranges of offsets
  that it holds. A batch is compared by its ranges, whatever its number and its writer are: what is held is left out
  (`overlaps`), and the rest is appended.
- Other rows are identified by the writer and the number of their batch (`check_batch`): the last number is a repeat
  (`BatchKnown`) unless its content is known to be another, and a lower one is refused.

Pure: knows no file, no Spark and no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

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
    """One Parquet file: its path in the table, and what is in it. `values` are those of the columns that the table is
    partitioned by, which are not in the file. `stats` is Delta's text of minima and maxima. Files of one `attempt` were
    written for one commit; a file that another program wrote has neither an attempt nor spans."""

    path: str
    rows: int
    size_bytes: int
    spans: tuple[FileSpan, ...] = ()
    values: Mapping[str, str | None] = {}
    stats: str = ""
    attempt: str = ""


class HeldRange(Struct, frozen=True):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class Ledger(Struct, frozen=True):
    """A version of a table."""

    version: int = -1  # -1: nothing is committed yet
    schema: str = ""  # as Spark's JSON, which is also Delta's
    partitioned_by: tuple[str, ...] = ()
    files: Mapping[str, DataFile] = field(default_factory=dict)  # by path
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)  # the last offset of each log
    writers: Mapping[str, int] = field(default_factory=dict)  # the last batch id of each writer
    contents: Mapping[str, int] = field(default_factory=dict)  # a hash of what that batch was made from; 0: not known

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one held: where a new reader continues."""
        positions: dict[str, dict[int, int]] = {}
        for (topic, partition), last in self.ends.items():
            positions.setdefault(topic, {})[partition] = last + 1
        return positions

    def held(self, topic: str, partition: int) -> list[HeldRange]:
        """The offsets of a log in the table: ranges in order that neither overlap nor touch. What one commit wrote
        counts as one range: rows between its first and its last were left out on purpose. If another program has
        rewritten files, everything up to the last offset counts."""
        last = self.ends.get((topic, partition))
        if last is None:
            return []
        attempts: dict[str, HeldRange] = {}
        for file in self.files.values():
            if not file.attempt:
                return [HeldRange(0, last)]
            for span in file.spans:
                if (span.topic, span.partition) == (topic, partition):
                    held = attempts.get(file.attempt, span)
                    attempts[file.attempt] = HeldRange(min(held.first, span.first), max(held.last, span.last))
        return merge_ranges([*attempts.values()])


class BatchRefused(Struct, frozen=True):
    """A batch that is not committed, and what to do about it."""

    code: Literal["BATCH_REGRESSED", "CONTENT_DIFFERS", "FORMER_FORMAT", "ROWS_REPEATED", "SCHEMA_CHANGED"]
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
    ledger: Ledger, writer: str, batch_id: int, content: int = 0
) -> BatchKnown | BatchRefused | None:  # fmt: skip
    """Check a batch of rows without offsets, before they are computed. None: it may be committed."""
    last = ledger.writers.get(writer)
    if last is None or batch_id > last:
        return None
    before = ledger.contents.get(writer, 0)
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
    """The ranges of a batch that the table already holds. Most batches begin after the end of the table, and nothing
    has to be looked up."""
    return [
        Overlap(span.topic, span.partition, max(span.first, held.first), min(span.last, held.last))
        for span in spans
        if span.first <= ledger.ends.get((span.topic, span.partition), -1)
        for held in ledger.held(span.topic, span.partition)
        if span.first <= held.last and held.first <= span.last
    ]


def files_with(ledger: Ledger, ranges: Iterable[Overlap]) -> list[DataFile]:
    """The files that may hold rows of these ranges."""
    by_log: defaultdict[tuple[str, int], list[Overlap]] = defaultdict(list)
    for overlap in ranges:
        by_log[overlap.topic, overlap.partition].append(overlap)
    return [
        file
        for file in ledger.files.values()
        if not file.attempt
        or any(
            span.first <= overlap.last and overlap.first <= span.last
            for span in file.spans
            for overlap in by_log.get((span.topic, span.partition), ())
        )
    ]


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
    """A partition of the table is compacted if it has `files_min` files below `small_bytes`; a new file has up to about
    `target_bytes`."""

    files_min: int = 16
    small_bytes: int = 32 * MIB
    target_bytes: int = 128 * MIB


def files_to_compact(ledger: Ledger, rule: Compaction) -> list[DataFile]:
    """The small files of partitions that have too many, smallest first, up to the size of one new file for each."""
    partitions: defaultdict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in ledger.files.values():
        if file.size_bytes < rule.small_bytes:
            partitions[tuple(file.values.get(name) or "" for name in ledger.partitioned_by)].append(file)
    chosen: list[DataFile] = []
    for _, small in sorted(partitions.items()):
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
