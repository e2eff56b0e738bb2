"""Sources and sinks of pipelines: from a configuration to a frame, and from a frame to a running query.

Every pipeline reads with the envelope. A sink is a topic, published once for each micro-batch, or a table, committed
once for each micro-batch under the name of the pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from driftq.client.api import DriftQ
from driftq.spark.pipelines.configuration import checkpoint, identity
from driftq.spark.tables import BatchRefused, Compaction, TableRefused, open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from driftq.client.transport.sansio import RetryOptions
    from driftq.spark.pipelines.settings import Configuration

OFFSETS_MAX = 500_000
COMPACT_FILES = 64  # every micro-batch leaves some small ones


def broker_of(configuration: Configuration, retry: RetryOptions | None = None) -> DriftQ:
    token = configuration.source.token or os.environ.get("DRIFTQ_TOKEN", "")
    return DriftQ(configuration.source.url, token=token, retry=retry)


def reach(configuration: Configuration) -> dict[str, str]:
    """The options that say which broker."""
    source = configuration.source
    return {name: text for name, text in (("url", source.url), ("token", source.token)) if text}


def options(configuration: Configuration, topics: Sequence[str] = ()) -> dict[str, str]:
    """The options that say what to read, for a stream and for a batch alike."""
    source = configuration.source
    found = {**reach(configuration), "includeEnvelope": "true"}
    if source.pattern and not topics:
        found["subscribePattern"] = source.pattern
    else:
        found["subscribe"] = ",".join(topics or source.topics)
    if source.min_partitions:
        found["minPartitions"] = str(source.min_partitions)
    if not source.fail_on_data_loss:
        found["failOnDataLoss"] = "false"
    return {**found, **source.options}


def read_stream(
    spark: SparkSession, configuration: Configuration, topics: Sequence[str] = (), *, aligned: bool = False
) -> DataFrame:
    """A stream of messages with the envelope. `aligned` reads whatever is there in each micro-batch, so that no
    partition runs ahead of another in time: what a watermark needs to drop nothing that is not late."""
    source = configuration.source
    found = {**options(configuration, topics), "startingOffsets": source.starting}
    offsets_max = source.max_offsets or (0 if aligned else OFFSETS_MAX)
    if source.max_bytes:
        found["maxBytesPerTrigger"] = str(source.max_bytes)
    if offsets_max:
        found["maxOffsetsPerTrigger"] = str(offsets_max)
    return spark.readStream.format("driftq").options(**found).load()


def to_topic(
    frame: DataFrame, configuration: Configuration, topic: str | None = None, *, mode: str = "staged"
) -> StreamingQuery:
    """Start a query that writes messages. An empty `topic` leaves the choice to the column; `mode` is what suits the
    plan when the configuration does not say."""
    target = configuration.sink.topic if topic is None else topic
    found = {**reach(configuration), "mode": configuration.sink.mode or mode, "writer": identity(configuration)}
    if target:
        found["topic"] = target
    return _started(frame.writeStream.format("driftq").options(**found), configuration, "append")


def to_table(
    frame: DataFrame, configuration: Configuration, partition_by: Sequence[str] = (), *, mode: str = "append"
) -> StreamingQuery:
    """Start a query that appends rows to a table. A refusal of the table ends the query and says why."""
    path, kind, writer = configuration.sink.table, configuration.sink.format, identity(configuration)

    def commit(rows: DataFrame, batch_id: int) -> None:
        table = open_table(rows.sparkSession, path, partition_by=partition_by, format=kind)
        outcome = table.commit(writer, batch_id, rows)
        if isinstance(outcome, BatchRefused):
            raise TableRefused(path, outcome)
        if kind == "parquet":  # other formats rewrite all there is, which belongs into a job of its own
            table.compact(Compaction(files_min=COMPACT_FILES))

    return _started(frame.writeStream.foreachBatch(commit), configuration, mode)


def _started(writer: DataStreamWriter, configuration: Configuration, mode: str) -> StreamingQuery:
    run = configuration.pipeline
    when: dict[str, Any] = {"availableNow": True} if run.once else {"processingTime": run.trigger}
    return (
        writer.queryName(identity(configuration))
        .outputMode(mode)
        .option("checkpointLocation", checkpoint(configuration))
        .trigger(**when)
        .start()
    )
