"""The data files of a table, written and read by Spark's tasks with pyarrow: on any storage, without jars.

    rows --Spark--> a task: batches of one or more logs and days
                      |  one Parquet file for each combination of partition values
                      |  rows, spans and checksums, minima and maxima are counted on the way
                      v
                    DataFile as JSON --collected by the driver--> a commit

A file is whole and synced when its task ends. A task that fails, or that Spark runs twice, leaves files that no commit
names. Row groups are small enough to skip by time: the rows of a log are in the order of their timestamps.
"""

from __future__ import annotations

import datetime
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, json

from driftq.spark.object_stores import store_at
from driftq.spark.tables.ledger import DataFile, FileSpan, merge_spans
from driftq.spark.tables.storage import LocalFiles, files_at, sync

HASH = "_driftq_hash"  # the hash of a row, which Spark computes and files do not have
RESULT_SCHEMA = "file BINARY"
ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 32 << 20
COMPRESSION = "zstd"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(32)))
_UTC = datetime.UTC

Batches = Iterable[pa.RecordBatch]


class Target(Struct, frozen=True):
    """Where tasks write files."""

    path: str
    options: Mapping[str, str]
    attempt: str
    partition_by: tuple[str, ...]
    row_group_rows: int = ROW_GROUP_ROWS


def file_writer(target: Target) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: writes the rows of a task, and yields one `DataFile` for each file."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        open_files: dict[tuple[str | None, ...], _OpenFile] = {}
        for batch in batches:
            for values, rows in _by_partition(pa.Table.from_batches([batch]), target.partition_by):
                if values not in open_files:
                    open_files[values] = _OpenFile(target, dict(zip(target.partition_by, values)))
                open_files[values].add(rows)
        encoded = [json.encode(file.close()) for file in open_files.values()]
        if encoded:
            yield pa.record_batch([pa.array(encoded, pa.binary())], names=["file"])

    return write


def _by_partition(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """The rows of each combination of partition values."""
    if not rows.num_rows:
        return
    combinations = rows.group_by(list(by)).aggregate([]).to_pylist() if by else [{}]
    for combination in combinations:
        part = rows
        for name, value in combination.items() if len(combinations) > 1 else ():
            column = part.column(name)
            part = part.filter(pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type)))
        yield tuple(partition_text(combination[name]) for name in by), part


