"""Reading stored records without a group, for readers that keep their own offsets.

Ranges of packed batches of a partition or a stream, a peek at messages as JSON, and the offsets of partitions. Where a
range lies is a query, which is answered when it is durable; the records are read after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.queries import ReadStream
from driftq.core.model.replies import Rejected, StreamView
from driftq.core.transitions.lookups import bad_partition, no_such_topic
from driftq.server.handlers.request_body import number, page_limit, start_of
from driftq.server.handlers.responses import json_response, refusal, refused
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.message_json import content
from driftq.server.streams.stream_body import ranges_of
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.fields import SAFE_INTEGER_MAX, to_rfc3339
from driftq.wire.produce import PACKED_RANGE_TYPE
from driftq.wire.records import read_header, unpack
from driftq.wire.topics import OffsetsReply, PartitionOffsets

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

FETCH_BYTES = 4 << 20
FETCH_BYTES_MAX = 16 << 20
FETCH_WAIT_MS_MAX = 60_000
PEEK_LIMIT = 10


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

    async def fetch(self, request: Request, topic_name: str, partition: str) -> Response:
        """Whole batches from `?offset=`; the first may begin before it. Waits up to `?wait_ms=` for a new record."""
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
            batches = self._engine.read(log_range.log.log_id, offset, end, bytes_max)
        except CorruptLog as error:
            return _damaged(log_range.log, error)
        next_offset = read_header(batches[-1]).end_offset if batches else offset
        headers = [
            ("Driftq-Next-Offset", str(next_offset)),
            ("Driftq-Start-Offset", str(log_range.start)),
            ("Driftq-End-Offset", str(max(log_range.end, next_offset))),
        ]
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
            batches = self._engine.read(log.log_id, offset, min(end, offset + limit), FETCH_BYTES_MAX)
        except CorruptLog as error:
            return _damaged(log, error)
        messages: list[bytes] = []
        for batch in batches:
            header = read_header(batch)
            at = max(offset, header.first_offset)
            count = min(end, offset + limit, header.end_offset) - at
            for record in unpack(batch, header, first=at - header.first_offset, count=count):
                front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (log.partition, at, header.at_ms)
                messages.append(front + content(record) + b"}")
                at += 1
        # A MessagesReply, around messages that are JSON already.
        body = b'{"messages":[%b],"start_offset":%d,"end_offset":%d}\n' % (b",".join(messages), start, end)
        return Response(200, body)

    def offsets(self, request: Request, topic_name: str) -> Answer:
        """The start and the end of each partition; with `?at=` also the first offset at or after a time."""
        at_ms = start_of(request.query["at"]) if "at" in request.query else None

        def look(view: StateView) -> Response:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return refusal(no_such_topic(topic_name))
            partitions = []
            for log_id in topic.log_ids:
                log = view.state.logs[log_id]
                at = view.reader.offset_at(log_id, at_ms) if isinstance(at_ms, int) else None
                partitions.append(PartitionOffsets(log.partition, log.start, log.end, at))
            return json_response(OffsetsReply(topic_name, partitions))

        return self._context.query(look)


class StreamRecordsHandlers:
    """The handler of `/v1/streams/records`: ranges of a stream's packed batches."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def fetch(self, request: Request) -> Answer:
        """Whole batches from `?offset=` (or the start) up to `?end=` (or the end). With `end=0` only the headers, which
        report where the stream starts and ends."""
        query = request.query
        path = query.get("stream", "").strip("/")
        if not path:
            raise BadRequest("stream is missing: the path of a stream")
        offset = number("offset", query["offset"]) if "offset" in query else None
        end, bytes_max = _end(request), _bytes_max(request)
        stream = self._engine.latest_state.streams.by_path.get(path)
        created_at = to_rfc3339(stream.created.at_ms) if stream is not None else ""

        def respond(view: StreamView) -> Response:
            return self._respond(view, view.start_offset if offset is None else offset, end, bytes_max, created_at)

        return self._context.ask(ReadStream(path, renews=end != 0), respond)

    def _respond(self, view: StreamView, offset: int, end: int, bytes_max: int, created_at: str) -> Response:
        if offset < view.start_offset:
            message = f"offset {offset} is gone: the stream begins at {view.start_offset}"
            return refused(Code.GONE, message, {"earliest_offset": view.start_offset})
        if offset > view.end_offset:
            return refused(Code.INVALID_ARGUMENT, f"offset {offset} is past the end ({view.end_offset})")
        chunk = self._read(view, offset, min(end, view.end_offset), bytes_max)
        if isinstance(chunk, Response):
            return chunk
        headers = [
            ("Driftq-Next-Offset", str(chunk.next_offset)),
            ("Driftq-Start-Offset", str(view.start_offset)),
            ("Driftq-End-Offset", str(view.end_offset)),
            ("Driftq-Created-At", created_at),
        ]
        return Response(200, chunk.batches, PACKED_RANGE_TYPE, headers)

    def _read(self, view: StreamView, offset: int, end: int, bytes_max: int) -> _PackedChunk | Response:
        """Batches of the stream, which may lie in several logs: a fork begins with those of its origin."""
        batches: list[bytes] = []
        size = 0
        for log_id, first, stop in ranges_of(view, offset, end):
            while offset < stop and (size < bytes_max or not batches):
                try:
                    read = self._engine.read(log_id, max(offset, first), stop, max(1, bytes_max - size))
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


class _PackedChunk(NamedTuple):
    batches: list[bytes]
    next_offset: int


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
