"""Numbers with units: sizes and durations."""

from __future__ import annotations

import pytest

from driftq.settings.quantities import (
    DURATION_MS,
    SIZE_BYTES,
    SPARK_DURATION_MS,
    SPARK_SIZE_BYTES,
    parse_duration_ms,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "units", "quantity"),
    [
        ("30s", DURATION_MS, 30_000),
        ("1.5m", DURATION_MS, 90_000),
        ("7d", SPARK_DURATION_MS, 7 * 86_400_000),
        ("250", SPARK_DURATION_MS, 250),
        ("5min", SPARK_DURATION_MS, 300_000),
        ("64kB", SIZE_BYTES, 64_000),
        ("64kiB", SIZE_BYTES, 65_536),
        ("2 MB", SIZE_BYTES, 2_000_000),
        ("1T", SIZE_BYTES, 10**12),
        ("64k", SPARK_SIZE_BYTES, 65_536),
        ("1gb", SPARK_SIZE_BYTES, 1 << 30),
        ("9007199254740993", SIZE_BYTES, 9_007_199_254_740_993),
    ],
)
def test_a_number_is_multiplied_by_its_unit(text, units, quantity):
    assert parse_quantity(text, units) == quantity


@pytest.mark.parametrize("text", ["", "s", "30", "-1s", "1w", "1.s", "1e3s", "٣s", "1s "])
def test_anything_else_is_refused(text):
    assert parse_quantity(text, DURATION_MS) is None


def test_zero_needs_no_unit():
    assert parse_duration_ms("0") == 0
