"""Reading a topic without a group: ranges of packed records for readers that keep their own offsets, and a look by
eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.queries import ReadStates, ReadStream
from driftq.core.model.replies import PendingView, Rejected, StatesView, StreamView
from driftq.core.transitions.lookups import bad_partition, no_such_topic
from driftq.server.handlers.base import Context, error_response, json_response, number, refusal
from driftq.server.handlers.queue import start_of
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.message_json import content
from driftq.server.streams.stream_body import ranges_of
from driftq.storage.corruption import CorruptLog
from driftq.wire.admin import PendingColumns, StatesInfo
from driftq.wire.errors import Code
from driftq.wire.message import to_rfc3339
from driftq.wire.records import read_header, unpack

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.engine.queries import StateView

BATCHES = "application/x-driftq-batches"
FETCH_BYTES = 4 << 20
FETCH_BYTES_MAX = 16 << 20
PEEK_MAX = 1_000


class _Range(NamedTuple):
    """A partition's log, and where it began and ended when it was looked at."""

    log: Log
    start: int
    end: int

    def refuses(self, offset: int) -> Response | None:
        if offset < self.start:
            message = f"offset {offset} is gone: the log begins at {self.start}"
            return error_response(410, "GONE", message, {"earliest_offset": self.start})
        if offset > self.end:
            return error_response(400, "INVALID_ARGUMENT", f"offset {offset} is past the end ({self.end})")
        return None


class FetchHandlers:
    """Handlers of ranges. Where a range lies is a query; its records are read when that is answered."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    async def fetch(self, request: Request, topic_name: str, partition: str) -> Response:
        """Whole batches from `?offset=`; the first may begin before it. Waits up to `?wait_ms=` for something new."""
        index = number("partition", partition)
        offset = number("offset", request.query.get("offset", "0"))
        end = number("end", request.query["end"]) if "end" in request.query else 2**53
        most = min(FETCH_BYTES_MAX, number("max_bytes", request.query.get("max_bytes", str(FETCH_BYTES))))
        wait_ms = min(60_000, number("wait_ms", request.query.get("wait_ms", "0")))
        found = await self._range(topic_name, index)
        if isinstance(found, _Range) and wait_ms and offset == found.end and not self._grew(found):
            await self._engine.watch.log(found.log.log_id, wait_ms / 1_000)
            found = await self._range(topic_name, index)  # it may have been trimmed or deleted in the meantime
        if isinstance(found, Rejected):
            return refusal(found)
        refused = found.refuses(offset)
        if refused is not None:
            return refused
        try:
            batches = self._engine.read(found.log.log_id, offset, end, most)
        except CorruptLog as error:
            return damaged(found.log, error)
        next_offset = read_header(batches[-1]).end_offset if batches else offset
        headers = [
            ("Driftq-Next-Offset", str(next_offset)),
            ("Driftq-Start-Offset", str(found.start)),
            ("Driftq-End-Offset", str(max(found.end, next_offset))),
        ]
        return Response(200, batches, BATCHES, headers)

    def _grew(self, found: _Range) -> bool:
        """Whether something arrived between the look and its answer."""
        return self._engine.queries.stored_end(found.log.log_id) > found.end

    async def _range(self, topic_name: str, partition: int) -> _Range | Rejected:
        def look(view: StateView) -> _Range | Rejected:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return no_such_topic(topic_name)
            if partition >= len(topic.log_ids):
                return bad_partition(partition, topic)
            log = view.state.logs[topic.log_ids[partition]]
            return _Range(log, log.start, log.end)

        return await self._engine.queries.result(look)

    async def peek(self, request: Request, topic_name: str, partition: str) -> Response:
        """Messages as JSON, from `?offset=` (default: the last ones), without claiming them."""
        limit = number("limit", request.query.get("limit", "10"))
        if not 1 <= limit <= PEEK_MAX:
            raise BadRequest(f"limit must be 1 to {PEEK_MAX}")
        asked = number("offset", request.query["offset"]) if "offset" in request.query else None
        found = await self._range(topic_name, number("partition", partition))
        if isinstance(found, Rejected):
            return refusal(found)
        log, start, end = found
        offset = asked if asked is not None else max(start, end - limit)
        refused = found.refuses(offset)
        if refused is not None:
            return refused
        items: list[bytes] = []
        try:
            batches = self._engine.read(log.log_id, offset, min(end, offset + limit), FETCH_BYTES_MAX)
        except CorruptLog as error:
            return damaged(log, error)
        for batch in batches:
            header = read_header(batch)
            first = max(offset, header.first_offset)
            count = min(end, offset + limit, header.end_offset) - first
            for record in unpack(batch, header, first=first - header.first_offset, count=count):
                front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (log.partition, first, header.at_ms)
                items.append(front + content(record) + b"}")
                first += 1
        body = b'{"messages":[%b],"start_offset":%d,"end_offset":%d}\n' % (b",".join(items), start, end)
        return Response(200, body)

    def offsets(self, request: Request, topic_name: str) -> Answer:
        """Start and end of each partition; with `?at=` also the first offset at or after a time."""
        at = start_of(request.query["at"]) if "at" in request.query else None

        def look(view: StateView) -> Response:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return refusal(no_such_topic(topic_name))
            found = []
            for log_id in topic.log_ids:
                log = view.state.logs[log_id]
                entry = {"partition": log.partition, "start": log.start, "end": log.end}
                if isinstance(at, int):
                    entry["at"] = view.reader.offset_at(log_id, at)
                found.append(entry)
            return json_response({"topic": topic_name, "partitions": found})

        return self._context.query(look)


def damaged(log: Log, error: CorruptLog) -> Response:
    """Damage is reported as such, unless a repair by an older version withdrew the records: those are gone."""
    if error.offset in log.cancelled:
        message = f"the record at offset {error.offset} was lost to damage, and the loss was accepted by a repair"
        return error_response(410, "GONE", message, {"lost_from": error.offset, "next_offset": error.end_offset})
    return refusal(Rejected(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder"))


# --- Ranges of a stream's packed records, for readers that keep their own offsets: what `…/records` is for a
# partition


class _Found(NamedTuple):
    batches: list[bytes]
    next_offset: int


class StreamRecordsHandlers:
    """Handler of `/v1/streams/records`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def read(self, request: Request) -> Answer:
        """Whole batches from `?offset=` (the start) up to `?end=` (the end); `end=0` only asks where they are."""
        query = request.query
        path = query.get("stream", "").strip("/")
        if not path:
            raise BadRequest("stream is missing: the path of a stream")
        offset = number("offset", query["offset"]) if "offset" in query else None
        end = number("end", query["end"]) if "end" in query else 2**53
        most = min(FETCH_BYTES_MAX, number("max_bytes", query.get("max_bytes", str(FETCH_BYTES))))
        stream = self._engine.latest_state.streams.by_path.get(path)
        made = to_rfc3339(stream.created.at_ms) if stream is not None else ""

        def respond(view: StreamView) -> Response:
            return self._answer(view, view.start_offset if offset is None else offset, end, most, made)

        return self._context.ask(ReadStream(path, renews=end != 0), respond)

    def _answer(self, view: StreamView, offset: int, end: int, most: int, made: str) -> Response:
        if offset < view.start_offset:
            message = f"offset {offset} is gone: the stream begins at {view.start_offset}"
            return error_response(410, "GONE", message, {"earliest_offset": view.start_offset})
        if offset > view.end_offset:
            message = f"offset {offset} is past the end ({view.end_offset})"
            return error_response(400, "INVALID_ARGUMENT", message)
        found = self._batches(view, offset, min(end, view.end_offset), most)
        if isinstance(found, Response):
            return found
        headers = [
            ("Driftq-Next-Offset", str(found.next_offset)),
            ("Driftq-Start-Offset", str(view.start_offset)),
            ("Driftq-End-Offset", str(view.end_offset)),
            ("Driftq-Created-At", made),
        ]
        return Response(200, found.batches, BATCHES, headers)

    def _batches(self, view: StreamView, offset: int, end: int, most: int) -> _Found | Response:
        found: list[bytes] = []
        size = 0
        for log_id, first, stop in ranges_of(view, offset, end):
            while offset < stop and (size < most or not found):
                try:
                    batches = self._engine.read(log_id, max(offset, first), stop, max(1, most - size))
                except CorruptLog as error:
                    return _Found(found, offset) if found else damaged(self._engine.latest_state.logs[log_id], error)
                if not batches:
                    return _Found(found, offset)  # it was deleted meanwhile
                found += batches
                size += sum(map(len, batches))
                reached = read_header(batches[-1]).end_offset
                offset = min(stop, reached)
                if reached > stop:
                    return _Found(found, offset)
            if offset < stop:
                break
        return _Found(found, offset)


