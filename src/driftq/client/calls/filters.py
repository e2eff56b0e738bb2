"""Which jobs, messages or dead letters a call in bulk is for: the keyword arguments that such calls share.

A filter becomes the fields of a request body by `body_fields`, and a query by `query_of`. An argument that a call does
not take raises TypeError, like one that a function does not take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from driftq.client.errors import InvalidCall

_TIMES = ("since", "until")
_LISTS = ("ids", "offsets")
_RENAMED = {"tenant": "tenant_id"}


class TimeRange(TypedDict, total=False):
    """From a time on, and before one: a datetime or RFC 3339."""

    since: datetime | str | None
    until: datetime | str | None


class BulkOptions(TimeRange, total=False):
    """A call in bulk: `limit` of what fits, `after` the cursor of the call before. `dry_run` only counts."""

    dry_run: bool
    limit: int
    after: str


class JobFilterOptions(BulkOptions, total=False):
    """Jobs with these ids, or those that fit."""

    ids: Sequence[str] | None
    state: str
    task: str
    tenant: str


class MessageFilterOptions(BulkOptions, total=False):
    """Messages of a topic that are not finished."""

    partition: int | None
    task: str


class LetterFilterOptions(TimeRange, total=False):
    """Dead letters of a group, with a part of an error, of a kind of error, with a reason."""

    group: str
    error: str
    kind: str | None
    reason: str


class LetterBulkOptions(LetterFilterOptions, BulkOptions, total=False):
    """Dead letters at these places (pairs of partition and offset), or those that fit."""

    offsets: Sequence[tuple[int, int]] | None


def time_text(at: datetime | str | None) -> str:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidCall(f"{at} has no time zone; use datetime.now(UTC) or the like")
        return at.isoformat(timespec="milliseconds")
    return at or ""


def body_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call as the fields of its body."""
    fields = {_RENAMED.get(name, name): value for name, value in options.items()}
    fields |= {name: time_text(fields[name]) for name in _TIMES if name in fields}
    return fields | {name: list(fields[name]) for name in _LISTS if fields.get(name) is not None}


def query_of(options: LetterFilterOptions) -> dict[str, Any]:
    """A filter of letters as a query."""
    unknown = set(options) - {*LetterFilterOptions.__annotations__, *TimeRange.__annotations__}
    if unknown:
        raise TypeError(f"not a filter of dead letters: {', '.join(sorted(unknown))}")
    return body_fields(options)
