"""Filters of a batch query that say which logs and offsets it can need: less is fetched. Pure.

They only narrow: Spark still applies every filter to the rows that come, so that a filter that is not understood here,
or only in part, costs time and never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from driftq.spark.source.offsets import OffsetRange, Offsets


class OffsetWindow(NamedTuple):
    """What a query can need: these topics and partitions, offsets [first, end), times [from_ms, until_ms)."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None


def window_of(filters: Iterable[Filter]) -> OffsetWindow:
    """What all filters together leave."""
    window = OffsetWindow()
    for each in filters:
        name: tuple[str, ...] = getattr(each, "attribute", ())
        if len(name) == 1:
            window = _narrowed(window, name[0], each)
    return window


def _narrowed(window: OffsetWindow, name: str, each: Filter) -> OffsetWindow:
    if name in ("topic", "partition") and isinstance(each, EqualTo | In):
        values = frozenset((each.value,) if isinstance(each, EqualTo) else each.value)
        if name == "topic":
            return window._replace(topics=values if window.topics is None else window.topics & values)
        return window._replace(partitions=values if window.partitions is None else window.partitions & values)
    bounds = _bounds(each)
    if bounds is None or name not in ("offset", "timestamp"):
        return window
    low, high = bounds
    if name == "offset":
        first = window.first if low is None else max(window.first, low)
        return window._replace(first=first, end=_least(window.end, None if high is None else high + 1))
    from_ms = None if low is None else _ms(low)
    until_ms = None if high is None else _ms(high) + 1
    return window._replace(from_ms=_most(window.from_ms, from_ms), until_ms=_least(window.until_ms, until_ms))


def _bounds(each: Filter) -> tuple[Any, Any] | None:
    """(at least, at most); a strict bound is taken as one that is not: Spark looks again."""
    match each:
        case EqualTo():
            return each.value, each.value
        case GreaterThan() | GreaterThanOrEqual():
            return each.value, None
        case LessThan() | LessThanOrEqual():
            return None, each.value
        case _:
            return None


def _ms(at: datetime) -> int:
    """Rounded down. A time without a zone is one of this process, as Spark hands it over."""
    return int(at.astimezone(UTC).timestamp() * 1_000)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def clipped(
    ranges: Sequence[OffsetRange], window: OffsetWindow, from_times: Offsets, until_times: Offsets
) -> list[OffsetRange]:
    """Ranges without the offsets that cannot be needed. Times are given as the offsets they lie at."""
    found = []
    for each in ranges:
        if window.topics is not None and each.topic not in window.topics:
            continue
        if window.partitions is not None and each.partition not in window.partitions:
            continue
        log = (each.topic, each.partition)
        start = max(each.start, window.first, from_times.get(log, 0))
        end = min(each.end, until_times.get(log, each.end), each.end if window.end is None else window.end)
        if start < end:
            found.append(each._replace(start=start, end=end))
    return found
