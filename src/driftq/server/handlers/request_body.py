"""Decoding of requests: a JSON body if there is one, else the query string, into the same typed body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from driftq.server.http.request import BadRequest
from driftq.wire.fields import from_rfc3339
from driftq.wire.produce import ANY

if TYPE_CHECKING:
    from driftq.server.http import Request

T = TypeVar("T")

PAGE_LIMIT_MAX = 1_000

_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_FLAGS = {"true": True, "false": False}
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"invalid json body: {error}") from None
    except RecursionError:
        raise BadRequest("invalid json body: nested too deeply") from None
    return decoded


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
