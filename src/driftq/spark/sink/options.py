"""What a write was asked for, checked before the first row: the options of the sink and the columns of the rows.

Names of columns are those of the source, so that rows can go back as they came. Pure: text in, values out; it knows no
Arrow, no broker and no Spark, and is quick to import, because every process of a query imports it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from driftq.settings.suggestions import did_you_mean
from driftq.spark.source.options import (
    BadOption,
    BrokerOptions,
    Option,
    connection_of,
    duration_ms,
    flag,
    quantity_bytes,
    suggested_option,
)
from driftq.wire.message import PRIORITY_MAX, Envelope, Head, Job, Routing, encode_head, to_rfc3339

STAGED = "staged"
DIRECT = "direct"
CHUNK_BYTES = 4 << 20
CHUNK_BYTES_MAX = 15 << 20  # the broker takes batches of 16 MiB; keys and heads come on top of what is counted
CHUNK_ROWS = 50_000
CHUNK_ROWS_MAX = 100_000
BUFFER_BYTES = 32 << 20
STAGE_TTL_MS = 6 * 3_600_000
WRITER_BYTES_MAX = 180  # handles are the writer's name and a little more, and have 256

SINK_OPTIONS: tuple[Option, ...] = (
    Option("url", "`DRIFTQ_URL` or `http://127.0.0.1:8080`", "where the broker is"),
    Option("token", "`DRIFTQ_TOKEN` or none", "sent as a bearer token"),
    Option("topic", "the column `topic`", 'where rows go; `save("orders")` says the same. Wins over the column'),
    Option("stream", "", "the path of a stream, instead of a topic"),
    Option("mode", "`staged`", "`staged`: a batch is seen whole, once, whatever the plan; `direct`: rows are seen at "
           "once, and a repeated task must yield the same rows in the same order"),
    Option("writer", "the query's id, or a new name for each batch write", "who writes; a batch number of a writer is "
           "published once"),
    Option("batchId", "0", "the number of a batch write; needs `writer` (in foreachBatch: the batch's id)"),
    Option("chunkBytes", "`4m`", "what is sent at once, for each partition"),
    Option("chunkRows", "`50000`", "the same, in rows"),
    Option("bufferBytes", "`32m`", "what a task holds for all partitions of a topic before it sends"),
    Option("compress", "`false`", "store batches compressed (zstd)"),
    Option("retryMs", "`60s`", "how long a task asks again while the broker does not answer or is full"),
    Option("stageTtl", "`6h`", "how long staged rows wait for the end of their batch"),
    Option("replayCheck", "`rows`", "a batch that was published before must have the same number of rows now; `none` "
           "for plans that yield other rows each time"),
)  # fmt: skip
NAMES = {option.name.lower(): option.name for option in SINK_OPTIONS}
_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})  # Spark hands its own over, too
_MEANT = {"subscribe": "topic", "kafka.bootstrap.servers": "url", "topics": "topic", "queryid": "writer"}

TEXT = ("string", "binary")
_WHOLE = ("int", "bigint", "smallint", "tinyint")
_MAP = ("map<string,string>",)
_TIME = ("timestamp",)
ENVELOPE_COLUMNS: dict[str, tuple[str, ...]] = {
    "run_id": ("string",),
    "step_id": ("string",),
    "parent_step_id": ("string",),
    "tenant_id": ("string",),
    "idempotency_key": ("string",),
    "labels": _MAP,
    "deadline": _TIME,
    "routing_label": ("string",),
    "routing_meta": _MAP,
    "task": ("string",),
    "priority": _WHOLE,
}
COLUMNS: dict[str, tuple[str, ...]] = {
    "value": TEXT,
    "key": TEXT,
    "topic": ("string",),
    "partition": _WHOLE,
    "head": TEXT,
    **ENVELOPE_COLUMNS,
}
PASSED_OVER = ("offset", "timestamp", "queue_state", "attempts", "last_error")  # the broker says those anew
SCHEDULED = ("deadline", "routing_label", "task", "priority")  # what staged messages cannot carry


def table() -> list[tuple[str, str, str]]:
    """The options for docs/reference/spark.md."""
    return [(f"`{option.name}`", option.default, option.meaning) for option in SINK_OPTIONS]


class WriteOptions(NamedTuple):
    """Everything a write was asked for, checked."""

    connection: BrokerOptions
    topic: str = ""
    stream: str = ""
    staged: bool = True
    writer: str = ""
    batch_id: int = 0
    chunk_bytes: int = CHUNK_BYTES
    chunk_rows: int = CHUNK_ROWS
    buffer_bytes: int = BUFFER_BYTES
    compress: bool = False
    stage_ttl_ms: int = STAGE_TTL_MS
    replay_check: bool = True


def write_options(
    options: Mapping[str, str], *, streaming: bool, environment: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Check all options of a write. Raises `BadOption`."""
    given = {name.lower(): str(text) for name, text in options.items()}
    for name in options:
        _refuse_unknown(name)
    if "path" in given and not {"topic", "stream"} & given.keys():
        given["topic"] = given["path"]
    if "topic" in given and "stream" in given:
        raise BadOption("give topic or stream, not both")
    writer, batch_id = _numbered(given, streaming)
    return WriteOptions(
        connection=connection_of(given, environment),
        topic=given.get("topic", ""),
        stream=given.get("stream", "").strip("/"),
        staged=_one_of("mode", given.get("mode", STAGED), (STAGED, DIRECT)) == STAGED,
        writer=writer,
        batch_id=batch_id,
        chunk_bytes=quantity_bytes("chunkBytes", given.get("chunkbytes", "4m"), CHUNK_BYTES_MAX),
        chunk_rows=_natural("chunkRows", given.get("chunkrows", str(CHUNK_ROWS)), 1, CHUNK_ROWS_MAX),
        buffer_bytes=quantity_bytes("bufferBytes", given.get("bufferbytes", "32m"), 1 << 40),
        compress=flag("compress", given.get("compress", "false")),
        stage_ttl_ms=duration_ms("stageTtl", given.get("stagettl", "6h")),
        replay_check=_one_of("replayCheck", given.get("replaycheck", "rows"), ("rows", "none")) == "rows",
    )