def partition_text(value: Any) -> str | None:
    """A partition value as Delta writes it. An empty text is null there."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or None if value is not None else None


class _OpenFile:
    """A file that a task is writing."""

    def __init__(self, target: Target, values: Mapping[str, str | None]) -> None:
        self._values = dict(values)
        self._target = target
        self._files = files_at(target.path, target.options)
        name_of = escaped if isinstance(self._files, LocalFiles) else plain
        folder = "".join(f"{name_of(name)}={name_of(value or NULL_PARTITION)}/" for name, value in values.items())
        self._path = f"{folder}{target.attempt}-{uuid.uuid4().hex[:12]}.parquet"
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = self._rows = 0
        self._spans: list[FileSpan] = []
        self._metadata: list[Any] = []
        self._writer: pq.ParquetWriter | None = None
        self._spool: Path | None = None

    def add(self, rows: pa.Table) -> None:
        if HASH in rows.column_names:
            self._spans = merge_spans([*self._spans, *spans_of(rows)])
        part = rows.drop_columns([name for name in (*self._values, HASH) if name in rows.column_names])
        self._pending.append(part)
        self._pending_rows += part.num_rows
        self._pending_bytes += part.nbytes
        if self._pending_rows >= self._target.row_group_rows or self._pending_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        rows = pa.concat_tables(self._pending)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._destination(), rows.schema, compression=COMPRESSION, metadata_collector=self._metadata
            )
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._rows += rows.num_rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _destination(self) -> Path:
        """The file itself on a local disk, otherwise a file that is sent when it is whole."""
        if isinstance(self._files, LocalFiles):
            path = self._files.root / self._path
            path.parent.mkdir(parents=True, exist_ok=True)
            return path
        self._spool = Path(tempfile.mkdtemp(prefix="driftq-"), "file.parquet")
        return self._spool

    def close(self) -> DataFile:
        if self._pending:
            self._write_row_group()
        assert self._writer is not None, "a file has rows"
        self._writer.close()
        if self._spool is not None:
            size_bytes = self._spool.stat().st_size
            obstore.put(store_at(self._target.path, self._target.options), self._path, self._spool)
            self._spool.unlink()
            self._spool.parent.rmdir()
        else:
            path = self._destination()
            sync(path)
            size_bytes = path.stat().st_size
        stats = json.encode(stats_of(self._metadata[0], self._rows)).decode()
        return DataFile(
            self._path, self._rows, size_bytes, tuple(self._spans), self._values, stats, self._target.attempt
        )


def escaped(text: str) -> str:
    """A part of a path as Spark and Hive escape it."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def plain(text: str) -> str:
    """A part of a path in an object store. Readers disagree on how often a path is escaped; values are in the log."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)


def spans_of(rows: pa.Table) -> list[FileSpan]:
    """One span for each log in the rows."""
    hashes = rows.column(HASH).to_numpy()
    counted = pa.table(
        {
            "topic": rows.column("topic"),
            "partition": rows.column("partition"),
            "offset": rows.column("offset"),
            "high": hashes >> 32,  # summed separately: a sum of 64-bit numbers would overflow
            "low": hashes & 0xFFFFFFFF,
        }
    )
    aggregates = [("offset", "min"), ("offset", "max"), ("offset", "count"), ("high", "sum"), ("low", "sum")]
    logs = counted.group_by(["topic", "partition"]).aggregate(aggregates).to_pylist()
    return [
        FileSpan(
            log["topic"], log["partition"], log["offset_min"], log["offset_max"], log["offset_count"],
            ((log["high_sum"] << 32) + log["low_sum"]) % (1 << 64),
        )
        for log in logs
    ]  # fmt: skip


# --- statistics -------------------------------------------------------------------------------------------------------


def stats_of(metadata: Any, rows: int) -> dict[str, Any]:
    """Delta's statistics of a file: minima and maxima of its numbers, dates and times, from its Parquet footer."""
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        chunks = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        name, statistics = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if "." in name or any(part is None or not part.has_null_count for part in statistics):
            continue
        known = [part for part in statistics if part.has_min_max]
        nulls[name] = sum(part.null_count for part in statistics)
        if known and _is_ordered(known[0].min) and len(known) + _all_null(chunks) == len(chunks):
            minima[name] = _stat(min(part.min for part in known), up=False)
            maxima[name] = _stat(max(part.max for part in known), up=True)
    return {"numRecords": rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls}


def _all_null(chunks: Sequence[Any]) -> int:
    return sum(chunk.statistics.null_count == chunk.num_values and not chunk.statistics.has_min_max for chunk in chunks)


def _is_ordered(value: Any) -> bool:
    return isinstance(value, int | datetime.date | datetime.datetime) and not isinstance(value, bool)


def _stat(value: Any, *, up: bool) -> Any:
    """As Delta writes it. Times are in milliseconds, rounded so that they enclose the rows."""
    if not isinstance(value, datetime.datetime):
        return value.isoformat() if isinstance(value, datetime.date) else value
    rest_us = value.microsecond % 1_000
    if rest_us:
        value += datetime.timedelta(microseconds=1_000 - rest_us if up else -rest_us)
    return value.astimezone(_UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- reading ----------------------------------------------------------------------------------------------------------


def file_reader(
    path: str, options: Mapping[str, str], schema: pa.Schema
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: from `DataFile`s to the rows of these files, for storage that Spark's Java cannot
    read. Columns that a file does not have are null."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        store = store_at(path, options)
        for batch in batches:
            for encoded in batch.column(0).to_pylist():
                file = json.decode(encoded, type=DataFile)
                source = pa.BufferReader(bytes(obstore.get(store, file.path).bytes()))
                for part in pq.ParquetFile(source).iter_batches(ROW_GROUP_ROWS):
                    yield _conformed(part, file, schema)

    return read


def _conformed(rows: pa.RecordBatch, file: DataFile, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in file.values:
            value = pa.scalar(file.values[field.name], pa.string()).cast(field.type)
            columns.append(pa.repeat(value, rows.num_rows))
        elif field.name in rows.schema.names:
            columns.append(rows.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.record_batch(columns, schema=schema)
