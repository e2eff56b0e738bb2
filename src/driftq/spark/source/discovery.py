"""Asks the broker which logs a query reads, how far they reach, and when their records were written.

A topic is asked for in two calls, whatever the number of its partitions. Streams are listed in pages, and only those
that have changed since the query last looked are asked for by themselves. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from driftq.client.calls import admin, streams
from driftq.client.calls.pages import collected
from driftq.client.errors import Gone, NotFound, Refused
from driftq.spark.source.fetch import fetch_call, records_path, transport_of
from driftq.spark.source.offsets import LogName, LogSpan, OffsetRange, Reached
from driftq.spark.source.options import BadOption, ReadOptions
from driftq.wire.message import to_rfc3339
from driftq.wire.records import read_header
from driftq.wire.streams import offset_of

if TYPE_CHECKING:
    from driftq.client.transport.sync_transport import Transport

LOOKS_MAX = 8
PAGE = 1_000

FIRST_CONTACT_MS = 10_000

NOWHERE = Reached({})


def planning(options: ReadOptions) -> Transport:
    return transport_of(options.connection, first_contact_ms=FIRST_CONTACT_MS)


def spans_of(options: ReadOptions, reached: Reached | None = NOWHERE) -> list[LogSpan]:
    """Every log that the options name, as it is now. One that is named, was never read and is not there is an error;
    one that was read and is gone is simply left out, and the planner sees the loss. Where it is not known what was
    read (None), whatever is missing is left out."""
    transport = planning(options)
    if options.streams:
        return list(_stream_spans(transport, options, reached))
    names = list(options.topics) or list(dict.fromkeys(topic for topic, _ in options.assigned))
    if options.pattern:
        fits = re.compile(options.pattern)
        names = [name for name in collected(transport, admin.list_topics()) if fits.fullmatch(name)]
    before = reached.offsets.keys() if reached is not None else set(options.assigned)
    read_before = {topic for topic, _ in before}
    found: list[LogSpan] = []
    for name in names:
        try:
            found.extend(_topic_spans(transport, name))
        except NotFound as error:
            if reached is not None and name not in read_before and not options.pattern:
                raise BadOption(f"there is no topic {name} at {options.connection.url}: {error.message}") from None
    if options.assigned:
        missing = set(options.assigned) - {span.log for span in found} - before
        if missing:
            topic, partition = min(missing)
            raise BadOption(f"assign names {topic}/{partition}, which is not there")
        found = [span for span in found if span.log in set(options.assigned)]
    return found


def _topic_spans(transport: Transport, topic: str) -> list[LogSpan]:
    """The description has the time of creation and sizes, the offsets have what is durable."""
    told = transport.ask(admin.describe_topic(topic))
    reach = transport.ask(admin.offsets(topic))
    sizes = {each.partition: each.payload_bytes / each.messages for each in told.partitions if each.messages}
    return [
        LogSpan(topic, each.partition, each.start, each.end, sizes.get(each.partition, 0.0), told.created_at)
        for each in reach.partitions
    ]


def _stream_spans(transport: Transport, options: ReadOptions, reached: Reached | None) -> Iterator[LogSpan]:
    strict, reached = reached is not None, reached or NOWHERE
    for name in options.streams:
        found = False
        for listed in _listed(transport, name):
            log = (listed.stream, 0)
            end = offset_of(listed.next_offset) or 0
            found = True
            if reached.offsets.get(log) == end and reached.made.get(listed.stream) == listed.created_at:
                yield LogSpan(*log, end, end, made=listed.created_at)  # nothing is new, so where it begins is no matter
                continue
            with contextlib.suppress(NotFound, Gone):  # it went between two questions
                told = transport.ask(fetch_call(records_path(listed.stream, 0, stream=True), None, 0, 0))
                yield LogSpan(*log, told.start, told.end, made=told.made)
        if strict and not found and not name.endswith("*") and (name, 0) not in reached.offsets:
            raise BadOption(f"there is no stream {name} at {options.connection.url}")


def _listed(transport: Transport, name: str) -> Iterator[streams.ListedStream]:
    """A stream by its path, or all below a prefix that ends in a star."""
    if not name.endswith("*"):
        # In order of path the one that is named comes before all that only begin like it.
        page = transport.ask(streams.list_streams(name, limit=1))
        yield from (each for each in page.streams if each.stream == name)
        return
    after = ""
    while True:
        page = transport.ask(streams.list_streams(name[:-1], after=after, limit=PAGE))
        yield from page.streams
        if page.after is None:
            return
        after = page.after


def offsets_at(options: ReadOptions, spans: Sequence[LogSpan], at_ms: int) -> dict[LogName, int]:
    """For each log the first offset at or after a time; its end when there is none."""
    transport = planning(options)
    found = {}
    for topic in dict.fromkeys(span.topic for span in spans):
        for each in transport.ask(admin.offsets(topic, at=to_rfc3339(at_ms))).partitions:
            found[topic, each.partition] = each.end if each.at is None else each.at
    return {span.log: found.get(span.log, span.end) for span in spans}


def oldest_s(options: ReadOptions, waiting: Sequence[OffsetRange], now_s: float) -> float:
    """The age of the oldest record that waits, looked up where most wait: a progress report is no place for hundreds of
    questions."""
    transport = planning(options)
    found_ms: list[int] = []
    for each in waiting[:LOOKS_MAX]:
        with contextlib.suppress(Refused):
            if options.streams:
                path = records_path(each.topic, 0, stream=True)
                found_ms.append(read_header(transport.ask(fetch_call(path, each.start, each.start + 1, 1)).data).at_ms)
            else:
                shown = transport.ask(admin.peek(each.topic, each.partition, offset=each.start, limit=1))
                found_ms.extend(message.timestamp_ms for message in shown)
    return round(max(0.0, now_s - min(found_ms) / 1_000), 3) if found_ms else 0.0
