"""Durations, sizes, moments and places as they are written on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from driftq.cli.param_types import AGO, AHEAD, DURATION, PAIR, RUN, SIZE, Moment, OffsetRun


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("2h", 7_200_000), ("7d", 604_800_000), ("0", 0)],
)
def test_a_duration_has_a_unit(text, ms):
    assert DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["30", "s", "-1s", "1w", "", "٣s"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(click.UsageError, match="30s"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "count"), [("100", 100), ("64kB", 64_000), ("1GiB", 1 << 30), ("1.5M", 1_500_000), ("2 MB", 2_000_000)]
)
def test_a_size_is_decimal_unless_it_says_otherwise(text, count):
    assert SIZE.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["-1", "1X", "kB", ""])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.UsageError):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(("kind", "sign"), [(AGO, -1), (AHEAD, 1)])
def test_a_duration_is_a_moment_before_or_after_now(kind, sign):
    moment = datetime.fromisoformat(kind.convert("1h", None, None))
    assert abs(moment - datetime.now(UTC) - sign * timedelta(hours=1)) < timedelta(minutes=1)


def test_a_moment_keeps_its_zone_and_needs_one():
    assert AGO.convert("2030-01-31T12:00:00+02:00", None, None) == "2030-01-31T12:00:00.000+02:00"
    with pytest.raises(click.UsageError, match="no zone"):
        AGO.convert("2030-01-31T12:00:00", None, None)
    with pytest.raises(click.UsageError, match="earliest"):
        Moment(words=("earliest",)).convert("soon", None, None)
    assert Moment(words=("earliest",)).convert("earliest", None, None) == "earliest"


def test_a_place_is_one_message_or_a_run():
    assert RUN.convert("0:12", None, None) == OffsetRun(0, 12, 13)
    assert RUN.convert("3:12-20", None, None) == OffsetRun(3, 12, 21)
    for text in ("12", "0:5-4", "0:", ":1", "0:1-"):
        with pytest.raises(click.UsageError):
            RUN.convert(text, None, None)


def test_a_label_is_a_name_and_a_value():
    assert PAIR.convert("a=b=c", None, None) == ("a", "b=c")
    with pytest.raises(click.UsageError):
        PAIR.convert("=b", None, None)
