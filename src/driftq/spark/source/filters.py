"""Filter push-down for batch reads: which logs and offsets the filters of a query can match. Pure.

Filters only narrow what is fetched. Spark still applies every filter to the rows, so a filter that is not understood
here, or only in part, costs time and never correctness.
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
    """What the filters can match: these topics and partitions, offsets [first, end), times [from_ms, until_ms)."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None


def window_of(filters: Iterable[Filter]) -> OffsetWindow:
    """The intersection of all filters."""
    window = OffsetWindow()
    for pushed in filters:
        path: tuple[str, ...] = getattr(pushed, "attribute", ())
        if len(path) == 1:
            window = _narrowed(window, path[0], pushed)
    return window


def _narrowed(window: OffsetWindow, name: str, pushed: Filter) -> OffsetWindow:
    if name in ("topic", "partition") and isinstance(pushed, EqualTo | In):
        values = frozenset((pushed.value,) if isinstance(pushed, EqualTo) else pushed.value)
        if name == "topic":
            return window._replace(topics=values if window.topics is None else window.topics & values)
        return window._replace(partitions=values if window.partitions is None else window.partitions & values)
    bounds = _bounds(pushed)
    if bounds is None or name not in ("offset", "timestamp"):
        return window
    low, high = bounds
    if name == "offset":
        first = window.first if low is None else max(window.first, low)
        return window._replace(first=first, end=_min(window.end, None if high is None else high + 1))
    from_ms = None if low is None else _ms(low)
    until_ms = None if high is None else _ms(high) + 1
    return window._replace(from_ms=_max(window.from_ms, from_ms), until_ms=_min(window.until_ms, until_ms))


def _bounds(pushed: Filter) -> tuple[Any, Any] | None:
    """(at least, at most). A strict bound counts as an inclusive one: Spark applies the filter again."""
    match pushed:
        case EqualTo():
            return pushed.value, pushed.value
        case GreaterThan() | GreaterThanOrEqual():
            return pushed.value, None
        case LessThan() | LessThanOrEqual():
            return None, pushed.value
        case _:
            return None


def _ms(at: datetime) -> int:
    """Rounded down. A time without a zone is in this process's time zone, as Spark passes it."""
    return int(at.astimezone(UTC).timestamp() * 1_000)


def _min(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def clip_ranges(
    ranges: Sequence[OffsetRange], window: OffsetWindow, from_times: Offsets, until_times: Offsets
) -> list[OffsetRange]:
    """Ranges without the offsets that cannot match. The times of the window come as offsets of each log."""
    clipped = []
    for whole in ranges:
        if window.topics is not None and whole.topic not in window.topics:
            continue
        if window.partitions is not None and whole.partition not in window.partitions:
            continue
        log = (whole.topic, whole.partition)
        start = max(whole.start, window.first, from_times.get(log, 0))
        end = min(whole.end, until_times.get(log, whole.end), whole.end if window.end is None else window.end)
        if start < end:
            clipped.append(whole._replace(start=start, end=end))
    return clipped
