"""The sink as Spark sees it: tasks write, the driver commits or aborts. Exactly once, in one of two modes.

Theory of operation, mode `staged` (the default):

    executor, one for each attempt of a task              broker                         driver

    1. chunker: rows -> chunks
    2. POST /v1/stages  chunk under a new handle  ---->   staged: durable, invisible
    3. TaskCommit(handles, row counts)  --------------------------------------------->  Spark picks one attempt
                                                                                        for each task
    4.                                                    published: all handles   <--  POST /v1/stages/publish
                                                          visible, in one frame         (writer, batch id, handles,
                                                                                         content)
    5.                                                                                  Spark commits the checkpoint

What survives a crash at each step, and what happens then:

- before 2 is done: some chunks are staged. The attempt forgets them if it can; otherwise they expire (`stageTtl`), or
  are dropped when the writer publishes its next batch. A new attempt has new handles, so attempts never mix.
- between 2 and 4: everything is staged and nothing is visible. Spark runs the batch again, with the same number.
- in 4, before the frame is durable: as above. The call is retried until it is answered.
- in 4, after the frame is durable but before the reply: the batch is visible. The retry, or the batch when it is run
  again, gets `duplicate`: what was staged again is forgotten, and the row counts are compared (`replayCheck`).
- between 4 and 5: as above. Spark runs the batch again and the publication is a duplicate.

A batch number that is lower than the last published one of the writer is refused: the checkpoint is lost or old. So is
the last number with other *content*: after a power failure, or with an older checkpoint, Spark plans that batch again,
with other rows. Content is identified by the offsets that the batch ends at, which the driver reads from the
checkpoint; where it cannot, by a digest of the rows that does not depend on their order.

Mode `direct`: each attempt appends its chunks as a producer (`writer/task`, epoch = batch id, seq = number of the
chunk), and step 4 only records the content. Chunks are visible immediately, and the broker ignores a chunk whose number
it has. This is exact only if an attempt that is run again makes the same chunks. If it does not, the query fails, in a
task or in step 4, but rows may be in the topic twice by then.

Planner, tasks and committer run in different processes and share only what is pickled: the options and the
`TaskCommit`. Arrow and numpy are not imported before there are rows.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from driftq.client.calls import admin
from driftq.client.errors import Conflict, NotFound, OutOfStep, SequenceMismatch, StaleEpoch
from driftq.spark.checkpoint import Checkpoint
from driftq.spark.session import freeze_gc
from driftq.spark.sink.options import BY_CONTENT, UNCHECKED, WriteOptions, check_columns, write_options
from driftq.spark.sink.target import ChunkUpload, DirectTarget, StagedTarget, publish, try_forget
from driftq.spark.source.fetch import transport_of
from driftq.spark.source.options import BadOption
from driftq.wire.errors import Code

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.stages import PublishedInfo


class SinkRefused(RuntimeError):
    """The batch cannot be written exactly once; the message says why and what to do."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """What one attempt of a task wrote, as its message to the driver. `rows` are counted by topic ("" for a stream);
    `digest` is the sum of the digests of its chunks."""

    writer: str
    batch_id: int
    task: int
    handles: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    digest: int = 0


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DriftqBatchWriter:
    """For `df.write.format("driftq")`."""
    if overwrite:
        raise BadOption('a log can only be appended to; write with .mode("append")')
    return DriftqBatchWriter(_checked_options(options, schema, streaming=False))


def stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DriftqStreamWriter:
    """For `df.writeStream.format("driftq")`."""
    if overwrite:
        raise BadOption('a log can only be appended to; write with .outputMode("append") or "update"')
    return DriftqStreamWriter(_checked_options(options, schema, streaming=True))


def _checked_options(options: dict[str, str], schema: StructType, *, streaming: bool) -> WriteOptions:
    parsed = write_options(options, streaming=streaming)
    check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], parsed)
    return parsed


class DriftqBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame: one batch of its writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return write_rows(self._options, self._options.writer, self._options.batch_id, _task_number(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish_batch(self._options, self._options.batch_id, _task_commits(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        forget_batch(self._options, _task_commits(messages))


class DriftqStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query: Spark numbers the batches, and the query's id is the name of the writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        context = _task_context()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if not query_id or batch_id is None:
            raise SinkRefused(
                "this version of Spark does not report the ids of the query and the batch; it is not supported"
            )
        return write_rows(
            self._options, self._options.writer or query_id, int(batch_id), context.partitionId(), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish_batch(self._options, batchId, _task_commits(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        forget_batch(self._options, _task_commits(messages))


def _task_context() -> Any:
    from pyspark import TaskContext  # noqa: PLC0415  # not needed on the driver

    return TaskContext.get()


def _task_number() -> int:
    return int(_task_context().partitionId())


def _task_commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    """In the order of tasks; a failed task has no message."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    return sorted(commits, key=lambda commit: commit.task)


