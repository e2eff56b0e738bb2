"""Ranges of a stream's packed records, for readers that keep their own offsets: what `…/records` is for a partition.

A fork's records lie in several logs. A batch of the source that reaches beyond the fork's point ends its answer, and
`Driftq-Next-Offset` says how much of it counts: readers take nothing at or behind that offset.
"""

from __future__ import annotations

from typing import NamedTuple

from driftq.core import commands as c
from driftq.core.replies import StreamView
from driftq.server.bodies import number
from driftq.server.context import Context
from driftq.server.faces.fetch import BATCHES, FETCH_BYTES, FETCH_BYTES_MAX, damaged
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.problems import error_response
from driftq.server.streams.reading import ranges_of
from driftq.storage.damage import CorruptLog
from driftq.wire.records import read_header
from driftq.wire.times import to_rfc3339


class _Found(NamedTuple):
    batches: list[bytes]
    next_offset: int


class StreamRecordsFace:
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

        return self._context.ask(c.ReadStream(path, renews=end != 0), respond)

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
