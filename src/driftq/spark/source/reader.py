"""The readers that Spark calls: one for batch reads, one for streaming reads.

Theory of operation. A reader lives in two kinds of process:

    driver (one process, as long as the query)         executor (a Python worker for each task)

    initialOffset    where the first batch starts
    latestOffset     discovery: spans of all logs
                     group_progress: the last batch is done
                     offsets.plan_end                  read(partition):
    partitions       offsets.plan_tasks  --pickle-->     fetch.fetch_range      bytes, one fetch ahead in a thread
                     a ReadTask for each range           arrow.rows_of          columns of many batches at once
    reportLatestOffset  lag, for the progress            record_batches         Arrow record batches to Spark
    commit           nothing: comes one batch late

The driver talks to the broker only to plan; records go from the broker to the executors. A task gets a copy of the
options and its `ReadTask`, so it can run on any machine and run again. Its memory is a small multiple of `fetchBytes`,
however long its range is. Everything that a later run of the same batch must repeat is in the offsets that Spark keeps
(see `offsets`); the fields of the stream reader are caches and may be lost.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from driftq.client.errors import DriftQError
from driftq.spark.session import freeze_gc
from driftq.spark.source import columns, offsets
from driftq.spark.source.discovery import discover_spans, offsets_at, oldest_unread_s
from driftq.spark.source.fetch import DataLoss, fetch_ranges, prefetched, transport_of
from driftq.spark.source.filters import OffsetWindow, clip_ranges, window_of
from driftq.spark.source.group_progress import GroupProgress
from driftq.spark.source.log_history import replaced_logs
from driftq.spark.source.offsets import LogSpan, OffsetRange, ReadProgress, TriggerLimits
from driftq.spark.source.options import EARLIEST, LATEST, BadOption, ReadOptions
from driftq.spark.source.queue_state import state_arrays
from driftq.spark.source.record_batches import joined, record_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


REPORT_MAX_AGE_S = 1.0  # a progress report may use spans that are this old


class ReadTask(InputPartition):
    """The ranges that one task reads, one after the other."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def read_task(
    options: ReadOptions, selected: tuple[columns.Column, ...], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Memory is bounded by the size of a fetch, not by the range."""
    if not isinstance(task, ReadTask):
        return  # Spark runs one task without a partition if there is nothing to read
    freeze_gc()
    transport = transport_of(options.connection)
    with_state = any(column in columns.STATE for column in selected)

    def decoded() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        for piece, batches in prefetched(fetch_ranges(transport, task.ranges, options)):
            first, end = max(piece.start, batches.first), min(piece.end, batches.next_offset)
            extra = functools.partial(state_arrays, transport, options.state_group, piece) if with_state else None
            rows = record_batches(batches.data, piece._replace(start=first, end=end), selected, extra)
            yield len(batches.data), rows

    yield from joined(decoded())


def starting_offsets(options: ReadOptions, spans: list[LogSpan], default: int) -> offsets.Offsets:
    """Where a new query starts."""
    if options.starting_ms is not None:
        return offsets_at(options, spans, options.starting_ms)
    requested = default if options.starting is None else options.starting
    return offsets.resolve_offsets(requested, spans, "startingOffsets", BadOption)


def ending_offsets(options: ReadOptions, spans: list[LogSpan]) -> offsets.Offsets:
    if options.ending_ms is not None:
        return offsets_at(options, spans, options.ending_ms)
    return offsets.resolve_offsets(options.ending, spans, "endingOffsets", BadOption)


class DriftqReader(DataSourceReader):
    """A batch read: all tasks are planned at once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, limit in (("maxOffsetsPerTrigger", options.offsets_max), ("maxBytesPerTrigger", options.bytes_max)):
            if limit is not None:
                raise BadOption(f"{name} is for streams; a batch ends at endingOffsets or endingTimestamp")
        if options.group:
            raise BadOption("group is for streams; a batch read has no progress (queueState shows that of a group)")
        self.options = options
        self.columns = columns.selected_columns(schema, options)

    def partitions(self) -> list[InputPartition]:
        spans = discover_spans(self.options)
        created = {span.topic: span.created_at for span in spans}
        start = ReadProgress(starting_offsets(self.options, spans, EARLIEST), created=created)
        lost = offsets.data_losses(start, spans)
        if lost and self.options.fail_on_loss:
            raise DataLoss("; ".join(lost.values()))
        ends = ending_offsets(self.options, spans)
        wanted = [_end_at(span, ends[span.log], start) for span in spans]
        end = offsets.plan_end(start, wanted, _trigger_limits(self.options, ReadAllAvailable()))
        return [ReadTask(task) for task in offsets.plan_tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)


class FilteringReader(DriftqReader):
    """A batch read with filter push-down. A class of its own, because Spark refuses a reader that has `pushFilters`
    unless `spark.sql.python.filterPushdown.enabled` is set."""

    window = OffsetWindow()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.window = window_of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        tasks = [task for task in super().partitions() if isinstance(task, ReadTask)]
        planned = [piece for task in tasks for piece in task.ranges]
        logs = {(task.topic, task.partition): LogSpan(*task[:4]) for task in planned}
        spans = [] if self.options.streams else list(logs.values())  # streams have no index by time
        bounds = [
            offsets_at(self.options, spans, at_ms) if at_ms is not None else {}
            for at_ms in (self.window.from_ms, self.window.until_ms)
        ]
        clipped = clip_ranges(planned, self.window, *bounds)
        return [ReadTask(ranges) for ranges in offsets.share_tasks(clipped, len(tasks))]