# --- on an executor ---------------------------------------------------------------------------------------------------


def write_rows(
    options: WriteOptions, writer: str, batch_id: int, task: int, batches: Iterator[pa.RecordBatch]
) -> TaskCommit:
    """Write the rows of one attempt of a task. If it fails, what it staged is forgotten."""
    from driftq.spark.sink.chunker import Chunker  # noqa: PLC0415  # imports Arrow

    freeze_gc()
    transport = transport_of(options.connection)
    chunker = Chunker(options, lambda topic: partitions_of(transport, topic), task)
    target: StagedTarget | DirectTarget | None = None
    upload: ChunkUpload | None = None
    rows: dict[str, int] = {}
    digest = 0
    try:
        for chunk in _chunks(chunker, batches):
            if target is None or upload is None:
                target = _target(transport, options, writer, batch_id, task)
                upload = ChunkUpload()
            upload.submit(target.lane(chunk), target.admit(chunk))
            rows[chunk.topic] = rows.get(chunk.topic, 0) + chunk.rows
            if _compares_content(options):
                digest += chunk.digest()
        if upload is not None:
            upload.drain()
    except OutOfStep as error:
        raise SinkRefused(_sequence_error(error, writer, batch_id)) from None
    except BaseException:
        if upload is not None and target is not None:
            upload.close()
            try_forget(transport, writer, target.handles)
        raise
    finally:
        if upload is not None:
            upload.close()
    return TaskCommit(writer, batch_id, task, tuple(target.handles) if target is not None else (), rows, digest)


