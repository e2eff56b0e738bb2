"""The times of schedules: expressions, zones, the days on which clocks change, intervals, and plans after a pause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.model.facts import RecordSchedule
from driftq.core.model.schedule_facts import CatchUp, ScheduledMessage, SchedulePlan, ScheduleSpec, ScheduleTimes
from driftq.engine.schedule_times import (
    CATCH_UP_TIMES,
    MISSED_COUNTED_MAX,
    PLAN_TIMES,
    BadSchedule,
    check_times,
    last_until,
    next_plan,
    times_after,
)
from driftq.wire.schedules import WINDOW_MS_MAX

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MESSAGE = ScheduledMessage("t", b"v", b"", b"", RecordSchedule(0, tracked=True))


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1_000)


def local(times: ScheduleTimes, start: str, count: int) -> list[str]:
    """The next times on the clock of the zone."""
    zone = ZoneInfo(times.timezone)
    upcoming = islice(times_after(times, ms(start, times.timezone)), count)
    return [datetime.fromtimestamp(time_ms / 1_000, zone).isoformat(timespec="minutes")[5:] for time_ms in upcoming]


def cron(expression: str, zone: str = "Europe/Paris", **more: int) -> ScheduleTimes:
    return ScheduleTimes(expression, timezone=zone, **more)


def spec(times: ScheduleTimes, catch_up: CatchUp = "last", window_ms: int = WINDOW_MS_MAX) -> ScheduleSpec:
    return ScheduleSpec(MESSAGE, times, catch_up, window_ms)


@pytest.mark.parametrize(
    ("expression", "gap", "double"),
    [
        # Fixed: once at the end of the gap, once in the hour that comes twice.
        ("30 2 * * *", ["03-29T03:00+02:00", "03-30T02:30+02:00"], ["10-25T02:30+02:00", "10-26T02:30+01:00"]),
        # With a star: no time in the gap, both times in the double hour.
        ("30 * * * *", ["03-29T01:30+01:00", "03-29T03:30+02:00"], ["10-25T01:30+02:00", "10-25T02:30+02:00",
                                                                   "10-25T02:30+01:00", "10-25T03:30+01:00"]),
        # With seconds, as with a star.
        ("0 30 2 * * *", ["03-30T02:30+02:00"], ["10-25T02:30+02:00", "10-25T02:30+01:00", "10-26T02:30+01:00"]),
    ],
)  # fmt: skip
def test_on_the_days_on_which_clocks_change(expression: str, gap: list[str], double: list[str]):
    assert local(cron(expression), "2026-03-29T00:45", len(gap)) == gap
    assert local(cron(expression), "2026-10-25T00:45", len(double)) == double


def test_two_times_that_a_gap_moves_together_are_one():
    assert local(cron("0,30 2,3 * * *"), "2026-03-28T12:00", 3)[:2] == ["03-29T03:00+02:00", "03-29T03:30+02:00"]


def test_an_interval_counts_real_time_from_its_anchor():
    start_ms = ms("2026-03-28T20:00", "Europe/Paris")
    times = ScheduleTimes(every_ms=6 * HOUR_MS, anchor_ms=start_ms)
    upcoming = list(islice(times_after(times, start_ms), 4))
    assert upcoming == [start_ms + number * 6 * HOUR_MS for number in (1, 2, 3, 4)]
    assert last_until(times, start_ms + 7 * HOUR_MS) == start_ms + 6 * HOUR_MS


def test_no_time_is_before_the_start_or_after_the_end():
    start_ms, end_ms = ms("2026-05-04T09:00"), ms("2026-05-06T09:00")
    times = cron("0 9 * * *", "UTC", start_ms=start_ms, end_ms=end_ms)
    assert list(times_after(times, 0)) == [start_ms, start_ms + DAY_MS, end_ms]
    assert last_until(times, end_ms + DAY_MS) == end_ms
    assert last_until(times, start_ms - 1) is None


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (cron("61 9 * * *"), "bad minute"),
        (cron("0 9 * *"), "wrong number of fields"),
        (cron("0 9 * * FUNDAY"), "bad day-of-week"),
        (cron("0 9 * * *", "Mars/Base"), "unknown timezone 'Mars/Base'"),
        (cron("0 9 * * *", "../../etc/passwd"), "unknown timezone"),
        (cron("0 9 * * *", ""), "unknown timezone"),
        (cron("0 0 31 2 *"), "bad day-of-month"),
        (cron("0 9 * * *", end_ms=5), "end must be after start"),
        (cron("0 9 1 1 *", end_ms=DAY_MS), "never fires: there is no such time before its end"),
        (ScheduleTimes(), "either cron or every_ms"),
        (ScheduleTimes("* * * * *", 5_000, "UTC"), "either cron or every_ms"),
        (ScheduleTimes(every_ms=999), "at least 1000"),
        (ScheduleTimes(every_ms=5_000, jitter_ms=5_000), "shorter than the time between two firings"),
        (cron("* * * * *", jitter_ms=60_000), "shorter than the time between two firings"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(times: ScheduleTimes, reason: str):
    with pytest.raises(BadSchedule, match=reason):
        check_times(times, 10 * HOUR_MS)


@pytest.mark.parametrize("expression", ["@daily", "0 9 * * MON-FRI", "*/5 * * * *", "0 0 29 2 *", "0 0 L * *"])
def test_what_makes_sense_is_accepted(expression: str):
    check_times(cron(expression), ms("2026-05-04T09:00"))


def test_a_plan_has_the_next_times_and_a_long_one_is_short():
    now_ms = ms("2026-05-04T09:00")
    assert len(next_plan(spec(cron("0 9 * * *", "UTC")), now_ms, now_ms).times) == PLAN_TIMES
    yearly = next_plan(spec(cron("@yearly", "UTC")), now_ms, now_ms)
    assert yearly == SchedulePlan((ms("2027-01-01T00:00"), ms("2028-01-01T00:00")))
    ending = spec(cron("0 9 * * *", "UTC", end_ms=now_ms + 2 * DAY_MS))
    assert next_plan(ending, now_ms, now_ms) == SchedulePlan((now_ms + DAY_MS, now_ms + 2 * DAY_MS), True)


def test_after_a_long_pause_a_plan_begins_with_what_the_policy_fires():
    minutely, now_ms = cron("* * * * *", "UTC"), ms("2026-05-04T09:00") + 30_000
    cursor_ms = now_ms - 30 * DAY_MS
    last = next_plan(spec(minutely), cursor_ms, now_ms)
    assert last.times[:2] == (now_ms - 30_000, now_ms + 30_000)
    assert last.missed == MISSED_COUNTED_MAX
    every = next_plan(spec(minutely, "all", 10 * 60_000), cursor_ms, now_ms)
    assert every.times[0] == now_ms - 30_000 - 9 * 60_000
    assert len(every.times) == CATCH_UP_TIMES
    none = next_plan(spec(minutely, "none", 1_000), cursor_ms, now_ms)
    assert none.times[0] == now_ms + 30_000
    ahead = next_plan(spec(minutely), now_ms + DAY_MS, now_ms)  # the clock was set back
    assert ahead.times[0] == now_ms + DAY_MS + 30_000
    assert ahead.missed == 0


@given(
    every_s=st.integers(1, 90_000),
    gap_s=st.integers(0, 400_000),
    catch_up=st.sampled_from(["none", "last", "all"]),
    window_s=st.integers(1, 500_000),
    is_cron=st.booleans(),
)
def test_a_plan_leaves_nothing_out_that_its_policy_fires(
    every_s: int, gap_s: int, catch_up: CatchUp, window_s: int, is_cron: bool
):
    """Against the list of all times."""
    now_ms = ms("2026-10-25T01:30")
    cursor_ms = now_ms - gap_s * 1_000
    times = cron("*/20 * * * *") if is_cron else ScheduleTimes(every_ms=every_s * 1_000, anchor_ms=cursor_ms)
    planned = next_plan(spec(times, catch_up, window_s * 1_000), cursor_ms, now_ms)
    upto_ms = planned.times[-1]
    every = list(islice(takewhile(lambda at_ms: at_ms <= upto_ms, times_after(times, cursor_ms)), 500_000))
    recent = [at_ms for at_ms in every if at_ms > now_ms or now_ms - at_ms <= window_s * 1_000]
    passed = [at_ms for at_ms in recent if at_ms <= now_ms]
    wanted = recent if catch_up == "all" else [*passed[-1:], *recent[len(passed) :]]
    old_or_wanted = [at_ms for at_ms in planned.times if at_ms in wanted]
    assert old_or_wanted == wanted
    assert min(MISSED_COUNTED_MAX, len(every) - len(planned.times)) == min(MISSED_COUNTED_MAX, planned.missed)
    assert datetime.fromtimestamp(upto_ms / 1_000, UTC) - datetime.fromtimestamp(now_ms / 1_000, UTC) < timedelta(400)
