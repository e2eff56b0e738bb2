"""Each benchmark ends in a tiny size and prints its results as lines of JSON. Nothing is said about the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVERY_LINE = {"bench", "case", "value", "unit", "cpu_us_per_op", "machine", "python", "commit"}


def results(module: str, *arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert found
    assert len({result["case"] for result in found}) == len(found), "two results under one name"
    return found


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("bench.core", ["--runs", "1", "--commands", "300"]),
        ("bench.shape", ["--runs", "1", "--large", "1000"]),
        ("bench.client", ["--seconds", "0.2"]),
        ("bench.commit", ["--runs", "1", "--seconds", "0.1"]),
        ("bench.checkpoint", ["--seconds", "1.5", "--segment-mb", "1"]),
        ("bench.streams", ["--runs", "1", "--seconds", "0.2", "--readers", "5", "--history-mb", "1"]),
        ("bench.spark", ["--runs", "1", "--warm", "0", "--rows", "20000", "--only", "100 B"]),
        ("bench.spark_sink", ["--only", "packing", "--rows", "50000"]),
        ("bench.recover", ["--runs", "1", "--messages", "2000", "--keys", "500", "--streams", "50"]),
    ],
)
def test_a_benchmark_ends_and_says_what_it_found(module, arguments, tmp_path):
    if module in {"bench.spark", "bench.client", "bench.commit", "bench.checkpoint", "bench.streams", "bench.recover"}:
        arguments = [*arguments, "--folder", str(tmp_path)]
    for result in results(module, *arguments):
        missing = EVERY_LINE - result.keys() - ({"cpu_us_per_op"} if is_a_size(result) else set())
        assert not missing, result
        assert isinstance(result["value"], int | float)
        assert f"bench.{result['bench']}" == module
    assert not list(tmp_path.iterdir()), "a benchmark left files behind"


def is_a_size(result: dict[str, object]) -> bool:
    """Memory, the bare sync and a reader's wait have no operation whose CPU time could be shown."""
    return result["unit"] in ("bytes", "ms") or str(result["case"]).endswith("alone")


def test_a_restart_after_a_kill_without_checkpoint_replays_everything():
    arguments = ["--runs", "1", "--messages", "2000", "--keys", "0", "--streams", "0", "--only", "killed early"]
    (result,) = results("bench.recover", *arguments)
    assert result["replayed"] == 2001
    assert result["snapshot_lsn"] == 0


def test_a_case_can_be_run_alone():
    found = results("bench.core", "--runs", "1", "--commands", "300", "--only", "plain")
    assert [result["case"] for result in found] == ["produce plain"]
