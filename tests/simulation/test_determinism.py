"""The same seed twice gives the same run: in this process, and in two others whose strings hash differently."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.run import run_seed
from tests.simulation.swarm import draw

SEEDS = [3, 5, 11, 18]  # plain, flips, lies, plain
ASK = "import sys; from tests.simulation.run import run_seed; print(run_seed(int(sys.argv[1]), 1500).trace)"


def elsewhere(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(seed)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("number", SEEDS)
def test_one_seed_gives_one_trace_in_every_process(number):
    here = run_seed(number, 1500).trace
    assert elsewhere(number, "1") == elsewhere(number, "4242") == here


def test_two_seeds_give_two_traces():
    traces = {run_seed(number, 300).trace for number in range(1, 9)}
    assert len(traces) == 8


def test_a_trace_does_not_depend_on_printing():
    lines: list[str] = []
    assert run_seed(3, 300, lines.append).trace == run_seed(3, 300).trace
    assert len(lines) > 300


def test_every_seed_leaves_something_out():
    swarms = [draw(number, 100) for number in range(200)]
    assert {swarm.kind for swarm in swarms} == {"plain", "flips", "lies"}
    for name in ("idempotent", "keyed", "jobs", "stream", "stager", "effects", "admin"):
        assert {name in swarm.weights for swarm in swarms} == {True, False}
