"""The clock never goes back, never jumps, and leans towards the wall."""

from __future__ import annotations

import pytest

from driftq.engine import clock
from driftq.engine.clock import SystemClock

SECOND_NS = 1_000_000_000


class Times:
    """Wall and monotonic time, turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.monotonic_ns = 5 * SECOND_NS
        monkeypatch.setattr(clock.time, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(clock.time, "clock_gettime_ns", lambda _: self.monotonic_ns)

    def pass_s(self, seconds: float) -> None:
        self.wall_ns += int(seconds * SECOND_NS)
        self.monotonic_ns += int(seconds * SECOND_NS)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def test_the_clock_starts_at_the_wall_clock_and_follows_it(times: Times) -> None:
    shown = SystemClock()
    assert shown.now_ms() == 1_700_000_000_000
    times.pass_s(2.5)
    assert shown.now_ms() == 1_700_000_002_500


@pytest.mark.parametrize("jump_s", [500, -500])
def test_a_jump_of_the_wall_moves_it_by_a_few_milliseconds_a_second(times: Times, jump_s: int) -> None:
    shown = SystemClock()
    before_ms = shown.now_ms()
    times.wall_ns += jump_s * SECOND_NS
    times.pass_s(1)
    after_ms = shown.now_ms()
    assert abs(after_ms - before_ms - 1_000) <= 5
    times.pass_s(10)
    assert shown.now_ms() != after_ms + 10_000, "it leans towards the wall"
    assert abs(shown.now_ms() - after_ms - 10_000) <= 55


def test_it_never_goes_back_while_the_wall_does(times: Times) -> None:
    shown = SystemClock()
    last_ms = shown.now_ms()
    times.wall_ns -= 60 * SECOND_NS
    for _ in range(500):
        times.pass_s(0.003)
        now_ms = shown.now_ms()
        assert now_ms >= last_ms
        last_ms = now_ms


def test_it_starts_no_earlier_than_what_is_written_down(times: Times) -> None:
    shown = SystemClock()
    shown.start_at(1_700_000_050_000)
    assert shown.now_ms() == 1_700_000_050_000
    times.pass_s(0.5)
    assert shown.now_ms() == 1_700_000_050_500
    shown.start_at(1_700_000_050_100)
    assert shown.now_ms() == 1_700_000_050_500


DAY_S = 86_400


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 10 * DAY_S, -10 * DAY_S])
def test_a_large_jump_of_the_wall_does_not_move_it_at_all(times: Times, jump_s: int) -> None:
    shown = SystemClock()
    before_ms = shown.now_ms()
    times.wall_ns += jump_s * SECOND_NS
    for _ in range(50):
        times.pass_s(60)
        assert shown.now_ms() == before_ms + 60_000
        before_ms += 60_000
    reading = shown.read()
    assert reading.held
    assert reading.ahead_ms == jump_s * 1_000
    assert "driftq clock accept" in reading.advice()


def test_a_start_after_a_plausible_pause_shows_the_wall_clock(times: Times) -> None:
    shown = SystemClock()
    shown.start_at(1_700_000_000_000 - 2 * DAY_S * 1_000)
    assert shown.now_ms() == 1_700_000_000_000
    assert not shown.read().held


@pytest.mark.parametrize("ahead_s", [10 * DAY_S, -10 * DAY_S, -3_600])
def test_a_start_with_a_clock_far_from_the_journal_continues_from_the_journal(times: Times, ahead_s: int) -> None:
    last_ms = 1_700_000_000_000 - ahead_s * 1_000
    shown = SystemClock()
    shown.start_at(last_ms)
    times.pass_s(5)
    assert shown.now_ms() == last_ms + 5_000
    assert shown.read().held


def test_a_clock_that_is_mended_after_a_wrong_start_is_accepted_as_at_a_start(times: Times) -> None:
    shown = SystemClock()
    shown.start_at(1_700_000_000_000 - 10 * DAY_S * 1_000)
    times.pass_s(30)
    assert shown.read().held
    times.wall_ns -= 10 * DAY_S * SECOND_NS - 7_200 * SECOND_NS  # two hours after the journal's last time
    times.pass_s(2)
    reading = shown.read()
    assert not reading.held
    assert reading.ahead_ms == 0


@pytest.mark.parametrize("ahead_s", [10 * DAY_S, -10 * DAY_S])
def test_the_machines_clock_can_be_accepted_in_both_directions(times: Times, ahead_s: int) -> None:
    shown = SystemClock()
    shown.start_at(1_700_000_000_000 - ahead_s * 1_000)
    shown.set_to(shown.read().machine_ms)
    assert shown.now_ms() == 1_700_000_000_000
    times.pass_s(3)
    assert shown.now_ms() == 1_700_000_003_000
    assert not shown.read().held


def test_a_new_folder_has_no_time_to_compare_with(times: Times) -> None:
    shown = SystemClock()
    shown.start_at(0)
    assert shown.now_ms() == 1_700_000_000_000
