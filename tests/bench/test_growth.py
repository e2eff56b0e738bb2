"""The exponent of a growth."""

from __future__ import annotations

import pytest

from bench.growth import CPU_MIN_S, exponent

SIZES = [1_000, 4_000, 16_000]


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_power_of_a_growth_is_found(power):
    assert exponent(SIZES, [1e-3 * size**power for size in SIZES]) == pytest.approx(power)


def test_noise_changes_it_little():
    noisy = [1.1, 4.0 * 0.9, 16.0 * 1.1]
    assert exponent(SIZES, noisy) == pytest.approx(1, abs=0.05)


def test_a_cost_that_cannot_be_measured_is_flat():
    assert exponent(SIZES, [0, CPU_MIN_S / 2, CPU_MIN_S]) == 0
