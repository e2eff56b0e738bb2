"""Many seeds: no promise is broken, and every expected event happened.

The sizes follow the profile: a few seeds while writing, 500 seeds and 2 million operations at every change, 20,000
seeds before a release. Seeds that once failed run first and always.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.planted import planted
from tests.simulation.run import run_seed
from tests.simulation.seed_runs import known_seeds, run_many

SEEDS = {"quick": 6, "dev": 40, "ci": 500, "release": 20_000}
UNTRIED_FROM = 250  # enough seeds to strike every labelled call
OPERATIONS = {
    "quick": 500,
    "dev": 1_500,
    "ci": 4_000,
    "release": 5_000,
}  # asked of each seed, which then ends in a few more
ALTOGETHER = {"quick": 3_000, "dev": 60_000, "ci": 2_000_000, "release": 100_000_000}


@pytest.mark.parametrize("number", known_seeds() or [1])
def test_a_seed_that_once_failed_passes_now(number):
    result = run_seed(number)
    assert not result.error, f"seed {number}: {result.error}\n{result.trace}"


@pytest.mark.patient
@pytest.mark.timeout(12 * 3_600)
def test_no_seed_breaks_a_promise_and_every_expected_event_happens(profile, seed):
    tally = run_many(range(seed, seed + SEEDS[profile]), OPERATIONS[profile], os.cpu_count() or 1)
    broken = [f"seed {number}: {error}" for number, error in tally.broken]
    assert not broken, "\n\n".join(broken[:5]) + "\n\nreplay with: make sim SEED=… and add it to seeds.txt"
    assert tally.operations >= ALTOGETHER[profile], "some seeds ran fewer operations than requested"
    if SEEDS[profile] >= UNTRIED_FROM:
        assert not tally.never(), "an expected event never happened"


def test_a_seed_that_must_fail_fails():
    """If this seed does not fail, the checks above prove nothing."""
    with planted("nosync"):
        result = run_seed(1)
    assert result.promise == "L1"
    assert not run_seed(1).error
