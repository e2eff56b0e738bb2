"""The durable streams of `/v1/stream/{path}` as operations. Their protocol lives in headers; errors are plain text."""

from __future__ import annotations

from typing import Any

from driftq.server.documenting.operation import ANY, BYTES, PLAIN, Operation, Query, Reply
from driftq.wire import streams as w

ROUTE = ("*", "/v1/stream/*")
PATH = "/v1/stream/{path}"

_POSITION = (w.NEXT_OFFSET,)
_OFFSET = Query("offset", str, "Where to read from: a token of an earlier answer, -1 for the start, now for the end.")

STREAM_OPERATIONS: dict[str, Operation] = {
    "PUT": Operation(
        "Create a stream, or a fork of one",
        "streams",
        {
            201: Reply("It is there now.", headers=(*_POSITION, "Location")),
            200: Reply("It was there, just so.", headers=_POSITION),
        },
        {BYTES: bytes, "application/json": Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 413, 422, 429),
        headers=(w.TTL, w.EXPIRES_AT, w.CLOSED, w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET),
    ),
    "POST": Operation(
        "Append to a stream, close it, or both",
        "streams",
        {
            204: Reply("It is on disk, or was before.", headers=_POSITION),
            200: Reply("It is on disk (a producer that declares its epoch).", headers=_POSITION),
            201: Reply("It is on disk (a producer whose epoch the server keeps).", headers=_POSITION),
        },
        {BYTES: bytes, "application/json": Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 412, 413, 422, 429),
        headers=(w.PRODUCER_ID, w.PRODUCER_EPOCH, w.PRODUCER_SEQ, w.SEQ, w.CLOSED, "If-Match"),
    ),
    "GET": Operation(
        "Read a stream: catch up, wait (`live=long-poll`), or follow (`live=sse`)",
        "streams",
        {
            200: Reply("What is there, as the stream's own type or as events.", bytes, ANY, _POSITION),
            204: Reply("Nothing came in time; ask again from here.", headers=_POSITION),
            304: Reply("Nothing has changed."),
        },
        query=(
            _OFFSET,
            Query("live", str, "long-poll or sse."),
            Query("cursor", str, "Echo of the last answer's cursor."),
        ),
        errors=(400, 404, 410),
        headers=("If-None-Match",),
    ),
    "HEAD": Operation(
        "A stream's type, end and lifetime",
        "streams",
        {200: Reply("In headers.", headers=_POSITION)},
        errors=(400, 404, 410),
    ),
    "DELETE": Operation("Delete a stream", "streams", {204: Reply("It is gone.")}, errors=(400, 404, 405, 409, 410)),
}
