"""Every planted bug is found within 30 seeds. The table that a run prints says how many each took."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, planted
from tests.simulation.run import run_seed

SEEDS_MAX = 30


def test_there_are_enough_planted_bugs():
    assert len(BUGS) >= 24


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, record_property, capsys):
    with planted(name):
        for seed in range(1, SEEDS_MAX + 1):
            result = run_seed(seed)
            if result.error:
                break
        else:
            raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")
    record_property("seeds to detection", seed)
    with capsys.disabled():
        print(f"\n{name:<32} found by seed {seed:>2}: {result.error.splitlines()[0][:100]}", end="")


def test_planting_leaves_nothing_behind():
    for name in BUGS:
        with planted(name):
            pass
    assert not run_seed(2, 800).error


def test_a_text_that_is_gone_is_noticed(monkeypatch):
    bug = BUGS["nosync"][0]._replace(old="a line that is not there")
    monkeypatch.setitem(BUGS, "gone", (bug,))
    with pytest.raises(AssertionError, match="the table must follow"), planted("gone"):
        pass
