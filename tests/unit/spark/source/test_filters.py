"""Filters narrow what is read, and never by too much."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan, LessThanOrEqual, Not, StringContains

from driftq.spark.source.filters import OffsetWindow, clip_ranges, window_of
from driftq.spark.source.offsets import OffsetRange

AT = datetime(2030, 1, 1, microsecond=1_500, tzinfo=UTC)
AT_MS = 1_893_456_000_001


def test_what_is_not_understood_leaves_everything():
    strange = [IsNotNull(("topic",)), Not(EqualTo(("offset",), 5)), StringContains(("topic",), "x")]
    assert window_of([*strange, EqualTo(("value",), b"x"), EqualTo(("labels", "offset"), 5)]) == OffsetWindow()


def test_filters_narrow_together():
    window = window_of(
        [
            In(("topic",), ("a", "b")),
            EqualTo(("topic",), "b"),
            EqualTo(("partition",), 1),
            GreaterThan(("offset",), 5),
            LessThan(("offset",), 9),
            LessThanOrEqual(("offset",), 8),
        ]
    )
    assert window == OffsetWindow(frozenset({"b"}), frozenset({1}), 5, 9)


def test_times_are_rounded_so_that_no_record_is_left_out():
    window = window_of([GreaterThan(("timestamp",), AT), LessThan(("timestamp",), AT)])
    assert (window.from_ms, window.until_ms) == (AT_MS, AT_MS + 1)


def test_ranges_are_clipped_to_what_is_left():
    ranges = [
        OffsetRange("a", 0, 0, 10),
        OffsetRange("b", 0, 0, 10),
        OffsetRange("b", 1, 0, 10),
        OffsetRange("b", 1, 10, 20),
    ]
    window = OffsetWindow(frozenset({"b"}), frozenset({1}), 3, 18)
    assert clip_ranges(ranges, window, {("b", 1): 5}, {("b", 1): 12}) == [
        OffsetRange("b", 1, 5, 10),
        OffsetRange("b", 1, 10, 12),
    ]
    assert clip_ranges(ranges, OffsetWindow(), {}, {}) == ranges
    assert clip_ranges(ranges, OffsetWindow(first=30), {}, {}) == []
