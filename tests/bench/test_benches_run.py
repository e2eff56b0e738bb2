"""Each benchmark ends in a tiny size and prints its results as lines of JSON. Nothing is said about the figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.peers.catalog import PEERS

ROOT = Path(__file__).parents[2]
HAVE_FOLDER = {
    "bench.archive",
    "bench.checkpoint",
    "bench.client",
    "bench.commit",
    "bench.growth",
    "bench.peers",
    "bench.recover",
    "bench.shape",
    "bench.spark",
    "bench.steady",
    "bench.streams",
}
EVERY_LINE = {"bench", "case", "value", "unit", "cpu_us_per_op", "machine", "python", "commit"}


def results(module: str, *arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert figures
    assert len({result["case"] for result in figures}) == len(figures), "two results under one name"
    return figures


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("bench.core", ["--runs", "1", "--commands", "300"]),
        ("bench.scaling", ["--runs", "1", "--large", "1000"]),
        ("bench.leases", ["--runs", "1", "--few", "100", "--many", "500"]),
        ("bench.client", ["--seconds", "0.2"]),
        ("bench.consoles", ["--pages", "3", "--seconds", "0.3", "--rounds", "1"]),
        ("bench.commit", ["--runs", "1", "--seconds", "0.1"]),
        ("bench.checkpoint", ["--seconds", "1.5", "--segment-mb", "1"]),
        ("bench.streams", ["--runs", "1", "--seconds", "0.2", "--readers", "5", "--history-mb", "1"]),
        ("bench.spark", ["--runs", "1", "--warm", "0", "--rows", "20000", "--only", "100 B"]),
        ("bench.spark_sink", ["--only", "packing", "--rows", "50000"]),
        ("bench.peers", ["--rounds", "1", "--seconds", "0.2", "--no-install"]),
        ("bench.steady", ["--seconds", "2", "--per-s", "200"]),
        ("bench.growth", ["--sizes", "50,100", "--only", "dead letters"]),
        ("bench.shape", ["--sizes", "20", "--only", "streams"]),
        ("bench.recover", ["--runs", "1", "--messages", "2000", "--keys", "500", "--streams", "50"]),
        ("bench.schedules", ["--schedules", "50", "--every", "1", "--seconds", "0.2"]),
        ("bench.archive", ["--runs", "1", "--seconds", "0.2", "--messages", "64000"]),
    ],
)
def test_a_benchmark_ends_and_says_what_it_found(module, arguments):
    # Postgres does not run as root, and pytest's folders are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        if module in HAVE_FOLDER:
            arguments = [*arguments, "--folder", folder]
        for result in results(module, *arguments):
            missing = EVERY_LINE - result.keys() - ({"cpu_us_per_op"} if is_a_size(result) else set())
            assert not missing, result
            assert isinstance(result["value"], int | float)
            assert f"bench.{result['bench']}" == module
        assert not list(Path(folder).iterdir()), "a benchmark left files behind"


def test_peers_that_are_here_are_measured_and_the_others_are_named():
    figures = results("bench.peers", "--rounds", "1", "--seconds", "0.2", "--no-install", "--cases", "blocking")
    cases = [str(result["case"]) for result in figures]
    measured = {case.rpartition(": ")[2] for case in cases if case.startswith("one blocking caller: ")}
    missing = {case.rpartition(": ")[2] for case in cases if case.startswith("missing: ")}
    assert {"DriftQ", "Postgres"} <= measured
    assert measured | missing == set(PEERS)
    assert not measured & missing
    assert all(result["reason"] for result in figures if result["unit"] == "missing")


def is_a_size(result: dict[str, object]) -> bool:
    """Memory, the bare sync, a reader's wait and shares have no operation whose CPU time could be shown."""
    return result["unit"] in ("bytes", "MB", "ms", "%", "% of a core", "ms of CPU a second") or str(
        result["case"]
    ).endswith("alone")


def test_a_restart_after_a_kill_without_checkpoint_replays_everything():
    arguments = ["--runs", "1", "--messages", "2000", "--keys", "0", "--streams", "0", "--only", "killed early"]
    (result,) = results("bench.recover", *arguments)
    assert result["replayed"] == 2001
    assert result["snapshot_lsn"] == 0


def test_a_case_can_be_run_alone():
    figures = results("bench.core", "--runs", "1", "--commands", "300", "--only", "plain")
    assert [result["case"] for result in figures] == ["produce plain"]
