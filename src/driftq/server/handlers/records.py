"""Reading stored records without a group, for readers that keep their own offsets.

Ranges of packed batches of a partition or a stream, a peek at messages as JSON, and the offsets of partitions. Where a
range lies is a query, which is answered when it is durable; the records are read after that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.core.model.queries import ReadStream
from driftq.core.model.replies import Rejected, StreamView
from driftq.core.transitions.lookups import bad_partition, no_such_topic
from driftq.server.access.identity import require_any_topic, require_stream
from driftq.server.deliveries import content
from driftq.server.handlers.codec import (
    encoded,
    flag,
    json_response,
    number,
    page_limit,
    read_json,
    refusal,
    refused,
    start_of,
)
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.slices import slices
from driftq.server.streams.stream_body import ranges_of
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.fields import SAFE_INTEGER_MAX, to_rfc3339
from driftq.wire.grants import READ
from driftq.wire.produce import PACKED_RANGE_TYPE
from driftq.wire.records import read_header, unpack
from driftq.wire.topics import (
    ArchivedRange,
    LogOffsets,
    OffsetsReply,
    OffsetsRequest,
    PartitionOffsets,
    TopicOffsets,
    TopicOffsetsReply,
    batch_identity,
)

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

FETCH_BYTES = 4 << 20
FETCH_BYTES_MAX = 16 << 20
FETCH_WAIT_MS_MAX = 60_000
PEEK_LIMIT = 10
PARTITIONS_MAX = 10_000  # in one reply about many topics
LAST_AT_ONCE = 32  # last batches that are read before other requests get their turn


class _LogRange(NamedTuple):
    """A partition's log, and where it started and ended at the time of the query."""

    log: Log
    start: int
    end: int

    def refuses(self, offset: int) -> Response | None:
        if offset < self.start:
            message = f"offset {offset} is gone: the log begins at {self.start}"
            return refused(Code.GONE, message, {"earliest_offset": self.start})
        if offset > self.end:
            return refused(Code.INVALID_ARGUMENT, f"offset {offset} is past the end ({self.end})")
        return None


