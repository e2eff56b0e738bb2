"""Delta's commits as text: from the actions of a version to a ledger, and from a batch to the actions of a version.

A version is a file of JSON lines, one for each action (github.com/delta-io/delta, PROTOCOL.md). These are used:

    protocol, metaData    in the first version; metaData again when columns are added
    add, remove           a data file becomes part of the table, or is replaced
    txn                   a number under a name, the last one counts; Delta's way to commit something once
    commitInfo            what happened, for people

The numbers that make a batch exact are `txn` actions of the same version as its files:

    driftq/writer/NAME            the last batch id of a writer
    driftq/content/NAME           a hash of what this batch was made from; 0: not known
    driftq/log/TOPIC/PARTITION    the last offset of a log

Each `add` has two tags: the attempt that wrote the file, and the spans of its rows (`ledger.FileSpan`). Checkpoints
keep tags and transactions. Pure: knows no file and no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct, json

from driftq import __version__
from driftq.spark.tables.ledger import DataFile, FileSpan, Ledger, merge_spans

READER_VERSION, WRITER_VERSION = 1, 2
WRITER, CONTENT, LOG = "driftq/writer/", "driftq/content/", "driftq/log/"
ATTEMPT_TAG, SPANS_TAG = "driftq.attempt", "driftq.spans"
CHECKPOINT_EVERY = 64
# Older versions and replaced files are kept for a day.
CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}

Action = dict[str, Any]


class TableDamaged(RuntimeError):
    """The table does not contain what its commits list, or has features that this version does not know."""


class Metadata(Struct, frozen=True):
    """The `metaData` action. It is written again as it was, with another schema."""

    fields: Mapping[str, Any]

    def action(self, schema: str) -> Action:
        return {"metaData": {**self.fields, "schemaString": schema}}


class TableState(Struct, frozen=True):
    """A ledger, and what is needed to write the next version."""

    ledger: Ledger = Ledger()
    metadata: Metadata | None = None


# --- from actions to a ledger -----------------------------------------------------------------------------------------


def fold(state: TableState, version: int, actions: Iterable[Action]) -> TableState:
    """The state after a version, or after a checkpoint up to it. The argument is not changed."""
    before = state.ledger
    metadata = state.metadata
    files, ends = dict(before.files), dict(before.ends)
    writers, contents = dict(before.writers), dict(before.contents)
    removed: set[str] = set()
    added: list[DataFile] = []
    for action in actions:
        for kind, body in action.items():
            if kind == "protocol":
                _refuse_newer(body)
            elif kind == "metaData":
                metadata = Metadata(body)
            elif kind == "txn":
                _fold_number(body["appId"], body["version"], ends, writers, contents)
            elif kind == "remove":
                removed.add(unquote(body["path"]))
            elif kind == "add":
                added.append(_data_file(body))
    for path in removed:
        files.pop(path, None)
    files.update({file.path: file for file in added})
    if metadata is None:
        raise TableDamaged(f"version {version} has no schema, and none is known from before")
    schema, by = metadata.fields["schemaString"], tuple(metadata.fields["partitionColumns"])
    return TableState(Ledger(version, schema, by, files, ends, writers, contents), metadata)


def _fold_number(
    name: str, number: int, ends: dict[tuple[str, int], int], writers: dict[str, int], contents: dict[str, int]
) -> None:
    if name.startswith(LOG):
        topic, _, partition = name.removeprefix(LOG).rpartition("/")
        ends[topic, int(partition)] = number
    elif name.startswith(WRITER):
        writers[name.removeprefix(WRITER)] = number
    elif name.startswith(CONTENT):
        contents[name.removeprefix(CONTENT)] = number


def _refuse_newer(protocol: Mapping[str, Any]) -> None:
    reader, writer = protocol["minReaderVersion"], protocol["minWriterVersion"]
    if reader > READER_VERSION or writer > WRITER_VERSION:
        features = sorted({*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())})
        raise TableDamaged(
            f"the table was upgraded to Delta protocol {reader}/{writer} ({', '.join(features) or 'no features'}); "
            f"DriftQ reads and writes protocol {READER_VERSION}/{WRITER_VERSION}. Write to another table."
        )


def _data_file(add: Mapping[str, Any]) -> DataFile:
    path = unquote(add["path"])
    if "://" in path or path.startswith("/"):
        raise TableDamaged(f"{path} is outside of the table, as in a shallow clone; DriftQ does not write such tables")
    tags = dict(add.get("tags") or ())
    spans = tuple(FileSpan(*fields) for fields in json.decode(tags.get(SPANS_TAG) or "[]"))
    stats = add.get("stats") or ""
    rows = json.decode(stats).get("numRecords", 0) if stats else 0
    values = dict(add["partitionValues"] or ())
    return DataFile(path, rows, add["size"], spans, values, stats, tags.get(ATTEMPT_TAG) or "")


# --- from a batch to actions ------------------------------------------------------------------------------------------


def first_actions(schema: str, partition_by: Sequence[str], table_id: str, now_ms: int) -> Iterator[Action]:
    """What makes a table."""
    yield {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}}
    yield {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": list(partition_by),
            "configuration": CONFIGURATION,
            "createdTime": now_ms,
        }
    }


def writer_actions(writer: str, batch_id: int, content: int) -> Iterator[Action]:
    """The last batch of a writer."""
    yield _number(WRITER + writer, batch_id)
    yield _number(CONTENT + writer, content)


def log_actions(ledger: Ledger, files: Iterable[DataFile]) -> Iterator[Action]:
    """The last offset of each log that these files have rows of."""
    for span in merge_spans(span for file in files for span in file.spans):
        last = max(span.last, ledger.ends.get((span.topic, span.partition), -1))
        yield _number(f"{LOG}{span.topic}/{span.partition}", last)


def _number(name: str, number: int) -> Action:
    return {"txn": {"appId": name, "version": number}}


def add_action(file: DataFile, now_ms: int, *, data_change: bool = True) -> Action:
    spans = [[span.topic, span.partition, span.first, span.last, span.rows, span.checksum] for span in file.spans]
    return {
        "add": {
            "path": quote(file.path, safe="/="),
            "partitionValues": file.values,
            "size": file.size_bytes,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": file.stats,
            "tags": {ATTEMPT_TAG: file.attempt, SPANS_TAG: json.encode(spans).decode()},
        }
    }


def remove_action(file: DataFile, now_ms: int) -> Action:
    """For a file that others replace. Its rows stay in the table."""
    return {
        "remove": {
            "path": quote(file.path, safe="/="),
            "deletionTimestamp": now_ms,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": file.values,
            "size": file.size_bytes,
        }
    }


def info_action(operation: str, now_ms: int, parameters: Mapping[str, str]) -> Action:
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": f"driftq/{__version__}",
        }
    }


def encoded(actions: Iterable[Action]) -> bytes:
    """The file of a version."""
    return b"".join(json.encode(action) + b"\n" for action in actions)


def decoded(data: bytes) -> list[Action]:
    return [json.decode(line) for line in data.splitlines() if line]


def content_number(content: str) -> int:
    """A text that identifies the content of a batch as the number of a transaction; 0 if it is empty: not known."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) >> 1 if content else 0
