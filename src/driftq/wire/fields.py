"""Field types that many bodies share: names, numbers, times, and the base of request bodies.

Unknown fields of a request are refused, and numbers are numbers: `"partition": "0"` is an error. Times travel as
RFC 3339 text and are counted in milliseconds since 1970, UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

SAFE_INTEGER_MAX = (1 << 53) - 1  # the largest integer that a double holds exactly, and so every JSON parser
NAME_LENGTH_MAX = 249  # of topics, groups, tasks and labels
ID_LENGTH_MAX = 256  # of owners, keys, jobs and writers
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * 3_600_000  # of `lease_ms`, in every call that takes it

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Owner = Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]
Natural = Annotated[int, Meta(ge=0, le=SAFE_INTEGER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=SAFE_INTEGER_MAX)]
Priority = Annotated[int, Meta(ge=0, le=9)]


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of request bodies."""


# --- times ------------------------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def to_rfc3339(at_ms: int) -> str:
    """Always with `+00:00`, because some parsers do not accept `Z`. A time outside the calendar is clamped."""
    at_ms = min(max(at_ms, _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")


def from_rfc3339(text: str) -> int:
    """Milliseconds. Raises ValueError for anything that is not a full RFC 3339 time with a zone."""
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time with a zone: {text!r}")
    return (datetime.fromisoformat(text.upper()) - _EPOCH) // timedelta(milliseconds=1)
