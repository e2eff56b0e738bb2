"""Hooks of the API fuzzer (schemathesis): it sends bodies of our own media types, and names that exist.

Random names only lead to "not found". Most topics, groups and owners are therefore replaced by the few that the test
has created; the rest stays random. What is replaced depends only on the value, so that a run can be repeated.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import schemathesis
from schemathesis.core import NotSet

NAME = re.compile(r"[A-Za-z0-9._:-]{1,249}", re.ASCII)
KNOWN = {
    "topic": ("orders", "inbox"),
    "group": ("workers",),
    "owner": ("ann",),
    "partition": (0,),
    "offset": (0, 1, 2),
}


@schemathesis.serializer("application/x-ndjson", "application/x-driftq-batch")
def as_bytes(context: Any, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b"\xff"  # the wrong type, on purpose


def known(value: Any) -> Any:
    """The value with most of its names replaced, at any depth."""
    if isinstance(value, dict):
        return {key: chosen(key, part) for key, part in value.items()}
    if isinstance(value, list):
        return [known(part) for part in value]
    return value


def chosen(name: str, value: Any) -> Any:
    digest = zlib.crc32(repr(value).encode())
    if name in KNOWN and digest % 4 and is_well_formed(value):
        options = KNOWN[name]
        if type(options[0]) is type(value):
            return options[digest % len(options)]
    return known(value)


def is_well_formed(value: Any) -> bool:
    """Values that are invalid on purpose are not replaced."""
    if isinstance(value, str):
        return NAME.fullmatch(value) is not None
    return type(value) is int and 0 <= value < 2**53


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    # Do not delete what other requests need.
    return path_parameters if context.operation.method.upper() == "DELETE" else known(path_parameters)


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    return known(query)


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    return known(body)


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Some routes take fields as query parameters or as a body. With a body the query is not read, so an invalid query
    is no reason for a refusal."""
    body = case.operation.definition.raw.get("requestBody")
    instead = body is not None and not body.get("required", False)
    return not (instead and case.query and not isinstance(case.body, NotSet))
