"""Tables of DriftQ's former format, Parquet files and a commit log of our own: read and converted, no longer written.

    orders/
      topic=orders/date=2030-01-31/v00000007-0000-1a2b3c4d.parquet      data files
      _driftq/
        staging/<attempt>/...                   data files of a commit that was interrupted
        commits/00000000000000000007.json       one file for each version: `Commit`
        snapshot.json                           the fold of all commits up to a version: `FormerSnapshot`

A commit counted once its commit file existed. Files that a dead writer did not move to their final paths are moved by
the next process that opens the table. The names of all fields of `Commit` and `FormerSnapshot` are the format on disk.
`convert` writes the rows to a Delta table in the same folder, commits them together with what the old table knew of its
writers and logs, and deletes the old files; why there is a new format is in docs/decisions/0018-delta-tables.md.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import MsgspecError, Struct, field, json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from driftq.spark.tables.actions import TableDamaged
from driftq.spark.tables.delta import DeltaTable
from driftq.spark.tables.ledger import (
    BatchRefused,
    Compaction,
    DataFile,
    FileSpan,
    HeldRange,
    merge_ranges,
    merge_spans,
)
from driftq.spark.tables.storage import PRIVATE, LocalFiles, files_at
from driftq.spark.tables.table import Compacted, NoTable, Outcome, TableBusy

FORMAT = 1


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


class FormerSnapshot(Struct, frozen=True):
    """The fold of all commits up to a version."""

    version: int = -1  # -1: nothing is committed yet
    schema: str = ""
    partitioned_by: tuple[str, ...] = ()
    writers: dict[str, int] = field(default_factory=dict)  # the last batch id of each writer
    files: dict[str, DataFile] = field(default_factory=dict)  # by path
    held: dict[str, dict[str, list[HeldRange]]] = field(default_factory=dict)  # by topic and partition, in order
    format: int = FORMAT
    contents: dict[str, str] = field(default_factory=dict)  # of the last batch of each writer, where it is known

    def spans(self) -> list[FileSpan]:
        """The rows of each log."""
        return merge_spans(span for file in self.files.values() for span in file.spans)


T = TypeVar("T", Commit, FormerSnapshot)


def is_former(path: str) -> bool:
    """Whether there is a table of the former format, and none of the present one."""
    files = files_at(path)
    return (
        isinstance(files, LocalFiles)
        and (files.root / PRIVATE / "commits").is_dir()
        and files.read("_delta_log/00000000000000000000.json") is None
        and files.read("_delta_log/_last_checkpoint") is None
    )


class FormerTable:
    """A table of the former format in one folder."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        files = files_at(path)
        assert isinstance(files, LocalFiles), "the former format is a folder"
        self.root = files.root
        self.path = files.uri
        self._spark = spark
        self._home = self.root / PRIVATE

    @property
    def exists(self) -> bool:
        return self.load().version >= 0

    def load(self) -> FormerSnapshot:
        """The newest version. Finishes moving the files of the last commit if that was interrupted."""
        path = self._home / "snapshot.json"
        snapshot = self._read(path, FormerSnapshot) if path.exists() else FormerSnapshot()
        last: Commit | None = None
        for path in sorted((self._home / "commits").glob("*.json")):
            if int(path.stem) <= snapshot.version:
                continue  # Part of the snapshot; deleting it was interrupted.
            last = self._read(path, Commit)
            if last.version != snapshot.version + 1:
                raise TableDamaged(f"{self.root}: version {snapshot.version + 1} is missing before {path.name}")
            snapshot = fold(snapshot, last)
        if last is not None:
            self._move_files(last)
        return snapshot

    def _read(self, path: Path, kind: type[T]) -> T:
        try:
            decoded = json.decode(path.read_bytes(), type=kind)
        except MsgspecError as error:
            raise TableDamaged(f"{path}: {error}") from error
        if decoded.format != FORMAT:
            raise TableDamaged(f"{path}: written in format {decoded.format}; this version reads format {FORMAT}")
        return decoded

    def _move_files(self, commit: Commit) -> None:
        """Move the files of a commit to their final paths. Idempotent."""
        staged = self._home / "staging" / commit.attempt
        if not staged.exists():
            return
        for path in commit.removed:
            (self.root / path).unlink(missing_ok=True)
        for file in commit.added:
            source, target = staged / file.path, self.root / file.path
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            elif not target.exists():
                raise TableDamaged(f"{self.root}: {file.path} of version {commit.version} is missing")
        shutil.rmtree(staged, ignore_errors=True)

    @contextmanager
    def writer_lock(self) -> Iterator[None]:
        """Keep an earlier version of DriftQ from writing. Raises `TableBusy` if one does."""
        with (self._home / "turn").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TableBusy(f"{self.path}: a pipeline is writing it; stop it first") from None
            yield

    # --- the protocol of tables ---

    def commit(self, writer: str, batch_id: int, rows: DataFrame, content: str = "") -> Outcome:
        return BatchRefused(
            "FORMER_FORMAT",
            "the table has the format of an earlier version of DriftQ, which can only be read. Nothing was written. "
            "Convert it, which keeps its rows and the place where it continues: driftq pipeline convert --table "
            f"{self.path}",
        )

    def committed(self, writer: str) -> int | None:
        return self.load().writers.get(writer)

    def positions(self) -> dict[str, dict[int, int]]:
        return {
            topic: {int(number): ranges[-1].last + 1 for number, ranges in partitions.items()}
            for topic, partitions in self.load().held.items()
        }

    def read(self) -> DataFrame:
        snapshot = self.load()
        if snapshot.version < 0:
            raise NoTable(f"{self.path}: there is no table yet")
        kind = StructType.fromJson(json.decode(snapshot.schema))
        if not snapshot.files:
            return self._spark.createDataFrame([], kind)
        strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "basePath": self.path}
        reader = self._spark.read.schema(kind).options(**strict)
        rows = reader.parquet(*(str(self.root / path) for path in sorted(snapshot.files)))
        return rows.select(*(f"`{field.name}`" for field in kind.fields))

    def compact(self, rule: Compaction) -> Compacted:
        return Compacted()

    def vacuum(self) -> int:
        return 0


