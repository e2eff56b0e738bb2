"""Reading a topic without a group: ranges of packed records for readers that keep their own offsets, and a look by
eye."""

from __future__ import annotations

from driftq.core.groups import Topic
from driftq.core.logs import Log
from driftq.core.replies import Rejected
from driftq.core.rules.topics import bad_partition, no_such_topic
from driftq.server.bodies import number
from driftq.server.context import Context, json_response
from driftq.server.faces.queue import start_of
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.lines import content
from driftq.server.problems import error_response, refusal
from driftq.storage.damage import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.records import read_header, unpack

BATCHES = "application/x-driftq-batches"
FETCH_BYTES = 4 << 20
FETCH_BYTES_MAX = 16 << 20
PEEK_MAX = 1_000


class FetchFace:
    """Handlers of ranges."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine

    async def fetch(self, request: Request, topic_name: str, partition: str) -> Response:
        """Whole batches from `?offset=`; the first may begin before it. Waits up to `?wait_ms=` for something new."""
        log = self._log(topic_name, partition)
        if isinstance(log, Rejected):
            return refusal(log)
        offset = number("offset", request.query.get("offset", "0"))
        end = number("end", request.query["end"]) if "end" in request.query else 2**53
        most = min(FETCH_BYTES_MAX, number("max_bytes", request.query.get("max_bytes", str(FETCH_BYTES))))
        wait_ms = min(60_000, number("wait_ms", request.query.get("wait_ms", "0")))
        refused = self._out_of_range(log, offset)
        if refused is not None:
            return refused
        if wait_ms and offset >= self._engine.durable_end(log.log_id):
            await self._engine.watch.log(log.log_id, wait_ms / 1_000)
            refused = self._out_of_range(log, offset)  # it may have been trimmed or deleted meanwhile
            if refused is not None:
                return refused
        try:
            batches = self._engine.read(log.log_id, offset, end, most)
        except CorruptLog as error:
            return damaged(log, error)
        next_offset = read_header(batches[-1]).end_offset if batches else offset
        return Response(200, batches, BATCHES, self._positions(log, next_offset))

    def _positions(self, log: Log, next_offset: int) -> list[tuple[str, str]]:
        return [
            ("Driftq-Next-Offset", str(next_offset)),
            ("Driftq-Start-Offset", str(log.start)),
            ("Driftq-End-Offset", str(self._engine.durable_end(log.log_id))),
        ]

    def _log(self, topic_name: str, partition: str) -> Log | Rejected:
        topic: Topic | None = self._engine.state.topics.get(topic_name)
        if topic is None:
            return no_such_topic(topic_name)
        index = number("partition", partition)
        if index >= len(topic.log_ids):
            return bad_partition(index, topic)
        return self._engine.state.logs[topic.log_ids[index]]

    def _out_of_range(self, log: Log, offset: int) -> Response | None:
        if log.log_id not in self._engine.state.logs:
            return error_response(404, "NOT_FOUND", "the topic was deleted")
        if offset < log.start:
            message = f"offset {offset} is gone: the log begins at {log.start}"
            return error_response(410, "GONE", message, {"earliest_offset": log.start})
        end = self._engine.durable_end(log.log_id)
        if offset > end:
            return error_response(400, "INVALID_ARGUMENT", f"offset {offset} lies behind the end ({end})")
        return None

    def peek(self, request: Request, topic_name: str, partition: str) -> Answer:
        """Messages as JSON, from `?offset=` (default: the last ones), without claiming them."""
        log = self._log(topic_name, partition)
        if isinstance(log, Rejected):
            return refusal(log)
        limit = number("limit", request.query.get("limit", "10"))
        if not 1 <= limit <= PEEK_MAX:
            raise BadRequest(f"limit must be 1 to {PEEK_MAX}")
        end = self._engine.durable_end(log.log_id)
        offset = number("offset", request.query["offset"]) if "offset" in request.query else max(log.start, end - limit)
        refused = self._out_of_range(log, offset)
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
        body = b'{"messages":[%b],"start_offset":%d,"end_offset":%d}\n' % (b",".join(items), log.start, end)
        return Response(200, body)

    def offsets(self, request: Request, topic_name: str) -> Answer:
        """Start and end of each partition; with `?at=` also the first offset at or after a time."""
        topic = self._engine.state.topics.get(topic_name)
        if topic is None:
            return refusal(no_such_topic(topic_name))
        at = start_of(request.query["at"]) if "at" in request.query else None
        found = []
        for log_id in topic.log_ids:
            log = self._engine.state.logs[log_id]
            entry = {"partition": log.partition, "start": log.start, "end": self._engine.durable_end(log_id)}
            if isinstance(at, int):
                entry["at"] = self._engine.sequencer.broker.reader.offset_at(log_id, at)
            found.append(entry)
        return json_response({"topic": topic_name, "partitions": found})


def damaged(log: Log, error: CorruptLog) -> Response:
    """Records that a repair gave up are gone; any others are damage that somebody should look at."""
    for first, end in log.lost:
        if first <= error.offset < end:
            message = f"offsets {first} to {end - 1} were lost to damage, and the loss was accepted by a repair"
            return error_response(410, "GONE", message, {"lost_from": first, "next_offset": end})
    return refusal(Rejected(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder"))