class PartitionRecordsHandlers:
    """Handlers of the records of topics."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._instance = secrets.token_hex(8)  # of this process

    async def fetch(self, request: Request, topic_name: str, partition: str) -> Response:
        """Whole batches from `?offset=`; the first may begin before it. Waits up to `?wait_ms=` for a new record. With
        `?locate=true` the reply may be where they are instead."""
        index = number("partition", partition)
        offset = number("offset", request.query.get("offset", "0"))
        end, bytes_max = _end(request), _bytes_max(request)
        wait_ms = min(FETCH_WAIT_MS_MAX, number("wait_ms", request.query.get("wait_ms", "0")))
        log_range = await self._range(topic_name, index)
        if isinstance(log_range, _LogRange) and wait_ms and offset == log_range.end and not self._has_grown(log_range):
            await self._engine.watch.log(log_range.log.log_id, wait_ms / 1_000)
            log_range = await self._range(topic_name, index)  # it may have been trimmed or deleted in the meantime
        if isinstance(log_range, Rejected):
            return refusal(log_range)
        error_response = log_range.refuses(offset)
        if error_response is not None:
            return error_response
        try:
            if flag(request, "locate"):
                batches = self._engine.read(log_range.log.log_id, offset, end, bytes_max)
            else:
                batches = await self._engine.read_cold(log_range.log.log_id, offset, end, bytes_max)
        except CorruptLog as error:
            return _damaged(log_range.log, error)
        except ColdRange as cold:
            body, next_offset = _located(cold)
            return Response(200, body, headers=_span_headers(next_offset, log_range.start, log_range.end))
        next_offset = read_header(batches[-1]).end_offset if batches else offset
        headers = _span_headers(next_offset, log_range.start, max(log_range.end, next_offset))
        return Response(200, batches, PACKED_RANGE_TYPE, headers)

    def _has_grown(self, log_range: _LogRange) -> bool:
        """Whether a record arrived between the query and its answer."""
        return self._engine.queries.stored_end(log_range.log.log_id) > log_range.end

    async def _range(self, topic_name: str, partition: int) -> _LogRange | Rejected:
        def look(view: StateView) -> _LogRange | Rejected:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return no_such_topic(topic_name)
            if partition >= len(topic.log_ids):
                return bad_partition(partition, topic)
            log = view.state.logs[topic.log_ids[partition]]
            return _LogRange(log, log.start, log.end)

        return await self._engine.queries.result(look)

    async def peek(self, request: Request, topic_name: str, partition: str) -> Response:
        """Messages as JSON, from `?offset=` on or else the last ones, without claiming them."""
        limit = page_limit(request, PEEK_LIMIT)
        bytes_max = self._context.settings.limits.reply_bytes
        first = number("offset", request.query["offset"]) if "offset" in request.query else None
        log_range = await self._range(topic_name, number("partition", partition))
        if isinstance(log_range, Rejected):
            return refusal(log_range)
        log, start, end = log_range
        offset = first if first is not None else max(start, end - limit)
        error_response = log_range.refuses(offset)
        if error_response is not None:
            return error_response
        try:
            batches = await self._engine.read_cold(log.log_id, offset, min(end, offset + limit), bytes_max)
        except CorruptLog as error:
            return _damaged(log, error)
        messages: list[bytes] = []
        for batch in batches:
            header = read_header(batch)
            at = max(offset, header.first_offset)
            count = min(end, offset + limit, header.end_offset) - at
            bytes_max -= _add_messages(messages, batch, log.partition, at, count, bytes_max)
            if bytes_max <= 0:
                break
            await asyncio.sleep(0)  # unpacking one batch is enough for one turn of the loop
        # A MessagesReply, around messages that are JSON already.
        body = b'{"messages":[%b],"start_offset":%d,"end_offset":%d}\n' % (b",".join(messages), start, end)
        return Response(200, body)

    async def offsets_of_topics(self, request: Request) -> Response:
        """The offsets of many topics: one call for a reader of a thousand topics."""
        body = read_json(request.body, OffsetsRequest)
        for name in body.topics:
            require_any_topic(request, name)
        topics: list[TopicOffsets] = []
        answered = 0
        async for rows in slices(self._engine.queries, lambda view: _topic_rows(view, body.topics)):
            answered = rows[-1][0]
            for _, topic in rows:
                if topic is not None:
                    topics.append(await self._identified(topic) if body.last else topic.offsets)
        return json_response(TopicOffsetsReply(topics, answered, self._instance if body.last else ""))

    async def _identified(self, topic: _TopicRow) -> TopicOffsets:
        """With the last batches, which are read when the query is answered: the log store has them then."""
        partitions: list[LogOffsets] = []
        for log_id, log in zip(topic.log_ids, topic.offsets.partitions, strict=True):
            if len(partitions) % LAST_AT_ONCE == LAST_AT_ONCE - 1:
                await asyncio.sleep(0)
            partitions.append(replace(log, last=await _last_batch(self._engine, log_id, log.start, log.end)))
        await asyncio.sleep(0)
        return replace(topic.offsets, partitions=partitions)

    def offsets(self, request: Request, topic_name: str) -> Answer:
        """The start and the end of each partition; with `?at=` also the first offset at or after a time, and with
        `?last=true` what identifies the last batch."""
        at_ms = start_of(request.query["at"]) if "at" in request.query else None

        def look(view: StateView) -> Mapping[int, PartitionOffsets] | Rejected:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return no_such_topic(topic_name)
            partitions = {}
            for log_id in topic.log_ids:
                log = view.state.logs[log_id]
                at = view.reader.offset_at(log_id, at_ms) if isinstance(at_ms, int) else None
                partitions[log_id] = PartitionOffsets(log.partition, log.start, log.end, at)
            return partitions

        def respond(partitions: Mapping[int, PartitionOffsets] | Rejected) -> Response:
            if isinstance(partitions, Rejected):
                return refusal(partitions)
            return json_response(OffsetsReply(topic_name, list(partitions.values())))

        if request.query.get("last") == "true":
            return self._offsets_with_last(topic_name, look)
        return self._context.query(lambda view: respond(look(view)))

    async def _offsets_with_last(
        self, topic_name: str, look: Callable[[StateView], Mapping[int, PartitionOffsets] | Rejected]
    ) -> Response:
        """The last batches are read when the query is answered: the log store has them then."""
        partitions = await self._engine.queries.result(look)
        if isinstance(partitions, Rejected):
            return refusal(partitions)
        identified = [
            replace(offsets, last=await _last_batch(self._engine, log_id, offsets.start, offsets.end))
            for log_id, offsets in partitions.items()
        ]
        return json_response(OffsetsReply(topic_name, identified, self._instance))


class _TopicRow(NamedTuple):
    """The offsets of a topic, and its logs."""

    offsets: TopicOffsets
    log_ids: tuple[int, ...]


def _topic_rows(view: StateView, names: list[str]) -> Iterator[tuple[int, _TopicRow | None]]:
    """For each name how many names are done with it, and the topic if it exists."""
    partitions = 0
    for answered, name in enumerate(names, 1):
        topic = view.state.topics.get(name)
        if topic is None:
            yield answered, None
            continue
        logs = [view.state.logs[log_id] for log_id in topic.log_ids]
        rows = [LogOffsets(log.partition, log.start, log.end, log.bytes_from(log.start)) for log in logs]
        yield answered, _TopicRow(TopicOffsets(name, to_rfc3339(topic.created_ms), rows), topic.log_ids)
        partitions += len(rows)
        if partitions >= PARTITIONS_MAX:
            return


async def _last_batch(engine: Engine, log_id: int, start: int, end: int) -> str:
    """What identifies the batch that ends at `end`; empty if there is none that can be read."""
    if start >= end:
        return ""
    try:
        batches = await engine.read_cold(log_id, end - 1, end, 1)
    except CorruptLog:
        return ""
    return batch_identity(read_header(batches[0])) if batches else ""


class StreamRecordsHandlers:
    """The handler of `/v1/streams/records`: ranges of a stream's packed batches."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def fetch(self, request: Request) -> Answer:
        """Whole batches from `?offset=` (or the start) up to `?end=` (or the end). With `end=0` only the headers, which
        report where the stream starts and ends. `?locate=true` as for a partition."""
        query = request.query
        path = query.get("stream", "").strip("/")
        if not path:
            raise BadRequest("stream is missing: the path of a stream")
        require_stream(request, READ, path)
        offset = number("offset", query["offset"]) if "offset" in query else None
        end, bytes_max = _end(request), _bytes_max(request)
        stream = self._engine.latest_state.streams.by_path.get(path)
        created_at = to_rfc3339(stream.created.at_ms) if stream is not None else ""

        locates = flag(request, "locate")

        def respond(view: StreamView) -> Response:
            first = view.start_offset if offset is None else offset
            return self._respond(view, first, end, bytes_max, created_at, locates=locates)

        return self._context.ask(ReadStream(path, renews=end != 0), respond)

    def _respond(
        self, view: StreamView, offset: int, end: int, bytes_max: int, created_at: str, *, locates: bool
    ) -> Response:
        if offset < view.start_offset:
            message = f"offset {offset} is gone: the stream begins at {view.start_offset}"
            return refused(Code.GONE, message, {"earliest_offset": view.start_offset})
        if offset > view.end_offset:
            return refused(Code.INVALID_ARGUMENT, f"offset {offset} is past the end ({view.end_offset})")
        created = ("Driftq-Created-At", created_at)
        try:
            chunk = self._read(view, offset, min(end, view.end_offset), bytes_max)
        except ColdRange as cold:
            if not locates:
                raise
            body, next_offset = _located(cold)
            headers = [*_span_headers(next_offset, view.start_offset, view.end_offset), created]
            return Response(200, body, headers=headers)
        if isinstance(chunk, Response):
            return chunk
        headers = [*_span_headers(chunk.next_offset, view.start_offset, view.end_offset), created]
        if end == 0 and view.end_offset > view.start_offset:
            last = self._read(view, view.end_offset - 1, view.end_offset, 1)
            if isinstance(last, _PackedChunk) and last.batches:
                headers.append(("Driftq-Last-Batch", batch_identity(read_header(last.batches[0]))))
        return Response(200, chunk.batches, PACKED_RANGE_TYPE, headers)

    def _read(self, view: StreamView, offset: int, end: int, bytes_max: int) -> _PackedChunk | Response:
        """Batches of the stream, which may lie in several logs: a fork begins with those of its origin."""
        batches: list[bytes] = []
        size = 0
        for log_id, first, stop in ranges_of(view, offset, end):
            while offset < stop and (size < bytes_max or not batches):
                try:
                    read = self._engine.read(log_id, max(offset, first), stop, max(1, bytes_max - size))
                except ColdRange:
                    if batches:
                        return _PackedChunk(batches, offset)
                    raise
                except CorruptLog as error:
                    if batches:
                        return _PackedChunk(batches, offset)
                    return _damaged(self._engine.latest_state.logs[log_id], error)
                if not read:
                    return _PackedChunk(batches, offset)  # the stream was deleted in the meantime
                batches += read
                size += sum(map(len, read))
                reached = read_header(read[-1]).end_offset
                offset = min(stop, reached)
                if reached > stop:
                    return _PackedChunk(batches, offset)
            if offset < stop:
                break
        return _PackedChunk(batches, offset)


