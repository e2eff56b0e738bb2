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
ELSEWHERE = {"token_stream.py", "fastapi_app.py"}  # have tests of their own


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


def test_every_block_of_the_quickstart_runs_also_after_the_commands_of_the_readme(tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    (start,) = re.findall(r"^```sh\n\. \.venv/bin/activate\n(driftq .*?)^```", readme, re.MULTILINE | re.DOTALL)
    text = (EXAMPLES.parent / "docs" / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks].count("python") >= 5
    printed = ""
    with running(None) as server:
        environment = {**os.environ, "DRIFTQ_URL": f"http://127.0.0.1:{server.port}", "XDG_CONFIG_HOME": str(tmp_path)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        assert "key=user:1  hello" in typed(start, environment)
        with subprocess.Popen(
            [sys.executable, "-u", "-c", PASTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment, cwd=tmp_path,
        ) as python:  # fmt: skip
            for kind, block in blocks:
                printed += pasted(python, block) if kind == "python" else typed(block, environment)
            assert python.stdin is not None
            python.stdin.close()
            assert python.wait(60) == 0
    for shown in re.findall(r"^```text\n(orders: created.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert shown in printed
    assert "charging 250 cents, attempt 1" in printed
    assert "charging 500 cents, attempt 1" in printed
    assert "{'step': 'test'}" in printed
    assert '{"step":"test"}' in printed


def typed(block: str, environment: dict[str, str]) -> str:
    """What a block prints in a shell."""
    ended = subprocess.run(
        ["sh", "-e", "-c", block], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert ended.returncode == 0, block + ended.stderr
    return ended.stdout


def pasted(python: subprocess.Popen[str], block: str) -> str:
    """The output of a block, after the blocks before it."""
    assert python.stdin is not None
    assert python.stdout is not None
    python.stdin.write(block + "\0")
    python.stdin.flush()
    printed = ""
    while (line := python.stdout.readline()) != "end of the block\n":
        assert line, f"this block failed:\n{block}"
        printed += line
    return printed


# Blocks come in on stdin, each with a zero at its end, and are run one after the other in one place.
PASTED = """
import sys
place = {"__name__": "__main__"}
rest = ""
while data := sys.stdin.read(1):
    if data != chr(0):
        rest += data
        continue
    exec(rest, place)
    rest = ""
    print("end of the block")
"""


def test_the_quickstart_can_be_pasted_into_an_interactive_python(tmp_path):
    text = (EXAMPLES.parent / "docs" / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with running(None) as server:
        environment = {**os.environ, "DRIFTQ_URL": server.url, "XDG_CONFIG_HOME": str(tmp_path)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        typed(next(block for kind, block in blocks if kind == "sh"), environment)
        # A person presses Enter after pasting.
        lines = "\n".join(block for kind, block in blocks if kind == "python")
        ended = subprocess.run(
            [sys.executable, "-i", "-q", "-u"],
            input=f"{lines}\nexit()\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
            env=environment,
        )
    assert ended.returncode == 0
    assert "Error" not in ended.stderr, ended.stderr[-4_000:]
    assert "10000 written" in ended.stdout
    assert len(ended.stdout.splitlines()) < 60, "results that are not assigned are not printed"


def test_the_curl_lines_of_the_readme_do_what_they_say(tmp_path):
    text = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(curl .*?)^```", text, re.MULTILINE | re.DOTALL)
    with running(None) as server:
        lines = block.replace("localhost:8080", f"127.0.0.1:{server.port}")
        ended = subprocess.run(
            ["bash", "-c", lines], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
        )
        assert '"error"' not in ended.stdout, ended.stdout
        assert '"duplicate":true' in ended.stdout
        # On a slow machine the reader may miss the first word, but not the last.
        assert '{"token":"you"}' in ended.stdout
        group = server.call("GET", "/v1/topics/letters/groups/post").json()
        assert group["lag"] == 0
