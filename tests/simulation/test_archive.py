"""Seeds with an archive: no promise is broken, every expected event happens, and every planted bug is found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.archive import run_archive_seed
from tests.simulation.archive_bugs import ARCHIVE_BUGS
from tests.simulation.planted import planted_bugs

SEEDS = {"quick": 4, "dev": 20, "ci": 80, "release": 3_000}
PLANTED_SEEDS_MAX = 30
FIRST_SEED = {"deleted_by_a_manifest_that_was_read_before": 22}  # of the thirty, for bugs that are found late
EVENTS = (
    "generations", "chunks", "bases", "restores compared", "restored from a base", "taken over", "zombies refused",
    "crashes", "checkpoints", "object store errors", "timeout", "5xx", "throttled", "partial write", "lost reply",
    "listing behind", "segments moved", "cold reads", "wrong objects refused", "moves given up", "objects deleted",
)  # fmt: skip


@pytest.mark.timeout(3_600)
def test_no_seed_breaks_a_promise_of_the_archive(profile, seed):
    counts: Counter[str] = Counter()
    broken = []
    for number in range(seed, seed + SEEDS[profile]):
        result = run_archive_seed(number)
        counts.update(result.counts)
        if result.error:
            broken.append(f"seed {number}: {result.error}")
    assert not broken, "\n".join(broken[:5])
    if SEEDS[profile] >= SEEDS["ci"]:
        assert not [event for event in EVENTS if not counts[event]]


@pytest.mark.parametrize("name", sorted(ARCHIVE_BUGS))
def test_a_planted_bug_of_the_archive_is_found(name):
    with planted_bugs(*ARCHIVE_BUGS[name]):
        first = FIRST_SEED.get(name, 1)
        for seed in range(first, first + PLANTED_SEEDS_MAX):
            try:
                if run_archive_seed(seed).error:
                    return
            except Exception:  # it stopped the run
                return
    raise AssertionError(f"{name} was not found in {PLANTED_SEEDS_MAX} seeds")


def test_the_same_seed_does_the_same_twice():
    assert run_archive_seed(3).counts == run_archive_seed(3).counts
