"""When to try again: exact without jitter, inside its bounds with it, and a time that can be written always."""

from __future__ import annotations

import pytest

from driftq.core.transitions.retry import DELAY_MS_MAX, delay_ms, is_exhausted
from driftq.wire.message import RetryPolicy

ALMOST_ONE = 1 - 2**-53
FLOOR = 50


def policy(jitter: str, backoff_ms: int = 500, max_backoff_ms: int = 30_000) -> RetryPolicy:
    return RetryPolicy(0, backoff_ms, max_backoff_ms, jitter)  # type: ignore[arg-type]


def test_without_jitter_the_window_doubles_up_to_the_cap():
    exact = [delay_ms(policy("none"), attempts, 0.7, FLOOR) for attempts in range(1, 10)]
    assert exact == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]


def test_without_jitter_there_is_no_floor_either():
    assert delay_ms(policy("none", 10), 1, 0.0, FLOOR) == 10


@pytest.mark.parametrize(("attempts", "window"), [(1, 500), (2, 1_000), (7, 30_000), (100, 30_000)])
def test_full_jitter_spreads_from_the_floor_to_the_window(attempts, window):
    assert delay_ms(policy("full"), attempts, 0.0, FLOOR) == FLOOR
    assert delay_ms(policy("full"), attempts, 0.5, FLOOR) == window // 2
    assert delay_ms(policy("full"), attempts, ALMOST_ONE, FLOOR) in (window - 1, window)


@pytest.mark.parametrize(("attempts", "window"), [(1, 500), (2, 1_000), (7, 30_000)])
def test_equal_jitter_spreads_over_the_upper_half(attempts, window):
    assert delay_ms(policy("equal"), attempts, 0.0, FLOOR) == window // 2
    assert window - 1 <= delay_ms(policy("equal"), attempts, ALMOST_ONE, FLOOR) <= window


@pytest.mark.parametrize(("attempts", "high"), [(1, 1_500), (2, 1_500), (3, 3_000), (4, 6_000), (9, 30_000)])
def test_decorrelated_jitter_spreads_over_three_times_the_window_before(attempts, high):
    assert delay_ms(policy("decorrelated"), attempts, 0.0, FLOOR) == 500
    assert high - 1 <= delay_ms(policy("decorrelated"), attempts, ALMOST_ONE, FLOOR) <= high


@pytest.mark.parametrize("jitter", ["none", "full", "equal", "decorrelated"])
@pytest.mark.parametrize("backoff_ms", [-5, 0, 1, 2**62, 10**30])
@pytest.mark.parametrize("max_backoff_ms", [-5, 0, 1, 2**62, 10**30])
@pytest.mark.parametrize("attempts", [0, 1, 64, 10**9])
def test_any_number_gives_a_time_that_can_be_written_down(jitter, backoff_ms, max_backoff_ms, attempts):
    delay = delay_ms(policy(jitter, backoff_ms, max_backoff_ms), attempts, 0.99, FLOOR)
    assert 0 <= delay <= DELAY_MS_MAX * 3
    if 0 < max_backoff_ms < DELAY_MS_MAX:
        assert delay <= max(FLOOR, max_backoff_ms)


def test_the_last_attempt_is_the_one_that_the_policy_names():
    assert [is_exhausted(RetryPolicy(max_attempts=3), attempts) for attempts in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not is_exhausted(RetryPolicy(max_attempts=0), 10**6)
    assert not is_exhausted(RetryPolicy(max_attempts=-1), 10**6)
