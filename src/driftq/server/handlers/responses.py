"""Responses of the queue API: JSON bodies and errors. Every error has the shape of `wire.errors.ErrorBody`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import json

from driftq.server.http.response import Response
from driftq.wire.errors import CODES, HTTP_ERRORS, Code, error_fields, retry_after_s

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.server.http import Request

_encode = json.Encoder().encode


def json_response(body: object, status: int = 200) -> Response:
    return Response(status, _encode(body) + b"\n")


def no_content(_: object = None) -> Response:
    return Response(204)


def refusal(rejected: Rejected) -> Response:
    """The response to a refusal of the broker. One that may be retried has a Retry-After header."""
    spec = CODES[rejected.code]
    headers: list[tuple[str, str]] = []
    retry_after_ms = rejected.details.get("retry_after_ms")
    if retry_after_ms is not None:
        headers.append(("Retry-After", str(retry_after_s(int(retry_after_ms)))))
    return error_response(spec.status, spec.error, rejected.message, rejected.details, headers)


def refused(code: Code, message: str, details: dict[str, Any] | None = None) -> Response:
    """A refusal that a handler decides itself."""
    spec = CODES[code]
    return error_response(spec.status, spec.error, message, details)


def error_response(
    status: int,
    error: str,
    message: str,
    details: dict[str, Any] | None = None,
    headers: list[tuple[str, str]] | None = None,
) -> Response:
    return Response(status, _encode(error_fields(error, message, details)) + b"\n", headers=headers or ())


def bad_request(status: int, message: str) -> Response:
    """For the HTTP layer: requests that reached no handler, and those that a handler could not parse."""
    return error_response(status, HTTP_ERRORS.get(status, HTTP_ERRORS[400]), message)


def internal_error(request: Request, error: BaseException) -> Response:
    """For a bug. The details are in the log, not in the response."""
    return error_response(500, HTTP_ERRORS[500], "the server failed on this request; its log says why")
