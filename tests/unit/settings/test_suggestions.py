"""Suggestions for misspelt names."""

from __future__ import annotations

from driftq.settings.suggestions import closest, did_you_mean


def test_the_closest_name_is_suggested():
    assert did_you_mean("lease_m", ["lease_ms", "heartbeat_ms"], "nothing") == "did you mean lease_ms?"
    assert closest("order", ["orders", "orders2", "invoices"]) == ["orders", "orders2"]


def test_a_name_that_is_like_no_other_gets_the_other_hint():
    assert did_you_mean("xyz", ["lease_ms"], "there is lease_ms") == "there is lease_ms"
