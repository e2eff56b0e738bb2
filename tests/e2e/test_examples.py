"""Every example runs as its own text says, against a broker started as its own text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import running

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {"token_stream.py"}  # has a test of its own


def run(name: str, port: int, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "DRIFTQ_URL": f"http://127.0.0.1:{port}"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=environment, cwd=cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_agent_pipeline_shows_where_each_step_came_from(tmp_path):
    rules = ("router.kind=rules", f"router.target={EXAMPLES / 'rules.toml'}")
    with running(None, *rules) as server:
        lines = run("agent_pipeline.py", server.port, cwd=tmp_path).splitlines()
    assert lines[0].endswith(": plan")
    assert sorted(lines[1:]) == [f"  research-{number} -> write-{number} (routed as writing)" for number in (1, 2, 3)]


def test_the_payment_worker_charges_and_books_everything_once(tmp_path):
    with running(None) as server:
        assert run("payment_worker.py", server.port, cwd=tmp_path) == "charged 9, booked 9, rejected 1\n"


def test_the_batch_ingest_writes_each_line_once_however_often_it_runs(tmp_path):
    with running(str(tmp_path / "data")) as server:
        first = run("batch_ingest.py", server.port, cwd=tmp_path)
        assert first.startswith("50000 lines")
        assert first.endswith("then 0\n")
        assert run("batch_ingest.py", server.port, cwd=tmp_path).startswith("0 lines")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_no_example_is_without_a_test(path):
    assert path.name in ELSEWHERE | {"agent_pipeline.py", "payment_worker.py", "batch_ingest.py"}


def test_every_block_of_the_quickstart_runs():
    text = (EXAMPLES.parent / "docs" / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    program = "\n".join(blocks) + "\nprint('end of the page')\nbroker.close()\n"
    with running(None) as server:
        environment = {**os.environ, "DRIFTQ_URL": f"http://127.0.0.1:{server.port}"}
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "charging 500 cents, attempt 1" in ended.stdout
    assert "end of the page" in ended.stdout
