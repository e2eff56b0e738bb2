"""Deadlines as arithmetic: time is an argument."""

from __future__ import annotations

from driftq.server.http import HttpLimits
from driftq.server.http.limits import BODY, HEAD, IDLE, Late, Timeouts

LIMITS = HttpLimits(header_deadline_s=10, body_window_s=10, body_rate_bytes_per_s=100, idle_s=75)


def test_a_head_has_its_deadline_however_its_bytes_come():
    pace = Timeouts(LIMITS, 0)
    assert pace.late(10, HEAD, 0, False) is None
    assert pace.late(10.1, HEAD, 0, False) is Late.HEAD


def test_a_fresh_connection_owes_its_first_head_and_a_used_one_may_rest():
    pace = Timeouts(LIMITS, 0)
    assert pace.late(10.1, IDLE, 0, True) is Late.IDLE
    assert pace.late(75, IDLE, 0, False) is None
    assert pace.late(75.1, IDLE, 0, False) is Late.IDLE


def test_a_body_must_advance_in_every_window_not_on_average():
    pace = Timeouts(LIMITS, 0)
    assert pace.late(10.1, BODY, 1_000_000, False) is None  # a burst
    assert pace.late(20.0, BODY, 1_000_000, False) is None
    assert pace.late(20.3, BODY, 1_000_999, False) is Late.BODY  # and then a trickle


def test_a_body_at_the_rate_goes_on_for_ever():
    pace = Timeouts(LIMITS, 0)
    received = 0
    for second in range(0, 3_600, 5):
        received += 1_100
        assert pace.late(second, BODY, received, False) is None
