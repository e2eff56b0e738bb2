"""Responses of the durable-streams API: common headers, the status of each refusal, and the response to an append in
either dialect. Knows no rule and no log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import randint
from typing import TYPE_CHECKING

from msgspec import json

from driftq.server.http import Request, Response
from driftq.server.http.response import Buffer, header_lines
from driftq.server.streams.requests import Dialect
from driftq.wire import streams as w
from driftq.wire.errors import CODES, Code, retry_after_s
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.core.model.commands import AppendStream
    from driftq.core.model.replies import ProducerView, Rejected, StreamAppended, StreamReady, StreamView

Headers = list[tuple[str, str]]

METHODS = "GET, POST, PUT, DELETE, HEAD, OPTIONS"
_ASKED = (
    "Content-Type, Authorization, If-Match, If-None-Match, X-Request-Id, Traceparent",
    w.TTL, w.EXPIRES_AT, w.CLOSED, w.SEQ, w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET,
    w.PRODUCER_ID, w.PRODUCER_EPOCH, w.PRODUCER_SEQ,
    w.X_PRODUCER_ID, w.X_PRODUCER_EPOCH, w.X_PRODUCER_SEQ, w.X_SESSION,
    w.PRODUCER_GAPS, w.RETENTION_SECONDS, w.RETENTION_BYTES,
)  # fmt: skip
_SHOWN = (
    "ETag, Location, Content-Type, Content-Encoding, Vary, Retry-After",
    w.NEXT_OFFSET, w.CURSOR, w.UP_TO_DATE, w.CLOSED, w.SSE_ENCODING, w.TTL, w.EXPIRES_AT,
    w.PRODUCER_EPOCH, w.PRODUCER_SEQ, w.EXPECTED_SEQ, w.RECEIVED_SEQ,
    w.X_OFFSET, w.X_PRODUCER_EPOCH, w.X_EXPECTED_SEQ, w.X_RECEIVED_SEQ, w.X_ERROR, w.X_CURRENT_EPOCH,
    w.EARLIEST_OFFSET,
)  # fmt: skip
ON_ALL: Headers = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Access-Control-Expose-Headers", ", ".join(_SHOWN)),
]
_ON_ALL_LINES = header_lines(ON_ALL)
REQUEST_HEADERS = ", ".join(_ASKED)
TEXT = "text/plain; charset=utf-8"

CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 20


def respond(
    status: int, headers: Headers, body: bytes | Sequence[Buffer] = b"", content_type: str = w.JSON_TYPE
) -> Response:
    """A response with the common headers."""
    response = Response(status, body, content_type)
    response.extra = _ON_ALL_LINES + header_lines(headers) if headers else _ON_ALL_LINES
    return response


def failure(status: int, message: str, headers: Headers | None = None) -> Response:
    """A short text for people, not for programs."""
    return respond(status, headers or [], message.encode() + b"\n", TEXT)


def preflight(methods: str = METHODS) -> Response:
    """The response to a CORS preflight. `server.access.OriginGuard` adds the allowed origin; without it nothing is
    allowed."""
    allow: Headers = [
        ("Access-Control-Allow-Methods", methods),
        ("Access-Control-Allow-Headers", REQUEST_HEADERS),
        ("Access-Control-Max-Age", "600"),
    ]
    return respond(204, allow)


def not_allowed(methods: str) -> Response:
    return failure(405, "method not allowed", [("Allow", methods)])


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(rejected: Rejected, dialect: Dialect = Dialect.PLAIN) -> Response:
    details = rejected.details
    headers: Headers = []
    if "end_offset" in details:
        headers.append((w.NEXT_OFFSET, w.token(details["end_offset"])))
    if details.get("closed"):
        headers.append((w.CLOSED, "true"))
    match rejected.code:
        case Code.STALE_EPOCH:
            headers.append((w.PRODUCER_EPOCH, str(details["epoch"])))
            if dialect is Dialect.MANAGED:
                headers += [(w.X_ERROR, "stale-epoch"), (w.X_CURRENT_EPOCH, str(details["epoch"]))]
        case Code.SEQUENCE_GAP | Code.CLOSED if "expected_seq" in details:
            expected, received = str(details["expected_seq"]), str(details.get("received_seq", details["expected_seq"]))
            headers += [(w.EXPECTED_SEQ, expected), (w.RECEIVED_SEQ, received)]
            if dialect is Dialect.MANAGED:
                headers += [(w.X_EXPECTED_SEQ, expected), (w.X_RECEIVED_SEQ, received)]
        case Code.TAIL_MOVED:
            headers.append(("ETag", f'"{w.token(details["end_offset"])}"'))
        case _:
            pass
    if "retry_after_ms" in details:
        headers.append(("Retry-After", str(retry_after_s(int(details["retry_after_ms"])))))
    return failure(CODES[rejected.code].stream_status, rejected.message, headers)


# --- writes -----------------------------------------------------------------------------------------------------------


def created(reply: StreamReady, location: str) -> Response:
    headers: Headers = [(w.NEXT_OFFSET, w.token(reply.end_offset))]
    if reply.created:
        headers.append(("Location", location))
    if reply.closed:
        headers.append((w.CLOSED, "true"))
    return respond(201 if reply.created else 200, headers, b"", reply.content_type)


def appended(reply: StreamAppended, command: AppendStream, dialect: Dialect) -> Response:
    end = w.token(reply.end_offset)
    if dialect is Dialect.PLAIN and command.if_match is None and not reply.closed:
        # Nearly every response; a token needs no check.
        response = Response(204)
        response.extra = b"%bStream-Next-Offset: %b\r\n" % (_ON_ALL_LINES, end.encode())
        return response
    headers: Headers = [(w.NEXT_OFFSET, end)]
    if command.if_match is not None:
        headers.append(("ETag", f'"{end}"'))
    if reply.closed:
        headers.append((w.CLOSED, "true"))
    if dialect is Dialect.PLAIN:
        return respond(204, headers)
    headers += [(w.PRODUCER_EPOCH, str(reply.epoch)), (w.PRODUCER_SEQ, str(reply.seq))]
    wrote = command.count and not reply.duplicate
    if dialect is Dialect.DECLARED:
        return respond(200 if wrote else 204, headers, content_type="")
    headers += [(w.X_OFFSET, end), (w.X_PRODUCER_EPOCH, str(reply.epoch))]
    return respond(201 if wrote else 204, headers, content_type="")


# --- reads ------------------------------------------------------------------------------------------------------------


def described(view: StreamView) -> Response:
    headers: Headers = [(w.NEXT_OFFSET, w.token(view.end_offset)), ("Cache-Control", "no-store")]
    if view.start_offset:
        headers.append((w.EARLIEST_OFFSET, w.token(view.start_offset)))
    if view.ttl_s is not None:
        headers.append((w.TTL, str(view.ttl_s)))
    if view.expires_text:
        headers.append((w.EXPIRES_AT, view.expires_text))
    if view.closed:
        headers.append((w.CLOSED, "true"))
    return respond(200, headers, b"", view.content_type)


def below_start(view: StreamView) -> Response:
    earliest = w.token(view.start_offset)
    return failure(410, f"the stream begins at {earliest}", [(w.EARLIEST_OFFSET, earliest)])


def beyond_end(end: int) -> Response:
    """The offset was not issued by this stream: perhaps by an earlier one at the same path."""
    return failure(400, "the offset lies beyond the end of the stream", [(w.NEXT_OFFSET, w.token(end))])


def next_cursor(given: str | None) -> str:
    """The current interval. If the client has it already, a random later one, so that caches cannot loop."""
    current = int(time.time() - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S
    asked = w.safe_integer(given) if given else None
    if asked is None or asked < current:
        return str(current)
    return str(asked + max(1, randint(1, 3_600) // CURSOR_INTERVAL_S))


def cache_control(request: Request, *, settled: bool) -> str:
    """What can no longer change may be cached for a while; an open tail is revalidated by its ETag."""
    with_credential = request.identity is not None or b"authorization" in request.head.fields
    shared = "private" if with_credential else "public"
    return f"{shared}, max-age=60, stale-while-revalidate=300" if settled else f"{shared}, no-cache"


def has_etag(request: Request, etag: str) -> bool:
    """Whether the client has this response already (If-None-Match)."""
    given = request.head.fields.get(b"if-none-match")
    return given is not None and etag.encode() in [tag.strip().removeprefix(b"W/") for tag in given.split(b",")]


def producer(view: ProducerView) -> Response:
    known = view.end_offset >= 0
    body = w.ProducerReply(
        producer=view.producer,
        epoch=view.epoch,
        seq=view.seq,
        offset=w.token(view.first_offset) if known else None,
        next_offset=w.token(view.end_offset) if known else None,
        at=to_rfc3339(view.at_ms),
    )
    return respond(200, [("Cache-Control", "no-store")], json.encode(body) + b"\n")