def _add_messages(messages: list[bytes], batch: bytes, partition: int, offset: int, count: int, bytes_max: int) -> int:
    """Add `count` messages of a batch as JSON, as far as they fit; the first of a reply does. Returns what they took,
    or `bytes_max` if not all of them fit."""
    header = read_header(batch)
    size = 0
    for record in unpack(batch, header, first=offset - header.first_offset, count=count):
        front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (partition, offset, header.at_ms)
        message = front + content(record) + b"}"
        size += len(message)
        if size > bytes_max and messages:
            return bytes_max
        messages.append(message)
        offset += 1
    return size


class _PackedChunk(NamedTuple):
    batches: list[bytes]
    next_offset: int


def _located(cold: ColdRange) -> tuple[bytes, int]:
    """Where records are that are only in the archive, and the offset after them."""
    runs, next_offset = cold.runs()
    place = cold.place
    parts = [(run.size_bytes, run.crc) for run in runs]
    return encoded(ArchivedRange(place.url, place.key, runs[0].position, parts)) + b"\n", next_offset


def _span_headers(next_offset: int, start: int, end: int) -> list[tuple[str, str]]:
    offsets = (("Next", next_offset), ("Start", start), ("End", end))
    return [(f"Driftq-{name}-Offset", str(offset)) for name, offset in offsets]


def _end(request: Request) -> int:
    return number("end", request.query["end"]) if "end" in request.query else SAFE_INTEGER_MAX + 1


def _bytes_max(request: Request) -> int:
    return min(FETCH_BYTES_MAX, number("max_bytes", request.query.get("max_bytes", str(FETCH_BYTES))))


def _damaged(log: Log, error: CorruptLog) -> Response:
    """Damage is reported as such, unless a repair by an older version withdrew the records: those are gone."""
    if error.offset in log.cancelled:
        message = f"the record at offset {error.offset} was lost to damage, and the loss was accepted by a repair"
        return refused(Code.GONE, message, {"lost_from": error.offset, "next_offset": error.end_offset})
    return refused(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder")
