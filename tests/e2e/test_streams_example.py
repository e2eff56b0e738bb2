"""The example of a token stream prints what its guide shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.server import running

EXAMPLE = Path(__file__).parents[2] / "examples" / "token_stream.py"


def test_the_token_stream_survives_its_worker(tmp_path):
    with running(str(tmp_path / "data")) as server:
        command = [sys.executable, str(EXAMPLE), f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "was refused: epoch 1 is over, epoch 2 writes" in done.stdout
        stream = done.stdout.splitlines()[0].removeprefix(server.url)
        assert "NOISE" not in server.call("GET", stream).body.decode()
        again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 0, again.stderr
        assert again.stdout.splitlines()[0] != done.stdout.splitlines()[0], "every run has a stream of its own"