def fold(snapshot: FormerSnapshot, commit: Commit) -> FormerSnapshot:
    """The snapshot after one more commit."""
    files = {path: file for path, file in snapshot.files.items() if path not in set(commit.removed)}
    files.update({file.path: file for file in commit.added})
    writers, held, contents = snapshot.writers, snapshot.held, snapshot.contents
    if commit.kind == "append":
        writers = {**writers, commit.writer: commit.batch_id}
        contents = {**contents, commit.writer: commit.content}
        held = {topic: dict(partitions) for topic, partitions in held.items()}
        for span in merge_spans(span for file in commit.added for span in file.spans):
            partitions = held.setdefault(span.topic, {})
            ranges = [*partitions.get(str(span.partition), ()), HeldRange(span.first, span.last)]
            partitions[str(span.partition)] = merge_ranges(ranges)
    return FormerSnapshot(commit.version, commit.schema, commit.partitioned_by, writers, files, held, contents=contents)


# --- conversion -------------------------------------------------------------------------------------------------------


def convert(spark: SparkSession, path: str) -> int:
    """Make a Delta table of a table of the former format, in its folder, and return its number of rows. It is safe to
    repeat it after an interruption: the new table is made in one commit, and the old files are deleted after it. Raises
    `NoTable`, `TableBusy`, and `TableDamaged` if the rows are not those that were committed."""
    if is_former(path):
        former = FormerTable(spark, path)
        with former.writer_lock():
            snapshot = former.load()
            table = DeltaTable(spark, path, snapshot.partitioned_by)
            table.create_from(former.read(), snapshot.spans(), snapshot.writers, snapshot.contents)
    table = DeltaTable(spark, path)
    if not table.exists:
        raise NoTable(f"{path}: there is no table here")
    _delete_former(path)
    return table.ledger().rows


def _delete_former(path: str) -> None:
    """Delete what a conversion leaves: data files that only the former log lists, then that log."""
    files = files_at(path)
    if isinstance(files, LocalFiles) and (files.root / PRIVATE / "commits").is_dir():
        for file in files.root.rglob("v[0-9]*-[0-9]*-*.parquet"):
            file.unlink()
        shutil.rmtree(files.root / PRIVATE)
