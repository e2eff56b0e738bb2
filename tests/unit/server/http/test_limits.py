"""Timeouts: the time is an argument."""

from __future__ import annotations

from driftq.server.http import HttpLimits
from driftq.server.http.limits import BODY, HEAD, IDLE, TimeoutReason, Timeouts

LIMITS = HttpLimits(header_deadline_s=10, body_window_s=10, body_rate_bytes_per_s=100, idle_s=75)


def test_a_head_has_a_timeout_however_its_bytes_arrive():
    timeouts = Timeouts(LIMITS, 0)
    assert timeouts.exceeded(10, HEAD, 0, False) is None
    assert timeouts.exceeded(10.1, HEAD, 0, False) is TimeoutReason.HEAD


def test_a_new_connection_has_to_send_a_head_and_a_used_one_may_be_idle():
    timeouts = Timeouts(LIMITS, 0)
    assert timeouts.exceeded(10.1, IDLE, 0, True) is TimeoutReason.IDLE
    assert timeouts.exceeded(75, IDLE, 0, False) is None
    assert timeouts.exceeded(75.1, IDLE, 0, False) is TimeoutReason.IDLE


def test_a_body_must_advance_in_every_window_not_on_average():
    timeouts = Timeouts(LIMITS, 0)
    assert timeouts.exceeded(10.1, BODY, 1_000_000, False) is None  # a burst
    assert timeouts.exceeded(20.0, BODY, 1_000_000, False) is None
    assert timeouts.exceeded(20.3, BODY, 1_000_999, False) is TimeoutReason.BODY  # and then a trickle


def test_a_body_at_the_required_rate_never_times_out():
    timeouts = Timeouts(LIMITS, 0)
    received = 0
    for second in range(0, 3_600, 5):
        received += 1_100
        assert timeouts.exceeded(second, BODY, received, False) is None