def _numbered(given: Mapping[str, str], streaming: bool) -> tuple[str, int]:
    """Who writes, and which batch. A stream's writer is known when it runs, and Spark numbers its batches."""
    writer = given.get("writer", "")
    if len(writer.encode()) > WRITER_BYTES_MAX:
        raise BadOption(f"writer has at most {WRITER_BYTES_MAX} bytes")
    if streaming:
        if "batchid" in given:
            raise BadOption("batchId is for batch writes; a streaming query numbers its batches itself")
        return writer, 0
    if bool(writer) != ("batchid" in given):
        raise BadOption(
            "writer and batchId belong together in a batch write: the pair is written once, however often the job "
            "runs. Leave both out to append each time"
        )
    if not writer:
        return f"batch-{uuid.uuid4().hex}", 0
    return writer, _natural("batchId", given["batchid"], 0, 1 << 62)


def _refuse_unknown(name: str) -> None:
    lower = name.lower()
    if lower in NAMES or lower in _SPARKS:
        return
    raise BadOption(f"the driftq sink has no option {name}; {suggested_option(lower, NAMES, _MEANT)}")


def _one_of(name: str, text: str, words: Sequence[str]) -> str:
    word = text.strip().lower()
    if word not in words:
        raise BadOption(f"{name} is {' or '.join(words)}, not {text!r}")
    return word


def _natural(name: str, text: str, least: int, most: int) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise BadOption(f"{name} is a number from {least} to {most}, not {text!r}")
    return int(text)


