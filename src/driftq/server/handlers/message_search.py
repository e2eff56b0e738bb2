"""Search in the messages of a topic: the newest first, by time, key and text.

    partition 0   … 96 97 98 99 |     each is read backwards in small windows;
    partition 1   … 40 41 42 |        the newest of all is taken next

A call looks at a bounded number of messages and bytes; the next one continues at its cursor, which has the place of
each partition.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.replies import Rejected
from driftq.core.transitions.lookups import bad_partition, no_such_topic
from driftq.engine.cold_reads import read_cold
from driftq.server.deliveries import content
from driftq.server.handlers.codec import number, optional_time, page_cursor, page_limit, refusal
from driftq.server.http import BadRequest, Request, Response
from driftq.server.slices import SLICE_S
from driftq.storage.corruption import CorruptLog
from driftq.wire.records import read_header

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.wire.records import Record

WINDOW = 64  # messages that are read together
WINDOW_BYTES = 256 << 10
SCAN_MAX = 10_000  # messages that one call looks at
SCAN_BYTES_MAX = 16 << 20
PARTITIONS_MAX = 64  # that are searched together
_CURSOR = re.compile(r"[0-9]{1,4}:[0-9]{1,16}(,[0-9]{1,4}:[0-9]{1,16}){0,63}", re.ASCII)


class SearchedSpan(NamedTuple):
    """The part of a partition that is searched."""

    partition: int
    log_id: int
    low: int
    high: int


class MessageSearchHandlers:
    """The handler of `/v1/topics/{topic}/messages`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._bytes_max = context.settings.limits.reply_bytes

    async def search(self, request: Request, topic_name: str) -> Response:
        query = request.query
        limit = page_limit(request, 20)
        partition = number("partition", query["partition"]) if "partition" in query else None
        since_ms, until_ms = optional_time(query, "since"), optional_time(query, "until")
        cursor = _places(query.get("after", ""))
        before = number("before", query["before"]) if "before" in query else None
        if before is not None and partition is None:
            raise BadRequest("an offset belongs to a partition: name it")
        key, text = query.get("key"), query.get("text", "").encode()

        def look(view: StateView) -> list[SearchedSpan] | Rejected:
            return _spans(view, topic_name, partition, before, since_ms, until_ms, cursor)

        spans = await self._engine.queries.result(look)
        if isinstance(spans, Rejected):
            return refusal(spans)
        if len(spans) > PARTITIONS_MAX:
            raise BadRequest(f"the topic has {len(spans)} partitions, more than {PARTITIONS_MAX}: name one")
        readers = [BackwardReader(self._engine, span) for span in spans]
        return await self._page(readers, limit, key.encode() if key is not None else None, text)

    async def _page(self, readers: list[BackwardReader], limit: int, key: bytes | None, text: bytes) -> Response:
        messages: list[bytes] = []
        scanned = scanned_bytes = size_bytes = 0
        until_s = time.perf_counter() + SLICE_S
        while len(messages) < limit and scanned < SCAN_MAX and scanned_bytes < SCAN_BYTES_MAX:
            await read_cold(self._engine.cold_reads, partial(_fill, readers))
            newest = max((reader for reader in readers if reader.is_loaded), key=_at_ms, default=None)
            if newest is None:
                break
            at_ms, offset, record = newest.take()
            scanned += 1
            scanned_bytes += record.size_bytes
            if key in (None, record.key) and (text in record.value or text in record.key or text in record.head):
                front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (newest.partition, offset, at_ms)
                messages.append(front + content(record) + b"}")
                size_bytes += len(messages[-1])
                if size_bytes >= self._bytes_max:
                    break
            if time.perf_counter() >= until_s:
                await asyncio.sleep(0)
                until_s = time.perf_counter() + SLICE_S
        places = ",".join(f"{reader.partition}:{reader.next}" for reader in readers if reader.next > reader.low)
        after = b',"after":"%b"' % places.encode() if places else b""
        body = b'{"messages":[%b],"scanned":%d%b}\n' % (b",".join(messages), scanned, after)
        return Response(200, body)  # a MessageSearchReply, around messages that are JSON already


class BackwardReader:
    """Reads a part of a log from its end down."""

    def __init__(self, engine: Engine, span: SearchedSpan) -> None:
        self._engine = engine
        self._log_id = span.log_id
        self.partition = span.partition
        self.low = span.low
        self.next = span.high  # everything at and above it was taken
        self._loaded: list[tuple[int, int, Record]] = []  # (time, offset, record), ascending

    @property
    def is_loaded(self) -> bool:
        """Whether there is a record to take, after `fill`."""
        return bool(self._loaded)

    def fill(self) -> None:
        """Read a window if none is loaded. What is damaged is passed over."""
        while not self._loaded and self.next > self.low:
            first = max(self.low, self.next - WINDOW)
            try:
                self._load(first)
            except CorruptLog as error:
                self.next = max(self.low, min(first, error.offset))

    def _load(self, first: int) -> None:
        """Load [first, next), or a shorter window if that has many bytes."""
        while True:
            batches = self._engine.read(self._log_id, first, self.next, WINDOW_BYTES)
            if not batches:
                self.next = self.low  # deleted or trimmed in the meantime
                return
            if read_header(batches[-1]).end_offset >= self.next or first == self.next - 1:
                break
            first += -(-(self.next - first) // 2)
            first = min(first, self.next - 1)
        for batch in batches:
            header = read_header(batch)
            low, high = max(first, header.first_offset), min(self.next, header.end_offset)
            for offset, record in enumerate(self._engine.unpack(self._log_id, batch, header, low, high), low):
                self._loaded.append((header.at_ms, offset, record))

    @property
    def at_ms(self) -> int:
        return self._loaded[-1][0]

    def take(self) -> tuple[int, int, Record]:
        row = self._loaded.pop()
        self.next = row[1]
        return row


def _fill(readers: list[BackwardReader]) -> None:
    for reader in readers:
        reader.fill()


def _at_ms(reader: BackwardReader) -> int:
    return reader.at_ms


def _spans(
    view: StateView,
    topic_name: str,
    partition: int | None,
    before: int | None,
    since_ms: int | None,
    until_ms: int | None,
    cursor: dict[int, int] | None,
) -> list[SearchedSpan] | Rejected:
    topic = view.state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    if partition is not None and partition >= len(topic.log_ids):
        return bad_partition(partition, topic)
    spans: list[SearchedSpan] = []
    for number_of, log_id in enumerate(topic.log_ids):
        if partition not in (None, number_of) or (cursor is not None and number_of not in cursor):
            continue
        low, high = view.state.logs[log_id].start, view.state.logs[log_id].end
        if since_ms is not None:
            low = max(low, view.reader.offset_at(log_id, since_ms))
        if until_ms is not None:
            high = min(high, view.reader.offset_at(log_id, until_ms))
        if before is not None:
            high = min(high, before)
        if cursor is not None:
            high = min(high, cursor[number_of])
        spans.append(SearchedSpan(number_of, log_id, low, max(low, high)))
    return spans


def _places(text: str) -> dict[int, int] | None:
    if page_cursor(_CURSOR, text) is None:
        return None
    return {int(partition): int(offset) for partition, _, offset in (part.partition(":") for part in text.split(","))}
