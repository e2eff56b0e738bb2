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
        monkeypatch.setattr(clock.time, "monotonic_ns", lambda: self.monotonic_ns)

    def pass_s(self, seconds: float) -> None:
        self.wall_ns += int(seconds * SECOND_NS)
        self.monotonic_ns += int(seconds * SECOND_NS)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def test_it_shows_the_wall_clock_and_goes_on_with_it(times: Times) -> None:
    shown = SystemClock()
    assert shown.now_ms() == 1_700_000_000_000
    times.pass_s(2.5)
    assert shown.now_ms() == 1_700_000_002_500


@pytest.mark.parametrize("jump_s", [3600, -3600])
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
    shown.start_at(1)
    assert shown.now_ms() == 1_700_000_050_500
