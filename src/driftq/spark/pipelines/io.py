"""Input and output of pipelines: from a configuration to a frame, and from a frame to a running query.

Every pipeline reads with the envelope. Each micro-batch is published to a topic once, or committed to a table once,
under the name of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from driftq.client.api import connect
from driftq.client.errors import NotFound
from driftq.spark.checkpoint import Checkpoint
from driftq.spark.pipelines import history
from driftq.spark.pipelines.settings import Configuration, checkpoint, identity
from driftq.spark.tables import BatchRefused, Compaction, TableRefused, open_table, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from driftq.client.api import DriftQ
    from driftq.client.transport.sansio import RetryOptions

OFFSETS_MAX = 500_000
COMPACT_FILES = 64  # each micro-batch adds a few small files


def broker_of(configuration: Configuration, retry: RetryOptions | None = None) -> DriftQ:
    source = configuration.source
    return connect(
        source.url, token=source.token, token_file=source.token_file, retry=retry, ca=source.ca,
        certificate=source.certificate, key=source.key,
    )  # fmt: skip


def broker_options(configuration: Configuration) -> dict[str, str]:
    """The options of source and sink that name the broker."""
    source = configuration.source
    named = {"url": source.url, "token": source.token, "tokenFile": source.token_file}
    named |= {"ca": source.ca, "certificate": source.certificate, "key": source.key}
    return {name: text for name, text in named.items() if text}


def source_options(configuration: Configuration, topics: Sequence[str] = ()) -> dict[str, str]:
    """The options that say what to read, for streaming and batch reads."""
    source = configuration.source
    options = {**broker_options(configuration), "includeEnvelope": "true"}
    if source.pattern and not topics:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(topics or source.topics)
    if source.min_partitions:
        options["minPartitions"] = str(source.min_partitions)
    if not source.fail_on_data_loss:
        options["failOnDataLoss"] = "false"
    return {**options, **source.options}


def read_stream(
    spark: SparkSession, configuration: Configuration, topics: Sequence[str] = (), *, aligned: bool = False
) -> DataFrame:
    """A stream of messages with the envelope. `aligned` reads all available messages in each micro-batch, so that no
    partition runs ahead of another in time: otherwise a watermark drops messages that are not late."""
    source = configuration.source
    options = {**source_options(configuration, topics), "startingOffsets": source.starting}
    offsets_max = source.max_offsets or (0 if aligned else OFFSETS_MAX)
    if source.max_bytes:
        options["maxBytesPerTrigger"] = str(source.max_bytes)
    if offsets_max:
        options["maxOffsetsPerTrigger"] = str(offsets_max)
    return spark.readStream.format("driftq").options(**options).load()


def with_history(configuration: Configuration) -> tuple[str, ...]:
    """The topics of the configuration, and their history topics as far as they exist."""
    topics = list(configuration.source.topics)
    with broker_of(configuration) as broker:
        for topic in configuration.source.topics:
            try:
                broker.topics.describe(topic + history.SUFFIX)
            except NotFound:
                continue
            topics.append(topic + history.SUFFIX)
    return tuple(topics)


def read_recorded(spark: SparkSession, configuration: Configuration, table: str = "") -> DataFrame:
    """All messages of the topics with the envelope, and their history: from an archive, or from the broker."""
    if table:
        topics = configuration.source.topics
        names = [*topics, *(topic + history.SUFFIX for topic in topics)]
        return read_table(spark, table, configuration.sink.storage).where(F.col("topic").isin(*names))
    return spark.read.format("driftq").options(**source_options(configuration, with_history(configuration))).load()


def to_topic(
    frame: DataFrame, configuration: Configuration, topic: str | None = None, *, mode: str = "staged"
) -> StreamingQuery:
    """Start a query that writes messages. With an empty `topic` the column `topic` decides; `mode` is the default for
    `sink.mode`."""
    target = configuration.sink.topic if topic is None else topic
    options = {
        **broker_options(configuration),
        "mode": configuration.sink.mode or mode,
        "writer": identity(configuration),
    }
    if target:
        options["topic"] = target
    return _start(frame.writeStream.format("driftq").options(**options), configuration, "append")


def to_table(
    frame: DataFrame, configuration: Configuration, partition_by: Sequence[str] = (), *, mode: str = "append"
) -> StreamingQuery:
    """Start a query that appends rows to a table. If the table refuses a batch, the query fails with the reason."""
    sink, writer = configuration.sink, identity(configuration)
    progress = Checkpoint(checkpoint(configuration))
    table = open_table(frame.sparkSession, sink.table, partition_by=partition_by, storage_options=sink.storage)

    def commit(rows: DataFrame, batch_id: int) -> None:
        outcome = table.commit(writer, batch_id, rows, progress.content(batch_id))
        if isinstance(outcome, BatchRefused):
            raise TableRefused(table.path, outcome)
        table.compact(Compaction(files_min=COMPACT_FILES))

    return _start(frame.writeStream.foreachBatch(commit), configuration, mode)


def _start(writer: DataStreamWriter, configuration: Configuration, mode: str) -> StreamingQuery:
    run = configuration.pipeline
    trigger: dict[str, Any] = {"availableNow": True} if run.once else {"processingTime": run.trigger}
    return (
        writer.queryName(identity(configuration))
        .outputMode(mode)
        .option("checkpointLocation", checkpoint(configuration))
        .trigger(**trigger)
        .start()
    )