def _chunks(chunker: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from chunker.add(batch)
    yield from chunker.finish()


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


def _sequence_error(error: OutOfStep, writer: str, batch_id: int) -> str:
    if isinstance(error, StaleEpoch):
        return (
            f"writer {writer} has already written batch {error.epoch} and now writes batch {batch_id}: the checkpoint "
            "is lost, or an older copy. Restore the newest checkpoint; or check what is in the topic, and start with a "
            "new checkpoint and a new writer name"
        )
    if isinstance(error, SequenceMismatch):
        return (
            f"batch {batch_id} of writer {writer} was written before with other rows, or in another order: mode=direct "
            "needs a plan that yields the same rows in the same order each time it runs. Sort the rows of each task by "
            "a stable key, or use mode=staged"
        )
    lacking = "the first run of the batch had rows that this one lacks: use mode=staged"
    return f"batch {batch_id} of writer {writer}: {error}; {lacking}"


# --- on the driver ----------------------------------------------------------------------------------------------------


def publish_batch(options: WriteOptions, batch_id: int, commits: Sequence[TaskCommit]) -> None:
    """Make the batch visible. A batch that is already published does not change; what was staged again is forgotten.
    A batch without handles is published too: its number must not be used for other content later."""
    handles = [handle for commit in commits for handle in commit.handles]
    content = content_of(options, batch_id, commits)
    if not commits or not (handles or content):
        return
    writer = commits[0].writer
    transport = transport_of(options.connection)
    try:
        published = transport.execute(publish(_publisher(options, writer), batch_id, handles, content))
    except NotFound as error:
        raise SinkRefused(
            f"batch {batch_id} of writer {writer}: {error.message}. Rows were staged for longer than stageTtl "
            f"({options.stage_ttl_ms} ms); run it again with a longer stageTtl"
        ) from None
    except Conflict as error:
        try_forget(transport, writer, handles)
        raise SinkRefused(_conflict(error, options, writer, batch_id)) from None
    if published.duplicate:
        try_forget(transport, writer, handles)
        if options.staged and options.replay_check != UNCHECKED:
            _compare_row_counts(published, commits, writer, batch_id)


def _publisher(options: WriteOptions, writer: str) -> str:
    """The name to publish under. In direct mode one writer may write to several targets with one batch number."""
    if options.staged:
        return writer
    target = f"{options.topic}\n{options.stream}"
    return f"{writer}/direct/{hashlib.sha256(target.encode()).hexdigest()[:16]}"


def _compares_content(options: WriteOptions) -> bool:
    return options.replay_check == BY_CONTENT and not options.writes_once


def content_of(options: WriteOptions, batch_id: int, commits: Sequence[TaskCommit]) -> str:
    """Identifies the content of a batch: by the offsets that it ends at if the checkpoint can be read, else by its
    rows. Empty if it is not to be compared."""
    if not _compares_content(options):
        return ""
    count = sum(rows for commit in commits for rows in commit.rows.values())
    digest = sum(commit.digest for commit in commits) & ((1 << 64) - 1)
    return Checkpoint(options.checkpoint).content(batch_id) or f"rows:{count}:{digest:016x}"


def _conflict(error: Conflict, options: WriteOptions, writer: str, batch_id: int) -> str:
    if "batch_number" not in error.details:
        return f"batch {batch_id} of writer {writer}: {error.message}"
    if error.code is Code.CONTENT_MISMATCH:
        written = "Nothing was written" if options.staged else "Rows of this run may be in the topic already"
        return (
            f"batch {batch_id} of writer {writer} was written before with other content: the checkpoint is an older "
            f"copy, or lost its last files in a power failure, or the writer name was used before. {written}. Restore "
            "the newest checkpoint; or check what is in the topic, and start with a new checkpoint and a new writer "
            "name at the offsets that follow. If the plan yields other rows each time, set replayCheck=none, which "
            "keeps the rows of the first run"
        )
    return (
        f"writer {writer} has published batch {error.details['batch_number']} and now publishes batch {batch_id}: "
        "the checkpoint is lost or an older copy, or two queries share this writer name. Nothing was written. Restore "
        "the newest checkpoint; or check what is in the topic, and start with a new checkpoint and a new writer name"
    )


def _compare_row_counts(published: PublishedInfo, commits: Sequence[TaskCommit], writer: str, batch_id: int) -> None:
    """A batch that is run again has as many rows as the first time, unless it is another batch with the same number."""
    before: dict[str, int] = {}
    for part in published.parts:
        before[part.topic] = before.get(part.topic, 0) + part.count
    now: dict[str, int] = {}
    for commit in commits:
        for topic, rows in commit.rows.items():
            now[topic] = now.get(topic, 0) + rows
    if now != before:
        raise SinkRefused(
            f"batch {batch_id} of writer {writer} was published before with {sum(before.values())} rows and has "
            f"{sum(now.values())} now. Either it is another batch with an old number (the checkpoint is an older "
            "copy, or the writer name was used before): its rows are not written. Or the plan yields other rows each "
            "time: then set replayCheck=none, which keeps the rows of the first run"
        )


def forget_batch(options: WriteOptions, commits: Sequence[TaskCommit]) -> None:
    for commit in commits:
        try_forget(transport_of(options.connection), commit.writer, commit.handles)