# --- The state of a group's messages as a table: one page of columns for a range of a partition ---


LIMIT = 1_000
LIMIT_MAX = 10_000


class StatesHandlers:
    """Handler of states."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def read(self, request: Request, topic: str, group: str) -> Answer:
        query = request.query
        partition = number("partition", query.get("partition", "0"))
        offset = number("offset", query["offset"]) if "offset" in query else None
        end = number("end", query["end"]) if "end" in query else None
        limit = number("limit", query["limit"]) if "limit" in query else LIMIT
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest(f"limit must be 1 to {LIMIT_MAX}")

        def respond(view: StatesView) -> Response:
            shown = StatesInfo(
                topic, group, partition, view.floor, view.offset, view.next_offset, view.end, list(view.settled),
                _columns(view.pending),
            )  # fmt: skip
            return json_response(shown)

        return self._context.ask(ReadStates(topic, group, partition, offset, end, limit), respond)


def _columns(pending: tuple[PendingView, ...]) -> PendingColumns:
    times: dict[int, str | None] = {0: None}  # a claim's messages share their lease
    for each in pending:
        for at_ms in (each.until_ms, each.retry_at_ms):
            if at_ms not in times:
                times[at_ms] = to_rfc3339(at_ms)
    return PendingColumns(
        [each.offset for each in pending],
        [each.state for each in pending],
        [each.attempts for each in pending],
        [each.owner or None for each in pending],
        [times[each.until_ms] for each in pending],
        [times[each.retry_at_ms] for each in pending],
        [each.error for each in pending],
    )
