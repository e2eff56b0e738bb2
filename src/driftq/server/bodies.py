"""Reads a request's parameters: a JSON body if there is one, else the query string, into the same typed values.

Bad input is raised as `BadRequest` with a message that names the field. Numbers in a query are plain ASCII digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from driftq.server.http import BadRequest, Request

T = TypeVar("T")

_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_FLAGS = {"true": True, "false": False}
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def read(
    request: Request,
    kind: type[T],
    numbers: frozenset[str],
    aliases: Mapping[str, str] | None = None,
    flags: frozenset[str] = frozenset(),
) -> T:
    """The parameters of a request as `kind`. `numbers` and `flags` name the query parameters that are no texts."""
    if request.body:
        return read_json(request.body, kind)
    values: dict[str, Any] = {}
    fields = kind.__struct_encode_fields__  # type: ignore[attr-defined]
    for name, text in request.query.items():
        name = (aliases or {}).get(name, name)
        if name in fields and name not in values:
            values[name] = number(name, text) if name in numbers else _FLAGS.get(text, text) if name in flags else text
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid parameters: {error}") from None


def read_json(body: bytes, kind: type[T]) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
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


def page_limit(request: Request, default: int = 100, most: int = 1_000) -> int:
    """How many entries a page of a list has."""
    limit = number("limit", request.query["limit"]) if "limit" in request.query else default
    if not 1 <= limit <= most:
        raise BadRequest(f"limit must be 1 to {most}")
    return limit
