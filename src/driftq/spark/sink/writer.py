"""The sink as Spark sees it: tasks write, the driver commits or aborts. Exactly once, in one of two ways.

*Staged*: an attempt of a task stages its chunks; the driver publishes the chunks of the attempts that count, once for
each batch of a writer, in the order of tasks and chunks. *Direct*: an attempt appends numbered chunks, and a repeat of
a number changes nothing. Planner, tasks and committer are processes of their own that share only what is pickled: the
commit message tells the driver who wrote what. Imports neither Arrow nor numpy before there are rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from driftq.client.calls import admin
from driftq.client.errors import Conflict, NotFound, OutOfStep, SequenceMismatch, StaleEpoch
from driftq.spark.session import freeze_gc
from driftq.spark.sink.options import WriteOptions, check_columns, write_options
from driftq.spark.sink.target import ChunkUpload, DirectTarget, StagedTarget, forget_quietly, publish
from driftq.spark.source.fetch import transport_of
from driftq.spark.source.options import BadOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.admin import PublishedInfo


class SinkRefused(RuntimeError):
    """The batch cannot be written exactly once; the message says why, and what to do."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one attempt of a task wrote. `rows` are counted for each topic; a stream counts under ""."""

    writer: str
    batch_id: int
    task: int
    handles: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DriftqBatchWriter:
    """For `df.write.format("driftq")`."""
    if overwrite:
        raise BadOption('a log is only ever appended to; write with .mode("append")')
    return DriftqBatchWriter(_checked(options, schema, streaming=False))


def stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DriftqStreamWriter:
    """For `df.writeStream.format("driftq")`."""
    if overwrite:
        raise BadOption('a log is only ever appended to; write with .outputMode("append") or "update"')
    return DriftqStreamWriter(_checked(options, schema, streaming=True))


def _checked(options: dict[str, str], schema: StructType, *, streaming: bool) -> WriteOptions:
    checked = write_options(options, streaming=streaming)
    check_columns([(each.name, each.dataType.simpleString()) for each in schema.fields], checked)
    return checked


class DriftqBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame: one batch of its writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._options, self._options.writer, self._options.batch_id, _task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish_batch(self._options, self._options.batch_id, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        forget_batch(self._options, _written(messages))


class DriftqStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query: Spark numbers the batches, the query's id is the writer's name."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if not query_id or batch_id is None:
            raise SinkRefused("Spark does not tell the id of the query and the batch; this version is not known")
        return write_rows(
            self._options, self._options.writer or query_id, int(batch_id), context.partitionId(), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish_batch(self._options, batchId, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        forget_batch(self._options, _written(messages))


def _context() -> Any:
    from pyspark import TaskContext  # noqa: PLC0415  # the driver's processes have no task

    return TaskContext.get()


def _task() -> int:
    return int(_context().partitionId())


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """In order of tasks; those that failed have no message."""
    return sorted((each for each in messages if isinstance(each, Written)), key=lambda each: each.task)


# --- on an executor ---------------------------------------------------------------------------------------------------


def write_rows(
    options: WriteOptions, writer: str, batch_id: int, task: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write the rows of one attempt of a task. When it fails, what it staged is forgotten."""
    from driftq.spark.sink.chunker import Chunker  # noqa: PLC0415  # Arrow, for those who have rows

    freeze_gc()
    transport = transport_of(options.connection)
    packer = Chunker(options, lambda topic: partitions_of(transport, topic), task)
    target: StagedTarget | DirectTarget | None = None
    sending: ChunkUpload | None = None
    rows: dict[str, int] = {}
    try:
        for chunk in _chunks(packer, batches):
            if target is None or sending is None:
                target = _target(transport, options, writer, batch_id, task)
                sending = ChunkUpload(target.threads)
            sending.put(target.admit(chunk))
            rows[chunk.topic] = rows.get(chunk.topic, 0) + chunk.rows
        if sending is not None:
            sending.drain()
    except OutOfStep as error:
        raise SinkRefused(_out_of_step(error, writer, batch_id)) from None
    except BaseException:
        if sending is not None and target is not None:
            sending.close()
            forget_quietly(transport, writer, target.handles)
        raise
    finally:
        if sending is not None:
            sending.close()
    return Written(writer, batch_id, task, tuple(target.handles) if target is not None else (), rows)


def _chunks(packer: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from packer.add(batch)
    yield from packer.finish()


def _target(
    transport: Transport, options: WriteOptions, writer: str, batch_id: int, task: int
) -> StagedTarget | DirectTarget:
    if options.staged:
        return StagedTarget(transport, options, writer, batch_id, task, uuid.uuid4().hex[:12])
    return DirectTarget(transport, options, writer, batch_id, task)


def partitions_of(transport: Transport, topic: str) -> int:
    try:
        return len(transport.execute(admin.offsets(topic)).partitions)
    except NotFound:
        raise SinkRefused(f"there is no topic {topic}; create it first: driftq topics create {topic}") from None


def _out_of_step(error: OutOfStep, writer: str, batch_id: int) -> str:
    if isinstance(error, StaleEpoch):
        return (
            f"writer {writer} has written batch {error.epoch} and is asked to write {batch_id} again: the checkpoint "
            "is lost, or an older copy. Restore the newest checkpoint, or begin with a new one under a new writer name "
            "after making sure what is in the topic"
        )
    if isinstance(error, SequenceMismatch):
        return (
            f"batch {batch_id} of writer {writer} was written before with other rows, or in another order: mode=direct "
            "needs a plan that yields the same rows in the same order each time it runs. Sort the rows of each task by "
            "a key that is stable, or use mode=staged"
        )
    return (
        f"batch {batch_id} of writer {writer}: {error}. Rows were there before that are not there now: use mode=staged"
    )


# --- on the driver ----------------------------------------------------------------------------------------------------


def publish_batch(options: WriteOptions, batch_id: int, written: Sequence[Written]) -> None:
    """Make the batch seen. A batch that is seen already stays as it is, whatever was staged for it again."""
    handles = [handle for each in written for handle in each.handles]
    if not handles:
        return  # nothing was staged: an empty batch, or direct mode
    writer = written[0].writer
    transport = transport_of(options.connection)
    try:
        published = transport.execute(publish(writer, batch_id, handles))
    except NotFound as error:
        raise SinkRefused(
            f"batch {batch_id} of writer {writer}: {error.message}. Rows were staged for longer than stageTtl "
            f"({options.stage_ttl_ms} ms); run it again, with a longer stageTtl"
        ) from None
    except Conflict as error:
        forget_quietly(transport, writer, handles)
        raise SinkRefused(_regression(error, writer, batch_id)) from None
    if published.duplicate:
        forget_quietly(transport, writer, handles)
        if options.replay_check:
            _compare(published, written, writer, batch_id)


def _regression(error: Conflict, writer: str, batch_id: int) -> str:
    if "batch_number" not in error.details:
        return f"batch {batch_id} of writer {writer}: {error.message}"
    return (
        f"writer {writer} has published batch {error.details['batch_number']} and is asked to publish {batch_id}: the "
        "checkpoint is lost, or an older copy, or two queries share this writer name. Nothing was written. Restore the "
        "newest checkpoint, or begin with a new one under a new writer name after making sure what is in the topic"
    )


def _compare(published: PublishedInfo, written: Sequence[Written], writer: str, batch_id: int) -> None:
    """A batch that comes again has as many rows as the first time, unless it is another batch under the same number."""
    before: dict[str, int] = {}
    for part in published.parts:
        before[part.topic] = before.get(part.topic, 0) + part.count
    now: dict[str, int] = {}
    for each in written:
        for topic, rows in each.rows.items():
            now[topic] = now.get(topic, 0) + rows
    if now != before:
        raise SinkRefused(
            f"batch {batch_id} of writer {writer} was published before with {sum(before.values())} rows and has "
            f"{sum(now.values())} now. Either it is another batch under an old number (the checkpoint is an older "
            "copy, or the writer name was used before): its rows are not written. Or the plan yields other rows each "
            "time: then replayCheck=none keeps those of the first time"
        )


def forget_batch(options: WriteOptions, written: Sequence[Written]) -> None:
    for each in written:
        forget_quietly(transport_of(options.connection), each.writer, each.handles)
