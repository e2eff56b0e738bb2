"""For the fuzzer of the API (schemathesis): how bodies of our own types are sent, and names that exist.

Random names lead to "not found" and nowhere else. Most topics, groups and owners are therefore replaced by the few that
the test has made; the rest stays random. What is replaced depends on the value alone, so that a run can be repeated.
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
    return value if isinstance(value, bytes) else b"\xff"  # of the wrong type on purpose: nothing that means something


def known(value: Any) -> Any:
    """The value with most of its names replaced, at any depth."""
    if isinstance(value, dict):
        return {key: chosen(key, part) for key, part in value.items()}
    if isinstance(value, list):
        return [known(part) for part in value]
    return value


def chosen(name: str, value: Any) -> Any:
    digest = zlib.crc32(repr(value).encode())
    if name in KNOWN and digest % 4 and is_decent(value):
        options = KNOWN[name]
        if type(options[0]) is type(value):
            return options[digest % len(options)]
    return known(value)


def is_decent(value: Any) -> bool:
    """What is wrong on purpose stays wrong."""
    if isinstance(value, str):
        return NAME.fullmatch(value) is not None
    return type(value) is int and 0 <= value < 2**53


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    # What others need is not deleted.
    return path_parameters if context.operation.method.upper() == "DELETE" else known(path_parameters)


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    return known(query)


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    return known(body)


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Where fields may come as query parameters instead of a body, a body makes the query meaningless: it is not read,
    and what is wrong in it is no reason to refuse."""
    body = case.operation.definition.raw.get("requestBody")
    instead = body is not None and not body.get("required", False)
    return not (instead and case.query and not isinstance(case.body, NotSet))
