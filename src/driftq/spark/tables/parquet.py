"""The built-in table: Parquet files that Spark writes, and a commit log that makes each batch part of the table once.

    rows --Spark--> staging/<attempt>/*.parquet --read back--> counts, offsets, checksums of each file
                                                                    |
         check_batch, merge_schemas, check_rows, overlaps <---------+----> CommitLog.commit

Files are read back after they are written, so a commit describes what is on disk. The table is a folder on this machine
or on a shared mount (NFS). Object stores have neither rename nor locks; use a table format with its own log there.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import json
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from driftq.spark.tables.checksum import LOG_COLUMNS, span_of, totals
from driftq.spark.tables.commits import CommitLog, NoTable, TableBusy, TableDamaged, file_lock
from driftq.spark.tables.ledger import (
    BatchKnown,
    BatchRefused,
    Commit,
    Compaction,
    DataFile,
    FileSpan,
    Ledger,
    check_batch,
    check_rows,
    files_to_compact,
    files_with,
    merge_spans,
    overlaps,
)
from driftq.spark.tables.overlap import contradiction, inside, outside, totals_of
from driftq.spark.tables.schema import merge_schemas
from driftq.spark.tables.table import Committed, Compacted, Outcome

WRITER_LOCK_WAIT_S = 600.0
ONE_TASK_BYTES = 8 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ParquetTable:
    """A table in one folder. `partition_by` is used when the table is created, and ignored after that."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        partition_by: Sequence[str] = (),
        *,
        log: CommitLog | None = None,
        lock_wait_s: float = WRITER_LOCK_WAIT_S,
    ) -> None:
        self.root = local_folder(path)
        self.path = str(self.root)
        self._spark = spark
        self._partition_by = tuple(partition_by)
        self._log = log or CommitLog(self.root)
        self._lock_wait_s = lock_wait_s

    # ---------------------------------------------------------------------------------------------------------- append

    def commit(self, writer: str, batch_id: int, rows: DataFrame, content: str = "") -> Outcome:
        with self._log.writer_lock(self._lock_wait_s) as ledger:
            if not set(LOG_COLUMNS) <= set(rows.columns):
                known = check_batch(ledger, writer, batch_id, content)
                if known is not None:
                    return known
            schema = merge_schemas(ledger.schema, rows.schema.json())
            if isinstance(schema, BatchRefused):
                return schema
            by = ledger.partitioned_by or self._partition_by
            staged = self._stage_new(ledger, rows, by, schema)
            if isinstance(staged, BatchRefused):
                return staged
            attempt, added, rows_held = staged
            if not added:
                return BatchKnown(writer, batch_id) if rows_held else Committed(ledger.version, 0, 0, 0)
            commit = Commit(
                ledger.version + 1, "append", writer, batch_id, now_ms(), attempt, schema, by, tuple(added),
                content=content,
            )  # fmt: skip
            self._log.commit(ledger, commit)
            size_bytes = sum(file.size_bytes for file in added)
            return Committed(commit.version, commit.rows, len(added), size_bytes, rows_held)

    def _stage_new(
        self, ledger: Ledger, rows: DataFrame, by: Sequence[str], schema: str
    ) -> tuple[str, list[DataFile], int] | BatchRefused:
        """Stage the rows that the table does not hold: the attempt, its files, and how many rows were left out. They
        are staged once if none is held, and written again without those that are."""
        attempt = uuid.uuid4().hex
        added = self._stage(rows, attempt, ledger.version + 1, by, schema)
        spans = merge_spans(span for file in added for span in file.spans)
        held = overlaps(ledger, spans)
        refused = check_rows(spans)
        if refused is not None or not held:
            return refused or (attempt, added, 0)
        batch = self._read_staged(attempt, schema)
        held_totals = totals_of(inside(batch, held))
        files = [file.path for file in files_with(ledger, held)]
        table_totals = totals_of(inside(self._frame(ledger.schema, files), held) if files else None)
        refused = contradiction(held_totals, table_totals, spans)
        if refused is not None:
            return refused
        rows_held = sum(count for count, _ in held_totals.values())
        if rows_held == sum(file.rows for file in added):
            return attempt, [], rows_held
        second = uuid.uuid4().hex
        return second, self._stage(outside(batch, held), second, ledger.version + 1, by, schema), rows_held

    def _read_staged(self, attempt: str, schema: str) -> DataFrame:
        kind = StructType.fromJson(json.decode(schema))
        folder = self._log.staged(attempt)
        return self._reader(kind, folder).parquet(str(folder)).select(*(f"`{field.name}`" for field in kind.fields))

    def committed(self, writer: str) -> int | None:
        return self.ledger().writers.get(writer)

    def positions(self) -> dict[str, dict[int, int]]:
        return self.ledger().positions()

    @property
    def exists(self) -> bool:
        return self._log.exists and self.ledger().version >= 0

    def ledger(self) -> Ledger:
        return self._log.load()

    # ------------------------------------------------------------------------------------------------------------ read

    def read(self) -> DataFrame:
        """The committed rows. A compaction that runs while they are computed makes the query fail; use `read_lock` to
        prevent that."""
        ledger = self.ledger()
        return self._frame(ledger.schema, sorted(ledger.files))

    @contextmanager
    def read_lock(self) -> Iterator[Ledger]:
        """Keep every file in place for the time of a block. Batches can still be added."""
        if not self._log.exists:
            yield Ledger()
            return
        with file_lock(self._log.readers_lock, shared=True, wait_s=self._lock_wait_s):
            yield self.ledger()

    def visible(self) -> tuple[Ledger, DataFrame, set[str]]:
        """The table as a plain Parquet reader sees it, from the files in the folder: ledger, rows and paths. No batch
        is half moved."""
        with self._log.move_lock():
            ledger = self._log.load_locked()
            paths = {
                str(path.relative_to(self.root)) for path in self.root.rglob("*.parquet") if not self._hidden(path)
            }
            return ledger, self._frame(ledger.schema, sorted(paths)), paths

    def file_problems(self, ledger: Ledger, paths: set[str]) -> list[str]:
        """The files that `visible` found wrong: missing, not committed, or of another size."""
        problems = [f"{path} is missing" for path in sorted(ledger.files.keys() - paths)]
        problems += [
            f"{path} was not committed, but readers of the folder read it"
            for path in sorted(paths - ledger.files.keys())
        ]
        for path in sorted(paths & ledger.files.keys()):
            size_bytes = (self.root / path).stat().st_size
            if size_bytes != ledger.files[path].size_bytes:
                problems.append(f"{path} has {size_bytes} bytes and had {ledger.files[path].size_bytes} when committed")
        return problems

    def _hidden(self, path: Path) -> bool:
        return any(part.startswith(("_", ".")) for part in path.relative_to(self.root).parts)

    def _frame(self, schema: str, paths: Sequence[str]) -> DataFrame:
        if not schema:
            raise NoTable(f"{self.path}: there is no table yet; it is created with its first rows")
        kind = StructType.fromJson(json.decode(schema))
        if not paths:
            return self._spark.createDataFrame([], kind)
        rows = self._reader(kind, self.root).parquet(*(str(self.root / path) for path in paths))
        return rows.select(*(f"`{field.name}`" for field in kind.fields))

    def _reader(self, kind: StructType, base: Path) -> DataFrameReader:
        """A file that is missing or broken is an error, whatever the settings of the session are."""
        strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "basePath": str(base)}
        return self._spark.read.schema(kind).options(**strict)

    # --------------------------------------------------------------------------------------------------------- compact

    def compact(self, rule: Compaction) -> Compacted:
        if not self._log.exists:
            return Compacted()
        with self._log.writer_lock(self._lock_wait_s) as ledger:
            old = files_to_compact(ledger, rule)
            if not old:
                return Compacted()
            try:
                with file_lock(self._log.readers_lock):
                    return self._compact(ledger, old)
            except TableBusy:
                return Compacted()  # A reader uses these files; try again later.

    def _compact(self, ledger: Ledger, old: Sequence[DataFile]) -> Compacted:
        by = ledger.partitioned_by
        rows = self._frame(ledger.schema, [file.path for file in old])
        order = [f"`{name}`" for name in (*by, *LOG_COLUMNS[1:]) if name in rows.columns]
        one_each = rows.repartition(*(f"`{name}`" for name in by)) if by else rows.coalesce(1)
        attempt = uuid.uuid4().hex
        sorted_rows = one_each.sortWithinPartitions(*order) if order else one_each
        added = self._stage(sorted_rows, attempt, ledger.version + 1, by, ledger.schema)
        if _content(added) != _content(old):
            raise TableDamaged(f"{self.path}: the rewritten files differ from what was committed; nothing was changed")
        removed = tuple(file.path for file in old)
        commit = Commit(
            ledger.version + 1, "compact", "", 0, now_ms(), attempt, ledger.schema, by, tuple(added), removed
        )  # fmt: skip
        self._log.commit(ledger, commit)
        return Compacted(len(old), len(added), sum(file.size_bytes for file in added))

    # ----------------------------------------------------------------------------------------------------------- stage

    def _stage(
        self, rows: DataFrame, attempt: str, version: int, by: Sequence[str], schema: str
    ) -> list[DataFile]:  # fmt: skip
        """Write the rows to the staging folder, and describe each file by what is read back from it."""
        folder = self._log.staged(attempt)
        # Version 1 moves a task's files when the job succeeds; version 2 would leave those of failed jobs.
        writer = rows.write.option("mapreduce.fileoutputcommitter.algorithm.version", "1")
        (writer.partitionBy(*by) if by else writer).parquet(str(folder))
        paths = sorted(folder.rglob("*.parquet"))
        names: list[str] = []
        for number, path in enumerate(paths):
            target = path.with_name(f"v{version:08d}-{number:04d}-{attempt[:8]}.parquet")
            path.rename(target)
            names.append(str(target.relative_to(folder)))
        described = self._describe(folder, schema) if names else {}
        return [
            DataFile(name, described[name][0], (folder / name).stat().st_size, tuple(described[name][1]))
            for name in names
            if name in described  # A file without rows is not committed.
        ]

    def _describe(self, folder: Path, schema: str) -> dict[str, tuple[int, list[FileSpan]]]:
        kind = StructType.fromJson(json.decode(schema))
        rows = self._reader(kind, folder).parquet(str(folder)).withColumn("_file", F.col("_metadata.file_path"))
        if sum(path.stat().st_size for path in folder.rglob("*.parquet")) < ONE_TASK_BYTES:
            rows = rows.coalesce(1)  # One task and no shuffle: the cost of a small batch is mostly its number of tasks.
        spans: defaultdict[str, list[FileSpan]] = defaultdict(list)
        counts: defaultdict[str, int] = defaultdict(int)
        if set(LOG_COLUMNS) <= set(kind.names):
            for row in totals(rows, [F.col("_file"), F.col("topic"), F.col("partition")]).collect():
                counts[_relative(row, folder)] += row["rows"]
                spans[_relative(row, folder)].append(span_of(row))
        else:
            for row in rows.groupBy("_file").agg(F.count(F.lit(1)).alias("rows")).collect():
                counts[_relative(row, folder)] = row["rows"]
        return {name: (rows, spans[name]) for name, rows in counts.items()}


def _relative(row: Any, folder: Path) -> str:
    return str(Path(unquote(urlsplit(row["_file"]).path)).relative_to(folder))


def _content(files: Sequence[DataFile]) -> tuple[int, list[FileSpan]]:
    return sum(file.rows for file in files), merge_spans(span for file in files for span in file.spans)


def local_folder(path: str) -> Path:
    """The folder of a table's path. Raises ValueError for a URL that is not a local folder."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).absolute()
    if "://" in path:
        raise ValueError(
            f"{path}: a Parquet table is a folder on a file system that all machines of the cluster share; for "
            f"{parts.scheme} use format 'delta', which has its own commit log"
        )
    return Path(path).expanduser().absolute()
