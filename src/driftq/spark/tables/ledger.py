"""What a table holds, as a fold over its commits: which files, which offsets, which batch of which writer.

A commit is one version of the table. `judge` reads the fold and says whether a batch may become the next one; `fold`
alone moves on. Pure: knows no file, no Spark and no clock. A snapshot is the fold itself, written down.
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
    """Rows of one partition of a topic: first and last offset, how many, and the sum of their hashes (mod 2^64)."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    checksum: int


class DataFile(Struct, frozen=True):
    """One Parquet file by its path below the table's folder, with what is in it."""

    path: str
    rows: int
    size_bytes: int
    spans: tuple[FileSpan, ...] = ()


class Commit(Struct, frozen=True):
    """One version. `attempt` names the staging folder that the added files come from."""

    version: int
    kind: Literal["append", "compact"]
    writer: str
    batch_id: int
    at_ms: int
    attempt: str
    schema: str
    partitioned_by: tuple[str, ...]
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.added)


class HeldRange(Struct, frozen=True):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class Ledger(Struct):
    """The fold. `held` has the offsets of each log as ranges in order that do not touch."""

    version: int = -1
    schema: str = ""
    partitioned_by: tuple[str, ...] = ()
    writers: dict[str, int] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    held: dict[str, dict[str, list[HeldRange]]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one held: where a new reader would go on."""
        return {
            topic: {int(number): ranges[-1].last + 1 for number, ranges in partitions.items()}
            for topic, partitions in self.held.items()
        }


class BatchRefused(Struct, frozen=True):
    """A commit that will not be made, and what to do about it."""

    code: Literal["BATCH_REGRESSED", "OFFSETS_HELD", "ROWS_REPEATED", "SCHEMA_CHANGED"]
    message: str


class BatchKnown(Struct, frozen=True):
    """The batch is in the table already; nothing was written."""

    writer: str
    batch_id: int


def judge_batch(ledger: Ledger, writer: str, batch_id: int) -> BatchKnown | BatchRefused | None:
    """What can be said of a batch before its rows are computed. None: go on."""
    last = ledger.writers.get(writer)
    if last is None or batch_id > last:
        return None
    if batch_id == last:
        return BatchKnown(writer, batch_id)
    return BatchRefused(
        "BATCH_REGRESSED",
        f"writer {writer!r} has committed batch {last} and now brings batch {batch_id}: its checkpoint is older than "
        "the table. Put the newer checkpoint back, or start with a new one: the archive goes on where the table ends.",
    )


def judge_rows(ledger: Ledger, added: Iterable[DataFile]) -> BatchRefused | None:
    """Whether the rows of a batch are new to the table, as far as their offsets tell."""
    spans = merged(span for file in added for span in file.spans)
    for span in spans:
        if span.rows > span.last - span.first + 1:
            return BatchRefused(
                "ROWS_REPEATED",
                f"{span.topic}/{span.partition}: {span.rows} rows between offsets {span.first} and {span.last}: "
                "some offset comes more than once within the batch.",
            )
        for there in ledger.held.get(span.topic, {}).get(str(span.partition), ()):
            if span.first <= there.last and there.first <= span.last:
                return BatchRefused(
                    "OFFSETS_HELD",
                    f"{span.topic}/{span.partition}: offsets {span.first} to {span.last} overlap {there.first} to "
                    f"{there.last}, which the table holds already. Start after them, or write to another table.",
                )
    return None


def fold(ledger: Ledger, commit: Commit) -> Ledger:
    """The ledger after one more commit; the given one is not touched."""
    assert commit.version == ledger.version + 1, "commits are dense"
    files = {path: file for path, file in ledger.files.items() if path not in set(commit.removed)}
    files.update({file.path: file for file in commit.added})
    writers, held = ledger.writers, ledger.held
    if commit.kind == "append":
        writers = {**writers, commit.writer: commit.batch_id}
        held = {topic: dict(partitions) for topic, partitions in held.items()}
        for span in merged(span for file in commit.added for span in file.spans):
            partitions = held.setdefault(span.topic, {})
            number = str(span.partition)
            partitions[number] = joined([*partitions.get(number, ()), HeldRange(span.first, span.last)])
    return Ledger(commit.version, commit.schema, commit.partitioned_by, writers, files, held)


def merged(spans: Iterable[FileSpan]) -> list[FileSpan]:
    """One span for each log: the widest bounds, the sum of rows and of checksums."""
    found: dict[tuple[str, int], FileSpan] = {}
    for span in spans:
        log = (span.topic, span.partition)
        other = found.get(log)
        found[log] = span if other is None else both(span, other)
    return [found[log] for log in sorted(found)]


def both(one: FileSpan, other: FileSpan) -> FileSpan:
    return FileSpan(
        one.topic,
        one.partition,
        min(one.first, other.first),
        max(one.last, other.last),
        one.rows + other.rows,
        (one.checksum + other.checksum) % CHECKSUM_MODULUS,
    )


def joined(ranges: list[HeldRange]) -> list[HeldRange]:
    """Ranges in order, those that touch made one."""
    done: list[HeldRange] = []
    for each in sorted(ranges, key=lambda each: each.first):
        if done and each.first <= done[-1].last + 1:
            done[-1] = HeldRange(done[-1].first, max(done[-1].last, each.last))
        else:
            done.append(each)
    return done


# --- Which files of a table are worth being rewritten as one. Pure: reads a ledger, names paths ---


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
