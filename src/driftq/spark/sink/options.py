"""The options of the sink and the columns that it accepts, checked before the first row is written.

Columns have the names of the source, so that rows that were read can be written back. Pure: text in, values out. Knows
no Arrow, no broker and no Spark; it is quick to import, because every process of a query imports it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from driftq.settings.suggestions import did_you_mean
from driftq.spark.source.options import (
    TLS_OPTIONS,
    TOKEN_OPTIONS,
    BadOption,
    BrokerOptions,
    Option,
    connection_of,
    duration_ms,
    flag,
    quantity_bytes,
    suggested_option,
)

STAGED = "staged"
DIRECT = "direct"
BY_CONTENT, BY_ROWS, UNCHECKED = "content", "rows", "none"
CHUNK_BYTES = 4 << 20
CHUNK_BYTES_MAX = 15 << 20  # the broker accepts batches of 16 MiB; headers are not counted here
CHUNK_ROWS = 50_000
CHUNK_ROWS_MAX = 100_000
BUFFER_BYTES = 32 << 20
STAGE_TTL_MS = 6 * 3_600_000
WRITER_BYTES_MAX = 180  # a handle is the writer's name and some numbers, and has at most 256

SINK_OPTIONS: tuple[Option, ...] = (
    Option("url", "`DRIFTQ_URL` or `http://127.0.0.1:8080`", "the URL of the broker"),
    *TOKEN_OPTIONS,
    *TLS_OPTIONS,
    Option("topic", "the column `topic`", 'the target topic; `save("orders")` does the same. Wins over the column'),
    Option("stream", "", "the path of a stream, instead of a topic"),
    Option("mode", "`staged`", "`staged`: a batch becomes visible whole, once, with any plan; `direct`: rows are "
           "visible immediately, and a repeated task must yield the same rows in the same order"),
    Option("writer", "the query's id, or a new name for each batch write", "the name of the writer; each "
           "batch number of a writer is published once"),
    Option("batchId", "0", "the number of a batch write; needs `writer` (in foreachBatch: the batch's id)"),
    Option("chunkBytes", "`4m`", "the size of a chunk, for each partition"),
    Option("chunkRows", "`50000`", "the number of rows in a chunk"),
    Option("bufferBytes", "`32m`", "how much a task buffers for all partitions of a topic"),
    Option("compress", "`false`", "store batches compressed (zstd)"),
    Option("retryMs", "`60s`", "how long a task retries while the broker does not answer or is full"),
    Option("stageTtl", "`6h`", "how long staged rows wait to be published"),
    Option("replayCheck", "`content`", "what a batch that was already written must have in common with the first "
           "time: `content`: the offsets that it reads and the number of rows, or the rows if the checkpoint cannot be "
           "read; `rows`: the number of rows (`staged`); `none`: nothing, for plans that yield other rows each time"),
)  # fmt: skip
NAMES = {option.name.lower(): option.name for option in SINK_OPTIONS}
_SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname"})  # Spark passes its own, too
_ALIASES = {"subscribe": "topic", "kafka.bootstrap.servers": "url", "topics": "topic", "queryid": "writer"}

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
IGNORED_COLUMNS = ("offset", "timestamp", "queue_state", "attempts", "last_error")  # the broker sets these
SCHEDULE_COLUMNS = ("deadline", "routing_label", "task", "priority")  # not possible for staged messages


def table() -> list[tuple[str, str, str]]:
    """The rows of the table in docs/reference/spark.md."""
    return [(f"`{option.name}`", option.default, option.meaning) for option in SINK_OPTIONS]


class WriteOptions(NamedTuple):
    """The checked options of a write."""

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
    replay_check: str = BY_CONTENT
    checkpoint: str = ""  # of a streaming query; empty if Spark's own setting names it
    writes_once: bool = False  # the writer's name is new, so its batch cannot be a repeat


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
    writer, batch_id = _batch_identity(given, streaming)
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
        replay_check=_one_of("replayCheck", given.get("replaycheck", BY_CONTENT), (BY_CONTENT, BY_ROWS, UNCHECKED)),
        checkpoint=given.get("checkpointlocation", "") if streaming else "",
        writes_once=not streaming and not given.get("writer"),
    )


def _batch_identity(given: Mapping[str, str], streaming: bool) -> tuple[str, int]:
    """The writer and the batch number. A streaming query gets both from Spark, unless the writer is named."""
    writer = given.get("writer", "")
    if len(writer.encode()) > WRITER_BYTES_MAX:
        raise BadOption(f"writer has at most {WRITER_BYTES_MAX} bytes")
    if streaming:
        if "batchid" in given:
            raise BadOption("batchId is for batch writes; a streaming query numbers its batches itself")
        return writer, 0
    if bool(writer) != ("batchid" in given):
        raise BadOption(
            "writer and batchId belong together in a batch write: that batch is written once, however often the job "
            "runs. Leave both out to append each time"
        )
    if not writer:
        return f"batch-{uuid.uuid4().hex}", 0
    return writer, _natural("batchId", given["batchid"], 0, 1 << 62)


def _refuse_unknown(name: str) -> None:
    lower = name.lower()
    if lower in NAMES or lower in _SPARK_OPTIONS:
        return
    raise BadOption(f"the driftq sink has no option {name}; {suggested_option(lower, NAMES, _ALIASES)}")


def _one_of(name: str, text: str, choices: Sequence[str]) -> str:
    choice = text.strip().lower()
    if choice not in choices:
        raise BadOption(f"{name} is {' or '.join(choices)}, not {text!r}")
    return choice


def _natural(name: str, text: str, minimum: int, maximum: int) -> int:
    if not text.strip().isdecimal() or not minimum <= int(text) <= maximum:
        raise BadOption(f"{name} is a number from {minimum} to {maximum}, not {text!r}")
    return int(text)


def check_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> None:
    """Check the names and types (as Spark writes them) of the rows' columns. Raises `BadOption`."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        allowed = COLUMNS.get(name)
        if allowed is None:
            if name not in IGNORED_COLUMNS:
                _refuse_column(name)
        elif kind not in allowed:
            raise BadOption(f"column {name} is {kind}; it must be {' or '.join(allowed)}")
    if "value" not in names:
        raise BadOption(f"there is no column value (string or binary); the rows have {', '.join(names)}")
    if "head" in names and any(name in ENVELOPE_COLUMNS for name in names):
        raise BadOption("use either the column head or the columns of the envelope")
    if options.stream:
        for name in ("key", "head", *ENVELOPE_COLUMNS):
            if name in names:
                raise BadOption(f"a stream has only values; drop the column {name}")
    elif not options.topic and "topic" not in names:
        raise BadOption("there is no target: set the option topic or stream, or add a column topic")


def _refuse_column(name: str) -> None:
    hint = did_you_mean(name, COLUMNS, f"the columns are {', '.join(COLUMNS)}")
    raise BadOption(f"the driftq sink has no column {name}; {hint}. Drop it, or make it part of value (to_json)")
