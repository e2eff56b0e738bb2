"""What uses pandas, with the oldest pandas that is supported. All other tests have the newest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed_package import UV, run, run_any
from tests.tidy.sources import ROOT

LOCKED = ("--require-hashes", "--requirement", ROOT / "requirements" / "pandas-2.txt")
TESTS = (
    "tests/spark/test_pipelines.py::test_a_run_is_followed_to_its_end_across_a_restart_of_the_query",
    "tests/spark/test_pipelines_frames.py::test_functions_of_messages_and_of_frames_route_and_unmatched_messages_go_to_the_default",
)
WITH_VERSION = "import pandas, pytest, sys; print('pandas', pandas.__version__); sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.own_spark
def test_pipelines_that_use_pandas_run_with_the_oldest_one(tmp_path: Path) -> None:
    """In another process, which finds that pandas first."""
    folder = tmp_path / "packages"
    with_uv = (UV, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder)
    if run_any(*with_uv, *LOCKED).returncode != 0:
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder, *LOCKED)
    command = [sys.executable, "-c", WITH_VERSION, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *sys.path))}

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=400)

    assert done.stdout.startswith("pandas 2.2."), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
    assert f"{len(TESTS)} passed" in done.stdout
