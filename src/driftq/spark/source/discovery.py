"""Finds out from the broker which logs a query reads, where they start and end, and when records were written.

A thousand topics take one call, and a pattern one more for the names. Streams are listed in pages; a call for a single
stream is made only if it has changed since the query last read it. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from driftq.client.calls import admin, streams
from driftq.client.endpoint import collect
from driftq.client.errors import Gone, NotFound, Refused
from driftq.spark.source.fetch import fetch_call, offset_replies, records_path, transport_of
from driftq.spark.source.offsets import LogName, LogSpan, OffsetRange, ReadProgress, SeenBatch
from driftq.spark.source.options import BadOption, ReadOptions
from driftq.wire.fields import to_rfc3339
from driftq.wire.records import read_header
from driftq.wire.streams import offset_of

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.streams import ListedStream

AGE_LOOKUPS_MAX = 8
PAGE_STREAMS = 1_000
FIRST_CONTACT_MS = 10_000  # a query whose broker is not there should fail soon

NOTHING_READ = ReadProgress({})


def planner_transport(options: ReadOptions) -> Transport:
    return transport_of(options.connection, first_contact_ms=FIRST_CONTACT_MS)


def discover_spans(options: ReadOptions, progress: ReadProgress | None = NOTHING_READ) -> list[LogSpan]:
    """Every log that the options name, as it is now. A log that does not exist is an error if it was never read; one
    that was read before is left out, and the planner reports the loss. If it is not known what was read (`progress`
    is None), every missing log is left out."""
    transport = planner_transport(options)
    if options.streams:
        return list(_stream_spans(transport, options, progress))
    names = list(options.topics) or list(dict.fromkeys(topic for topic, _ in options.assigned))
    if options.pattern:
        pattern = re.compile(options.pattern)
        names = [name for name in collect(transport, admin.list_topics()) if pattern.fullmatch(name)]
    read_before = progress.offsets.keys() if progress is not None else set(options.assigned)
    topics_read_before = {topic for topic, _ in read_before}
    spans = list(_topic_spans(transport, names))
    if progress is not None and not options.pattern:
        known = {span.topic for span in spans} | topics_read_before
        for name in names:
            if name not in known:
                raise BadOption(f"there is no topic {name} at {options.connection.url}: create it first")
    if options.assigned:
        missing = set(options.assigned) - {span.log for span in spans} - read_before
        if missing:
            topic, partition = min(missing)
            raise BadOption(f"assign names {topic}/{partition}, which does not exist")
        spans = [span for span in spans if span.log in set(options.assigned)]
    return spans


def _topic_spans(transport: Transport, names: Sequence[str]) -> Iterator[LogSpan]:
    """The spans of the topics that exist."""
    for reply in offset_replies(transport, names, last=True):
        for topic in reply.topics:
            for log in topic.partitions:
                yield LogSpan(
                    topic.topic,
                    log.partition,
                    log.start,
                    log.end,
                    log.payload_bytes / (log.end - log.start) if log.end > log.start else 0.0,
                    topic.created_at,
                    SeenBatch(log.end, log.last) if log.last else None,
                    reply.instance,
                )


def _stream_spans(transport: Transport, options: ReadOptions, progress: ReadProgress | None) -> Iterator[LogSpan]:
    strict, progress = progress is not None, progress or NOTHING_READ
    for name in options.streams:
        exists = False
        for listed in _listed(transport, name):
            log = (listed.stream, 0)
            end = offset_of(listed.next_offset) or 0
            exists = True
            if progress.offsets.get(log) == end and progress.created.get(listed.stream) == listed.created_at:
                yield LogSpan(*log, end, end, created_at=listed.created_at)  # nothing new: its start does not matter
                continue
            with contextlib.suppress(NotFound, Gone):  # deleted between the two calls
                stream = transport.execute(fetch_call(records_path(listed.stream, 0, stream=True), None, 0, 0))
                last = SeenBatch(stream.end, stream.last) if stream.last else None
                yield LogSpan(*log, stream.start, stream.end, created_at=stream.created_at, last=last)
        if strict and not exists and not name.endswith("*") and (name, 0) not in progress.offsets:
            raise BadOption(f"there is no stream {name} at {options.connection.url}")


def _listed(transport: Transport, name: str) -> Iterator[ListedStream]:
    """The stream with this path, or all streams below a prefix that ends in a star."""
    if not name.endswith("*"):
        # Streams are listed in order of path, so an exact match comes first.
        page = transport.execute(streams.list_streams(name, limit=1))
        yield from (listed for listed in page.streams if listed.stream == name)
        return
    after = ""
    while True:
        page = transport.execute(streams.list_streams(name[:-1], after=after, limit=PAGE_STREAMS))
        yield from page.streams
        if page.after is None:
            return
        after = page.after


def offsets_at(options: ReadOptions, spans: Sequence[LogSpan], at_ms: int) -> dict[LogName, int]:
    """For each log the first offset at or after a time; the end of the log if there is none."""
    transport = planner_transport(options)
    offsets = {}
    for topic in dict.fromkeys(span.topic for span in spans):
        for log in transport.execute(admin.offsets(topic, at=to_rfc3339(at_ms))).partitions:
            offsets[topic, log.partition] = log.end if log.at is None else log.at
    return {span.log: offsets.get(span.log, span.end) for span in spans}


def oldest_unread_s(options: ReadOptions, unread: Sequence[OffsetRange], now_s: float) -> float:
    """The age of the oldest unread record in seconds. Only the longest ranges are looked up: a progress report must not
    make hundreds of calls."""
    transport = planner_transport(options)
    times_ms: list[int] = []
    for log in unread[:AGE_LOOKUPS_MAX]:
        with contextlib.suppress(Refused):
            if options.streams:
                path = records_path(log.topic, 0, stream=True)
                batches = transport.execute(fetch_call(path, log.start, log.start + 1, 1))
                times_ms.append(read_header(batches.data).at_ms)
            else:
                messages = transport.execute(admin.peek(log.topic, log.partition, offset=log.start, limit=1))
                times_ms.extend(message.timestamp_ms for message in messages)
    return round(max(0.0, now_s - min(times_ms) / 1_000), 3) if times_ms else 0.0
