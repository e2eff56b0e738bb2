"""A table in Delta Lake's format: Spark's tasks write Parquet files, and the driver commits them, each row once.

    rows --tasks--> files, with counts, offsets and checksums        data_files
                        |
    check_batch, merge_schemas, check_rows, overlaps                 ledger, schema, overlap
                        |
    create _delta_log/VERSION.json, if no other writer has           delta_log
                        |  it exists: look at the new state, and compare again
                        v
                    committed

No lock is held: writers race for the next version, and the one that loses compares its batch with what the other has
committed. The files of a batch that turns out to be known are never named by a version.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from driftq.spark.tables.actions import (
    Action,
    TableDamaged,
    TableState,
    add_action,
    content_number,
    first_actions,
    info_action,
    log_actions,
    remove_action,
    writer_actions,
)
from driftq.spark.tables.checksum import LOG_COLUMNS, row_hash
from driftq.spark.tables.data_files import HASH, RESULT_SCHEMA, ROW_GROUP_ROWS, Target, file_reader, file_writer
from driftq.spark.tables.delta_log import DeltaLog
from driftq.spark.tables.ledger import (
    BatchKnown,
    BatchRefused,
    Compaction,
    DataFile,
    FileSpan,
    Ledger,
    Overlap,
    check_batch,
    check_rows,
    files_to_compact,
    files_with,
    merge_spans,
    overlaps,
)
from driftq.spark.tables.overlap import contradiction, inside, outside, totals_of
from driftq.spark.tables.schema import check_partitions, merge_schemas
from driftq.spark.tables.storage import LocalFiles, files_at
from driftq.spark.tables.table import Committed, Compacted, NoTable, Outcome, TableBusy, TableRefused

COMMIT_ATTEMPTS_MAX = 100
VACUUM_EVERY_S = 3_600.0
SORTED_BY = ("timestamp", *LOG_COLUMNS[1:])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class DeltaTable:
    """A table at a path or URL. `partition_by` is used when the table is created, and ignored after that. Keep the
    object: it remembers the log, and the next call only reads what is new."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        *,
        log: DeltaLog | None = None,
        row_group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        self._files = files_at(path, storage_options)
        self.path = self._files.uri
        self._spark = spark
        self._partition_by = tuple(partition_by)
        self._log = log or DeltaLog(self._files)
        self._row_group_rows = row_group_rows
        self._vacuumed_s = float("-inf")

    # ---------------------------------------------------------------------------------------------------------- append

    def commit(self, writer: str, batch_id: int, rows: DataFrame, content: str = "") -> Outcome:
        state = self._log.load()
        number = content_number(content)
        is_log = set(LOG_COLUMNS) <= set(rows.columns)
        staged: list[DataFile] | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            ledger = state.ledger
            known = None if is_log else check_batch(ledger, writer, batch_id, number)
            if known is not None:
                return known
            schema = merge_schemas(ledger.schema, rows.schema.json())
            if isinstance(schema, BatchRefused):
                return schema
            refused = check_partitions(schema, self._partition_by) if ledger.version < 0 else None
            if refused is not None:
                return refused
            if staged is None:
                staged = self._write(rows, self._columns(ledger))
            new = self._without_held(ledger, staged, schema)
            if isinstance(new, BatchRefused):
                return new
            added, rows_held = new
            if not added:
                return BatchKnown(writer, batch_id) if rows_held else Committed(ledger.version, 0, 0, 0)
            batch = writer_actions(writer, batch_id, number)
            if self._log.commit(state, self._append_actions(state, schema, batch, added)):
                size_bytes = sum(file.size_bytes for file in added)
                return Committed(
                    ledger.version + 1, sum(file.rows for file in added), len(added), size_bytes, rows_held
                )
            state = self._log.load()  # Another writer was first.
        raise TableBusy(f"{self.path}: other writers made {COMMIT_ATTEMPTS_MAX} versions while this one was committed")

    def create_from(
        self, rows: DataFrame, spans: Sequence[FileSpan], writers: Mapping[str, int], contents: Mapping[str, str]
    ) -> None:
        """Make the table from rows that another one holds, with the last batch of each writer, in one commit. Raises
        `TableDamaged` if the rows are not those of `spans`."""
        state = self._log.load()
        schema = merge_schemas(state.ledger.schema, rows.schema.json())
        refused = schema if isinstance(schema, BatchRefused) else check_partitions(schema, self._partition_by)
        if refused is not None:
            raise TableRefused(self.path, refused)
        assert isinstance(schema, str)
        added = self._write(self._sorted(rows, self._partition_by), self._partition_by)
        if merge_spans(span for file in added for span in file.spans) != list(spans):
            raise TableDamaged(f"{self.path}: its rows differ from what was committed; nothing was changed")
        batches = itertools.chain.from_iterable(
            writer_actions(writer, batch_id, content_number(contents.get(writer, "")))
            for writer, batch_id in writers.items()
        )
        actions = self._append_actions(state, schema, batches, added)
        if state.metadata is not None or not self._log.commit(state, actions):
            raise TableBusy(f"{self.path}: another process made the table first")

    def _append_actions(
        self, state: TableState, schema: str, batches: Iterable[Action], added: Sequence[DataFile]
    ) -> Iterator[Action]:
        at_ms = now_ms()
        by = self._columns(state.ledger)
        yield info_action("WRITE", at_ms, {"mode": "Append", "partitionBy": json.encode(by).decode()})
        if state.metadata is None:
            yield from first_actions(schema, self._partition_by, str(uuid.uuid4()), at_ms)
        elif schema != state.ledger.schema:
            yield state.metadata.action(schema)
        yield from batches
        yield from log_actions(state.ledger, added)
        for file in added:
            yield add_action(file, at_ms)

    def _columns(self, ledger: Ledger) -> tuple[str, ...]:
        """The columns that the table is, or will be, partitioned by."""
        return ledger.partitioned_by if ledger.version >= 0 else self._partition_by

    def _without_held(
        self, ledger: Ledger, staged: list[DataFile], schema: str
    ) -> tuple[list[DataFile], int] | BatchRefused:
        """The files to commit, and how many rows were left out. Rows that the table holds must be the same; the others
        are written again without them."""
        spans = merge_spans(span for file in staged for span in file.spans)
        held = overlaps(ledger, spans)
        refused = check_rows(spans) or (self._contradiction(ledger, staged, schema, held, spans) if held else None)
        if refused is not None or not held:
            return refused or (staged, 0)
        batch = self._frame(schema, staged)
        added = self._write(outside(batch, held), ledger.partitioned_by)
        return added, sum(file.rows for file in staged) - sum(file.rows for file in added)

    def _contradiction(
        self,
        ledger: Ledger,
        staged: Sequence[DataFile],
        schema: str,
        held: Sequence[Overlap],
        spans: Sequence[FileSpan],
    ) -> BatchRefused | None:
        batch_totals = totals_of(inside(self._frame(schema, staged), held))
        files = files_with(ledger, held)
        table_totals = totals_of(inside(self._frame(ledger.schema, files), held) if files else None)
        return contradiction(batch_totals, table_totals, spans)

    def _write(self, rows: DataFrame, by: Sequence[str]) -> list[DataFile]:
        """Write the rows to files of the table, which no version names yet."""
        if set(LOG_COLUMNS) <= set(rows.columns):
            rows = rows.withColumn(HASH, row_hash(rows.columns))
        target = Target(self.path, self._files.options, uuid.uuid4().hex, tuple(by), self._row_group_rows)
        written = rows.mapInArrow(file_writer(target), RESULT_SCHEMA).collect()
        files = [json.decode(bytes(row["file"]), type=DataFile) for row in written]
        self._files.sync_folders(file.path for file in files)
        return files

    # ------------------------------------------------------------------------------------------------------------ state

    @property
    def exists(self) -> bool:
        return self.ledger().version >= 0

    def ledger(self) -> Ledger:
        return self._log.load().ledger

    def committed(self, writer: str) -> int | None:
        return self.ledger().writers.get(writer)

    def positions(self) -> dict[str, dict[int, int]]:
        return self.ledger().positions()

    def visible(self, ledger: Ledger) -> tuple[DataFrame, list[str]]:
        """The rows of a version as far as its files are there, and what is wrong with them: files that are missing or
        have another size, and differences between our reading of the log and delta-rs's. Files in the folder that no
        version names are not part of the table."""
        problems = []
        sizes = self._files.sizes()
        for path, file in sorted(ledger.files.items()):
            size_bytes = sizes.get(path)
            if size_bytes is None:
                problems.append(f"{path} is missing")
            elif size_bytes != file.size_bytes:
                problems.append(f"{path} has {size_bytes} bytes and had {file.size_bytes} when committed")
        if self._log.paths_by_another_reader(ledger.version) != set(ledger.files):
            problems.append(f"delta-rs reads other files in version {ledger.version} of the log")
        return self._frame(ledger.schema, [file for path, file in ledger.files.items() if path in sizes]), problems

    # ------------------------------------------------------------------------------------------------------------ read

    def read(self) -> DataFrame:
        """The rows of the newest version. Files that a compaction replaces stay for a day."""
        ledger = self.ledger()
        if ledger.version < 0:
            raise NoTable(f"{self.path}: there is no table yet; it is created with its first rows")
        return self._frame(ledger.schema, list(ledger.files.values()))

    def _frame(self, schema: str, files: Sequence[DataFile]) -> DataFrame:
        kind = StructType.fromJson(json.decode(schema))
        if not files:
            return self._spark.createDataFrame([], kind)
        if isinstance(self._files, LocalFiles):
            # A file that is missing or broken is an error, whatever the settings of the session are.
            strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "basePath": self.path}
            reader = self._spark.read.schema(kind).options(**strict)
            paths = sorted(str(self._files.root / file.path) for file in files)
            return reader.parquet(*paths).select(*(f"`{field.name}`" for field in kind.fields))
        names = self._spark.createDataFrame([(json.encode(file),) for file in files], RESULT_SCHEMA)
        read = file_reader(self.path, self._files.options, to_arrow_schema(kind, timezone="UTC"))
        return names.mapInArrow(read, kind)

    # ------------------------------------------------------------------------------------------------------ maintenance

    def compact(self, rule: Compaction) -> Compacted:
        state = self._log.load()
        old = files_to_compact(state.ledger, rule)
        if not old:
            return Compacted()
        added = self._rewrite(state.ledger, old)
        while not self._log.commit(state, _compact_actions(old, added)):
            state = self._log.load()
            if not {file.path for file in old} <= state.ledger.files.keys():
                return Compacted()  # Another writer has compacted them.
        if time.monotonic() - self._vacuumed_s > VACUUM_EVERY_S:
            self.vacuum()
        return Compacted(len(old), len(added), sum(file.size_bytes for file in added))

    def _rewrite(self, ledger: Ledger, old: Sequence[DataFile]) -> list[DataFile]:
        """The same rows in one file for each combination of partition values, sorted by time."""
        by = ledger.partitioned_by
        added = self._write(self._sorted(self._frame(ledger.schema, old), by), by)
        if _content(added) != _content(old):
            raise TableDamaged(f"{self.path}: the rewritten files differ from what was committed; nothing was changed")
        return added

    def _sorted(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        """Each combination of partition values in one task, by time."""
        order = [F.col(f"`{name}`") for name in (*by, *SORTED_BY) if name in rows.columns]
        one_each = rows.repartition(*(F.col(f"`{name}`") for name in by)) if by else rows.coalesce(1)
        return one_each.sortWithinPartitions(*order) if order else one_each

    def vacuum(self) -> int:
        """Delete files that no version of the last day names. Returns how many."""
        self._vacuumed_s = time.monotonic()
        if not self.exists:
            return 0
        unused = self._log.unused_files()
        self._files.delete(unused)
        return len(unused)


def _compact_actions(old: Sequence[DataFile], added: Sequence[DataFile]) -> Iterator[Action]:
    at_ms = now_ms()
    yield info_action("OPTIMIZE", at_ms, {})
    for file in old:
        yield remove_action(file, at_ms)
    for file in added:
        yield add_action(file, at_ms, data_change=False)


def _content(files: Sequence[DataFile]) -> tuple[int, list[FileSpan]]:
    return sum(file.rows for file in files), merge_spans(span for file in files for span in file.spans)
