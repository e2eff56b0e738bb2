"""Times as people and protocols write them (RFC 3339) and as we count them (milliseconds since 1970, UTC)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def to_rfc3339(at_ms: int) -> str:
    """Always with `+00:00`: some clients' parsers do not know `Z`. What has no date becomes the nearest that has."""
    at_ms = min(max(at_ms, _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")


def from_rfc3339(text: str) -> int:
    """Milliseconds; raises ValueError for anything that is not a full RFC 3339 time with a zone."""
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time with a zone: {text!r}")
    return (datetime.fromisoformat(text.upper()) - _EPOCH) // timedelta(milliseconds=1)
