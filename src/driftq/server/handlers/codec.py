"""Requests and responses of the queue API as typed bodies.

A request is decoded from its JSON body if there is one, else from its query string, into the same type. A response is a
JSON body; every error has the shape of `wire.errors.ErrorBody`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import msgspec.inspect

from driftq.server.http.request import BadRequest
from driftq.server.http.response import Response
from driftq.settings.suggestions import closest
from driftq.wire.errors import CODES, HTTP_ERRORS, Code, error_fields, retry_after_s
from driftq.wire.fields import from_rfc3339
from driftq.wire.produce import ANY

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.server.http import Request


# --- requests ---

T = TypeVar("T")

PAGE_LIMIT_MAX = 1_000

LARGE_BYTES = 256 << 10
ENVELOPE_JSON_BYTES_MAX = 512 << 10  # what 64 KiB can take with every character escaped, and blanks

_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_FLAGS = {"true": True, "false": False}
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(\w{1,64})`(?: - at `(\$[\w.]{0,200})`)?", re.ASCII)
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


class _MessageShape(msgspec.Struct):
    """A message of which only the envelope is located."""

    envelope: msgspec.Raw = msgspec.Raw(b"")


def read(
    request: Request,
    body_type: type[T],
    numbers: frozenset[str],
    aliases: Mapping[str, str] | None = None,
    flags: frozenset[str] = frozenset(),
) -> T:
    """The parameters of a request. `numbers` and `flags` name the query parameters that are not text; `aliases` maps
    other names of query parameters to fields. Unknown query parameters are ignored."""
    if request.body:
        return read_json(request.body, body_type)
    values: dict[str, Any] = {}
    fields = body_type.__struct_encode_fields__  # type: ignore[attr-defined]
    for name, text in request.query.items():
        name = (aliases or {}).get(name, name)
        if name in fields and name not in values:
            values[name] = number(name, text) if name in numbers else _FLAGS.get(text, text) if name in flags else text
    return from_query(values, body_type)


def from_query(values: dict[str, Any], body_type: type[T]) -> T:
    try:
        return msgspec.convert(values, body_type)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid parameters: {error}") from None


def read_json(body: bytes, body_type: type[T]) -> T:
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type)
    try:
        decoded: T = decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"invalid json body: {error}{_hint(str(error), body_type)}") from None
    except UnicodeDecodeError:
        raise BadRequest("invalid json body: it is not UTF-8") from None
    except RecursionError:
        raise BadRequest("invalid json body: nested too deeply") from None
    return decoded


def _hint(message: str, body_type: type) -> str:
    """For a field that does not exist: the one that was meant, if there is one like it."""
    unknown = _UNKNOWN_FIELD.fullmatch(message)
    if unknown is None:
        return ""
    names = closest(unknown[1], _fields_at(body_type, unknown[2] or "$"), 1, least=0.75)
    return f"; did you mean {names[0]}?" if names else ""


@cache
def _fields_at(body_type: type, path: str) -> tuple[str, ...]:
    """The fields of the object at a path like `$.envelope`."""
    kind: Any = msgspec.inspect.type_info(body_type)
    for name in path.split(".")[1:]:
        kind = next((field.type for field in kind.fields if field.encode_name == name), None)
        members = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        kind = next((member for member in members if isinstance(member, msgspec.inspect.StructType)), None)
        if kind is None:
            return ()
    return tuple(field.encode_name for field in kind.fields) if isinstance(kind, msgspec.inspect.StructType) else ()


def read_message(body: bytes, body_type: type[T]) -> T:
    """`read_json` for one message. The envelope of a large body is measured before it is decoded: the value is one
    text, but an envelope could have a million labels."""
    if len(body) > LARGE_BYTES:
        size = len(bytes(read_json(body, _MessageShape).envelope))
        if size > ENVELOPE_JSON_BYTES_MAX:
            raise BadRequest(
                f"the envelope has {size} bytes as JSON, more than its limits allow: put data into the value"
            )
    return read_json(body, body_type)


def number(name: str, text: str) -> int:
    if not text:
        raise BadRequest(f"{name} is missing")
    if not _DIGITS.fullmatch(text):
        raise BadRequest(f"invalid {name}")
    return int(text)


def page_limit(request: Request, default: int = 100, limit_max: int = PAGE_LIMIT_MAX) -> int:
    """The number of entries per page."""
    limit = number("limit", request.query["limit"]) if "limit" in request.query else default
    if not 1 <= limit <= limit_max:
        raise BadRequest(f"limit must be 1 to {limit_max}")
    return limit


def page_cursor(pattern: re.Pattern[str], after: str) -> re.Match[str] | None:
    """The cursor of a page; None for the first page."""
    match = pattern.fullmatch(after)
    if after and match is None:
        raise BadRequest("invalid after: use that of the page before")
    return match if after else None


def optional_time(query: Mapping[str, str], name: str) -> int | None:
    """A query parameter that is a time, in milliseconds."""
    if not query.get(name):
        return None
    try:
        return from_rfc3339(query[name])
    except ValueError:
        raise BadRequest(f"invalid {name}: an RFC 3339 time") from None


def flag(request: Request, name: str) -> bool:
    """A query parameter that is true or false."""
    text = request.query.get(name, "false")
    if text not in _FLAGS:
        raise BadRequest(f"invalid {name}: true or false")
    return _FLAGS[text]


def start_of(text: str) -> str | int:
    """Where a group starts: "earliest", "latest", or a time in milliseconds."""
    if text in ("earliest", "latest"):
        return text
    try:
        return from_rfc3339(text)
    except ValueError:
        raise BadRequest("invalid start: earliest, latest or an RFC 3339 time") from None


def any_of(partition: str | None) -> Literal["any"] | None:
    """The query parameter `partition` of calls in which it can only be "any"."""
    if partition is None:
        return None
    if partition != ANY:
        raise BadRequest('invalid partition: only "any"; partition_override names one')
    return ANY


# --- responses ---

encoded = msgspec.json.Encoder().encode
_HTTP_HEADERS = {
    401: [("WWW-Authenticate", "Bearer")],
    429: [("Retry-After", "1")],
    503: [("Retry-After", "1")],
}


def json_response(body: object, status: int = 200) -> Response:
    return Response(status, encoded(body) + b"\n")


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
    return Response(status, encoded(error_fields(error, message, details)) + b"\n", headers=headers or ())


def bad_request(status: int, message: str) -> Response:
    """For the HTTP layer: requests that reached no handler, and those that a handler could not parse."""
    headers = _HTTP_HEADERS.get(status)
    return error_response(status, HTTP_ERRORS.get(status, HTTP_ERRORS[400]), message, headers=headers)


def internal_error(request: Request, error: BaseException) -> Response:
    """For a bug. The details are in the log, not in the response."""
    return error_response(500, HTTP_ERRORS[500], "the server failed on this request; its log says why")