def _end_at(span: LogSpan, end: int, start: ReadProgress) -> LogSpan:
    """The span up to an end. A read whose end is before its start reads nothing, and that is not a data loss."""
    return span._replace(end=max(min(span.end, end), start.offsets[span.log], span.start))


def _trigger_limits(options: ReadOptions, limit: ReadLimit) -> TriggerLimits:
    """Spark passes `ReadAllAvailable` for a run without limits (Trigger.Once)."""
    if isinstance(limit, ReadAllAvailable):
        return TriggerLimits(None, None, options.partitions_min, options.partition_bytes)
    rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.offsets_max
    size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_max
    return TriggerLimits(rows, size_bytes, options.partitions_min, options.partition_bytes)


class DriftqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. All that it plans is in the offsets that Spark keeps."""

    def __init__(self, options: ReadOptions, schema: StructType, now_s: Callable[[], float] = time.monotonic) -> None:
        for name, text in (("endingOffsets", options.ending != LATEST), ("endingTimestamp", options.ending_ms)):
            if text:
                raise BadOption(f"{name} is for batch reads; a stream has no end")
        self.options = options
        self.columns = columns.selected_columns(schema, options)
        self._now_s = now_s
        self._last_batch_s = now_s()
        self._target: list[LogSpan] | None = None  # where a run with Trigger.AvailableNow ends
        self._progress: ReadProgress | None = None  # the end of the last batch, for reports
        self._spans: list[LogSpan] = []  # as last discovered, and when
        self._spans_s = float("-inf")
        self._trusted: ReadProgress | None = None  # its logs are known to be the ones that were read
        self._instances: set[str] = set()  # of the brokers at that time
        self._group = GroupProgress(options)

    def initialOffset(self) -> dict[str, Any]:
        spans = discover_spans(self.options)
        first = starting_offsets(self.options, spans, LATEST)
        created = {span.topic: span.created_at for span in spans if span.created_at}
        self._trust(ReadProgress(first, created=created, seen=offsets.seen_batches(spans, {})), spans)
        assert self._trusted is not None
        return offsets.to_json(self._trusted)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.offsets_max is not None:
            return ReadMaxRows(self.options.offsets_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = discover_spans(self.options, None)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        progress = offsets.from_json(start)
        spans = self._remember(discover_spans(self.options, progress))
        lost = offsets.data_losses(progress, spans)
        if lost and self.options.fail_on_loss:
            raise DataLoss("; ".join(lost.values()))
        if progress != self._trusted or not {span.instance for span in spans} <= self._instances:
            self._check_history(progress)
            self._trust(progress, spans)
        self._group.commit(progress, spans)
        if self._target is not None:
            spans = offsets.clamp_to_target(spans, self._target)
        elif self._waits_for_more(offsets.lag(progress, spans)):
            return dict(start)
        self._progress = offsets.plan_end(progress, spans, _trigger_limits(self.options, limit))
        self._trusted = self._progress
        return dict(start) if self._progress is progress else offsets.to_json(self._progress)

    def _trust(self, progress: ReadProgress, spans: list[LogSpan]) -> None:
        self._trusted, self._instances = progress, {span.instance for span in spans}

    def _check_history(self, *values: ReadProgress) -> None:
        """Fail if a log was replaced since it was read."""
        if not self.options.fail_on_loss:
            return
        for progress in values:
            replaced = replaced_logs(self.options, progress)
            if replaced:
                raise DataLoss("; ".join(replaced.values()))

    def _waits_for_more(self, lag: int) -> bool:
        """There are fewer records than `minOffsetsPerTrigger`, and `maxTriggerDelay` is not over yet."""
        waited_ms = (self._now_s() - self._last_batch_s) * 1_000
        if 0 < lag < self.options.offsets_min and waited_ms < self.options.delay_max_ms:
            return True
        if lag:
            self._last_batch_s = self._now_s()
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs and the lag of the query, for its progress report. Spans that are a moment old are good
        enough. If the broker does not answer there is no report; the next batch deals with that."""
        progress = self._progress
        try:
            if self._now_s() - self._spans_s > REPORT_MAX_AGE_S:
                self._remember(discover_spans(self.options, None))
            report = offsets.to_json(ReadProgress({span.log: span.end for span in self._spans}))
            if progress is not None:
                unread = offsets.unread_ranges(progress, self._spans)
                seconds = oldest_unread_s(self.options, unread, time.time()) if unread else 0.0
                report["lag"] = offsets.lag_report(unread, seconds)
        except DriftQError:
            return None
        return report

    def _remember(self, spans: list[LogSpan]) -> list[LogSpan]:
        self._spans, self._spans_s = spans, self._now_s()
        return spans

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        first, last = offsets.from_json(start), offsets.from_json(end)
        if last != self._trusted:  # planned by an earlier process, and run again
            self._check_history(first, last)
        return [ReadTask(task) for task in offsets.plan_tasks(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: progress is in Spark's checkpoint, and the query's group was moved when this was planned."""

    def stop(self) -> None:
        """Nothing to do: connections belong to the process and are reused by other queries."""