def check_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> None:
    """`columns` are names and types as Spark writes them. Raises `BadOption`, naming the column."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        allowed = COLUMNS.get(name)
        if allowed is None:
            if name not in PASSED_OVER:
                _refuse_column(name)
        elif kind not in allowed:
            raise BadOption(f"column {name} is {kind}; it must be {' or '.join(allowed)}")
    if "value" not in names:
        raise BadOption(f"there is no column value (string or binary); the rows have {', '.join(names)}")
    if "head" in names and any(name in ENVELOPE_COLUMNS for name in names):
        raise BadOption("give the column head or the columns of the envelope, not both")
    if options.stream:
        for name in ("key", "head", *ENVELOPE_COLUMNS):
            if name in names:
                raise BadOption(f"a stream has values and nothing else; drop the column {name}")
    elif not options.topic and "topic" not in names:
        raise BadOption("say where rows go: option topic, option stream, or a column topic")


def _refuse_column(name: str) -> None:
    hint = did_you_mean(name, COLUMNS, f"known are {', '.join(COLUMNS)}")
    raise BadOption(f"the driftq sink knows no column {name}; {hint}. Drop it, or put it into value (to_json)")


# --- The columns of the envelope, routing and job as heads: the JSON that rides beside key and value ---


class BadRow(ValueError):
    """A row cannot be written; the message names the column and the row."""


Raise = Callable[[str, int, str], BadRow]  # column, index in the batch, why


def heads_of(batch: pa.RecordBatch, *, staged: bool, refuse: Raise) -> pa.Array | None:
    """One head for each row, or None when no row has one."""
    names = batch.schema.names
    if "head" in names:
        given = batch.column("head").cast(pa.binary()).fill_null(b"")
        return given if any(given.buffers()[1:]) else None
    columns = {name: batch.column(name) for name in ENVELOPE_COLUMNS if name in names}
    columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
    if not columns:
        return None
    if staged:
        for name in SCHEDULED:
            if name in columns:
                _refuse_scheduled(name, columns[name], refuse)
    texts = _encoded({name: _values(column) for name, column in columns.items()}, batch.num_rows, refuse)
    return pa.array(texts, pa.binary()) if any(texts) else None


def _values(column: pa.Array) -> list[Any]:
    """As Python has them; times as RFC 3339."""
    if pa.types.is_timestamp(column.type):
        stamps = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if stamp is None else to_rfc3339(stamp) for stamp in stamps]
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def _refuse_scheduled(name: str, column: pa.Array, refuse: Raise) -> None:
    for index, value in enumerate(column.to_pylist()):
        if value:
            raise refuse(name, index, "staged messages are plain, so it must be null; drop it or use mode=direct")


def _encoded(columns: dict[str, Sequence[Any]], count: int, refuse: Raise) -> list[bytes]:
    nothing: Sequence[Any] = [None] * count
    envelope = [columns.get(name, nothing) for name in _ENVELOPE]
    labels, routing_label, routing_meta = (
        columns.get(name, nothing) for name in ("labels", "routing_label", "routing_meta")
    )
    tasks, priorities = columns.get("task", nothing), columns.get("priority", nothing)
    texts: list[bytes] = []
    for index in range(count):
        said = {name: column[index] for name, column in zip(_ENVELOPE, envelope, strict=True) if column[index]}
        if labels[index]:
            said["labels"] = _words("labels", labels[index], index, refuse)
        meta = _words("routing_meta", routing_meta[index], index, refuse) if routing_meta[index] else None
        routing = Routing(routing_label[index] or "", meta) if routing_label[index] or meta else None
        priority = priorities[index] or 0
        if not 0 <= priority <= PRIORITY_MAX:
            raise refuse("priority", index, f"it is {priority}; 0 to {PRIORITY_MAX} are allowed")
        job = Job(task=tasks[index] or "", priority=priority) if tasks[index] or priority else None
        texts.append(encode_head(Head(Envelope(**said) if said else None, routing, job)))
    return texts


_ENVELOPE = ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "deadline")


def _words(name: str, pairs: dict[str, Any], index: int, refuse: Raise) -> dict[str, str]:
    if None in pairs.values():
        raise refuse(name, index, "a value in the map is null")
    return pairs
