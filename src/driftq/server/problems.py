"""Refusals as HTTP: one table from the broker's codes to status and wire code. Every error has the same shape."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import json

from driftq.core.replies import Rejected
from driftq.server.http import Request, Response
from driftq.wire.errors import Code


class Problem(NamedTuple):
    """How a code is shown: existing clients know some words under other names."""

    status: int
    error: str


QUEUE_PROBLEMS = {
    Code.INVALID_ARGUMENT: Problem(400, "INVALID_ARGUMENT"),
    Code.NOT_FOUND: Problem(404, "NOT_FOUND"),
    Code.ALREADY_EXISTS: Problem(409, "ALREADY_EXISTS"),
    Code.CONFLICT: Problem(409, "CONFLICT"),
    Code.CLOSED: Problem(409, "CLOSED"),
    Code.GONE: Problem(410, "GONE"),
    Code.NOT_OWNER: Problem(409, "FAILED_PRECONDITION"),
    Code.NOT_DELIVERED: Problem(400, "INVALID_ARGUMENT"),
    Code.STALE_EPOCH: Problem(409, "STALE_EPOCH"),
    Code.SEQUENCE_GAP: Problem(409, "SEQUENCE_GAP"),
    Code.SEQUENCE_MISMATCH: Problem(409, "SEQUENCE_MISMATCH"),
    Code.SEQUENCE_REGRESSION: Problem(409, "SEQUENCE_REGRESSION"),
    Code.TAIL_MOVED: Problem(412, "TAIL_MOVED"),
    Code.KEY_CONFLICT: Problem(409, "KEY_CONFLICT"),
    Code.BUSY: Problem(409, "BUSY"),
    Code.OVERLOADED: Problem(429, "RESOURCE_EXHAUSTED"),
    Code.DISK_FULL: Problem(507, "DISK_FULL"),
    Code.TOO_LARGE: Problem(413, "TOO_LARGE"),
    Code.DEADLINE_EXCEEDED: Problem(400, "DEADLINE_EXCEEDED"),
    Code.UNAVAILABLE: Problem(503, "UNAVAILABLE"),
    Code.DATA_CORRUPT: Problem(500, "DATA_CORRUPT"),
}

_BY_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "TOO_LARGE",
    414: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    417: "INVALID_ARGUMENT",
    431: "TOO_LARGE",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    505: "INVALID_ARGUMENT",
}


def refusal(rejected: Rejected) -> Response:
    """The response that belongs to a refusal; anything that may be tried again says when."""
    problem = QUEUE_PROBLEMS[rejected.code]
    headers: list[tuple[str, str]] = []
    retry_after_ms = rejected.details.get("retry_after_ms")
    if retry_after_ms is not None:
        headers.append(("Retry-After", str(max(1, -(-int(retry_after_ms) // 1_000)))))
    return error_response(problem.status, problem.error, rejected.message, rejected.details, headers)


def error_response(
    status: int,
    error: str,
    message: str,
    details: dict[str, Any] | None = None,
    headers: list[tuple[str, str]] | None = None,
) -> Response:
    body = {"error": error, "message": message, **(details or {})}
    return Response(status, json.encode(body) + b"\n", headers=headers or ())


def bad_request(status: int, message: str) -> Response:
    """For the connection layer: requests that never reached a route, and those a route could not understand."""
    return error_response(status, _BY_STATUS.get(status, "INVALID_ARGUMENT"), message)


def internal_error(request: Request, error: BaseException) -> Response:
    """A bug. The details are in the log, not in the answer."""
    return error_response(500, "INTERNAL", "the server failed on this request; its log says why")
