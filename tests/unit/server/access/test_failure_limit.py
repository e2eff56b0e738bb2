"""Wrong credentials are counted by address: a burst passes, then one a second, and the table stays small."""

from __future__ import annotations

import pytest

from driftq.server.access.failure_limit import ADDRESSES_MAX, FAILURES_MAX, FailureLimit


def failed(limit: FailureLimit, address: str, now_s: float, count: int = FAILURES_MAX) -> None:
    for _ in range(count):
        assert limit.wait_s(address, now_s) == 0
        limit.failed(address, now_s)


def test_after_a_burst_an_address_waits_and_then_has_one_try_a_second():
    limit = FailureLimit()
    failed(limit, "192.0.2.1", 100.0)
    assert limit.wait_s("192.0.2.1", 100.0) == pytest.approx(1.0)
    assert limit.wait_s("192.0.2.1", 100.5) == pytest.approx(0.5)
    assert limit.wait_s("192.0.2.2", 100.0) == 0
    failed(limit, "192.0.2.1", 101.0, 1)
    assert limit.wait_s("192.0.2.1", 101.0) > 0
    failed(limit, "192.0.2.1", 1_000.0)


def test_those_that_were_not_looked_at_are_counted_with_the_next_failure():
    limit = FailureLimit()
    failed(limit, "192.0.2.1", 100.0)
    for _ in range(7):
        limit.wait_s("192.0.2.1", 100.0)
    assert limit.failed("192.0.2.1", 102.0) == 7
    assert limit.failed("192.0.2.1", 103.0) == 0


def test_all_addresses_of_an_ipv6_network_count_as_one():
    limit = FailureLimit()
    for number in range(FAILURES_MAX):
        limit.failed(f"2001:db8::{number:x}", 100.0)
    assert limit.wait_s("2001:db8::ffff:1", 100.0) > 0
    assert limit.wait_s("2001:db8:0:1::1", 100.0) == 0


def test_the_table_is_bounded_and_a_clock_that_goes_back_does_no_harm():
    limit = FailureLimit()
    for number in range(ADDRESSES_MAX + 50):
        limit.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 100.0)
    assert len(limit._buckets) == ADDRESSES_MAX
    assert limit.failed("10.0.0.255", 50.0) == 0
