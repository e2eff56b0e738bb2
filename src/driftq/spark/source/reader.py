"""The readers that Spark calls: one for batches, one for streams. Thin: what to read is planned in `offsets`, bytes
come from `fetching`, columns from `tabling`.

The driver's side of a stream reader lives in one process for as long as the query; tasks get a copy and a `ReadTask`.
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
from driftq.spark.session import settle_in
from driftq.spark.source import columns, offsets
from driftq.spark.source.discovery import offsets_at, oldest_s, spans_of
from driftq.spark.source.envelope_columns import state_arrays
from driftq.spark.source.fetch import DataLoss, ahead, runs, transport_of
from driftq.spark.source.filters import OffsetWindow, clipped, window_of
from driftq.spark.source.offsets import LogSpan, OffsetRange, Reached, TriggerLimits
from driftq.spark.source.options import EARLIEST, LATEST, BadOption, ReadOptions
from driftq.spark.source.record_batches import tables

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


FRESH_S = 1.0


class ReadTask(InputPartition):
    """What one task reads."""

    def __init__(self, task: OffsetRange) -> None:
        super().__init__(task)
        self.range = task


def read_task(
    options: ReadOptions, wanted: tuple[columns.Column, ...], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Memory is bounded by what is fetched at once, whatever the range."""
    if not isinstance(task, ReadTask):
        return  # Spark runs one task without a partition when nothing is to be read
    settle_in()
    transport = transport_of(options.connection)
    more = None
    if any(column in columns.STATE for column in wanted):
        more = functools.partial(state_arrays, transport, options.state_group, task.range)
    for run in ahead(runs(transport, task.range, options)):
        first, end = max(task.range.start, run.first), min(task.range.end, run.next_offset)
        yield from tables(run.data, task.range._replace(start=first, end=end), wanted, more)


def starting(options: ReadOptions, spans: list[LogSpan], default: int) -> offsets.Offsets:
    """Where a query begins the first time."""
    if options.starting_ms is not None:
        return offsets_at(options, spans, options.starting_ms)
    asked = default if options.starting is None else options.starting
    return offsets.resolved(asked, spans, "startingOffsets", BadOption)


def ending(options: ReadOptions, spans: list[LogSpan]) -> offsets.Offsets:
    if options.ending_ms is not None:
        return offsets_at(options, spans, options.ending_ms)
    return offsets.resolved(options.ending, spans, "endingOffsets", BadOption)


class DriftqReader(DataSourceReader):
    """A batch read: planned whole when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name, limit in (("maxOffsetsPerTrigger", options.offsets_max), ("maxBytesPerTrigger", options.bytes_max)):
            if limit is not None:
                raise BadOption(f"{name} is for streams; a batch ends at endingOffsets or endingTimestamp")
        self.options = options
        self.columns = columns.chosen(schema, options)

    def partitions(self) -> list[InputPartition]:
        spans = spans_of(self.options)
        first = Reached(starting(self.options, spans, EARLIEST), made={span.topic: span.made for span in spans})
        lost = offsets.losses(first, spans)
        if lost and self.options.fail_on_loss:
            raise DataLoss("; ".join(lost.values()))
        last = ending(self.options, spans)
        targets = [span._replace(end=min(span.end, last[span.log])) for span in spans]
        reach = offsets.step(first, _held_back(first, targets), _limits(self.options, ReadAllAvailable()))
        return [ReadTask(each) for each in offsets.ranges(first, reach)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)


class FilteringReader(DriftqReader):
    """The same, looking at filters. A class of its own because Spark refuses any reader that takes filters unless
    `spark.sql.python.filterPushdown.enabled` is set."""

    window = OffsetWindow()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.window = window_of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        planned = [task.range for task in super().partitions() if isinstance(task, ReadTask)]
        logs = {
            (each.topic, each.partition): LogSpan(each.topic, each.partition, each.start, each.end) for each in planned
        }
        left = [] if self.options.streams else list(logs.values())
        times = [
            offsets_at(self.options, left, at_ms) if at_ms is not None else {}
            for at_ms in (self.window.from_ms, self.window.until_ms)
        ]
        return [ReadTask(each) for each in clipped(planned, self.window, *times)]


def _held_back(first: Reached, spans: list[LogSpan]) -> list[LogSpan]:
    """A batch whose end lies before its start reads nothing; that is no loss."""
    return [span._replace(end=max(span.end, first.offsets[span.log], span.start)) for span in spans]


def _limits(options: ReadOptions, limit: ReadLimit) -> TriggerLimits:
    """`ReadAllAvailable` is Spark's word for "whatever the options say": a run with Trigger.Once."""
    if isinstance(limit, ReadAllAvailable):
        return TriggerLimits(None, None, options.partitions_min, options.partition_bytes)
    rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.offsets_max
    size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_max
    return TriggerLimits(rows, size_bytes, options.partitions_min, options.partition_bytes)


class DriftqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. What it plans is in the offsets that Spark keeps."""

    def __init__(self, options: ReadOptions, schema: StructType, now_s: Callable[[], float] = time.monotonic) -> None:
        for name, text in (("endingOffsets", options.ending != LATEST), ("endingTimestamp", options.ending_ms)):
            if text:
                raise BadOption(f"{name} is for batch reads; a stream has no end")
        self.options = options
        self.columns = columns.chosen(schema, options)
        self._now_s = now_s
        self._moved_s = now_s()
        self._target: list[LogSpan] | None = None
        self._reached: Reached | None = None
        self._seen: list[LogSpan] = []
        self._seen_s = float("-inf")

    def initialOffset(self) -> dict[str, Any]:
        spans = spans_of(self.options)
        first = starting(self.options, spans, LATEST)
        return offsets.to_json(Reached(first, made={span.topic: span.made for span in spans if span.made}))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.offsets_max is not None:
            return ReadMaxRows(self.options.offsets_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = spans_of(self.options, None)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reached = offsets.from_json(start)
        spans = self._see(spans_of(self.options, reached))
        lost = offsets.losses(reached, spans)
        if lost and self.options.fail_on_loss:
            raise DataLoss("; ".join(lost.values()))
        if self._target is not None:
            spans = offsets.up_to(spans, self._target)
        elif self._waits(offsets.behind(reached, spans)):
            return dict(start)
        self._reached = offsets.step(reached, spans, _limits(self.options, limit))
        return dict(start) if self._reached is reached else offsets.to_json(self._reached)

    def _waits(self, behind: int) -> bool:
        """Too little is there, and it has not been waited for long enough."""
        waited_ms = (self._now_s() - self._moved_s) * 1_000
        if 0 < behind < self.options.offsets_min and waited_ms < self.options.delay_max_ms:
            return True
        if behind:
            self._moved_s = self._now_s()
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs and how far the query is behind them, for its progress. What was seen a moment ago is
        good enough, and a broker that does not answer is a matter for the next batch, not for a report."""
        reached = self._reached
        try:
            if self._now_s() - self._seen_s > FRESH_S:
                self._see(spans_of(self.options, None))
            told = offsets.to_json(Reached({span.log: span.end for span in self._seen}))
            if reached is not None:
                waiting = offsets.waiting(reached, self._seen)
                seconds = oldest_s(self.options, waiting, time.time()) if waiting else 0.0
                told["lag"] = {"offsets": offsets.behind(reached, self._seen), "seconds": seconds}
        except DriftQError:
            return None
        return told

    def _see(self, spans: list[LogSpan]) -> list[LogSpan]:
        self._seen, self._seen_s = spans, self._now_s()
        return spans

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return [ReadTask(each) for each in offsets.ranges(offsets.from_json(start), offsets.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.columns, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: how far a query has come is in its checkpoint, and the broker keeps records by its own rules."""

    def stop(self) -> None:
        """Connections belong to the process and end with it."""
