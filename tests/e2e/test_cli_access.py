"""`driftq auth` and `driftq tokens`, and the commands of the guide on access, in the order in which it shows them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.access import TOKENS, first_token
from tests.support.server import Server

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "access.md"
SERVE = re.compile(r"^driftq serve .*\n", re.MULTILINE)


def script(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands in a folder; `driftq` is the program of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "XDG_CONFIG_HOME": str(folder), **env}
    return subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_commands_of_the_guide_work(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    before, serve, after = re.split(f"({SERVE.pattern})", "".join(blocks), maxsplit=1, flags=re.MULTILINE)
    assert TOKENS in serve
    done = script(before, tmp_path)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((tmp_path / "operator.token").stat().st_mode) == 0o600
    server = Server(str(tmp_path / "data"), TOKENS)
    try:
        done = script(after, tmp_path, DRIFTQ_URL=server.url)
        assert done.returncode == 0, done.stderr
        assert "orders 0:0" in done.stdout
        assert "billing" in done.stdout
    finally:
        server.stop()


def test_the_first_token_is_made_once_and_another_one_on_request(tmp_path):
    first = script("driftq auth init --data data", tmp_path)
    assert re.fullmatch(r"dq_[0-9a-f]{16}_[0-9a-f]{64}\n", first.stdout)
    again = script("driftq auth init --data data --to t", tmp_path)
    assert again.returncode != 0
    assert "--another" in again.stderr
    assert not (tmp_path / "t").exists(), "a file for a token that was not made is removed"
    another = script("driftq auth init --data data --another --json", tmp_path)
    assert json.loads(another.stdout)["grants"] == ["admin"]
    taken = script("touch t; driftq auth init --data data --another --to t", tmp_path)
    assert taken.returncode == 2
    assert "cannot be created" in taken.stderr


def test_a_folder_that_a_server_uses_is_left_alone(tmp_path):
    folder = str(tmp_path / "data")
    token = first_token(folder)
    server = Server(folder, TOKENS)
    try:
        refused = script("driftq auth init --data data --another", tmp_path)
        assert refused.returncode != 0
        assert not refused.stdout
        denied = script("driftq topics create a", tmp_path, DRIFTQ_URL=server.url)
        assert denied.returncode == 77
        assert "DRIFTQ_TOKEN" in denied.stderr
        created = script(
            "driftq tokens create reader --grant read:a", tmp_path, DRIFTQ_URL=server.url, DRIFTQ_TOKEN=token
        )
        reader = created.stdout.strip()
        forbidden = script("driftq topics create a", tmp_path, DRIFTQ_URL=server.url, DRIFTQ_TOKEN=reader)
        assert forbidden.returncode == 77
        assert "manage:a" in forbidden.stderr
    finally:
        server.stop()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0"])
def test_a_public_address_is_refused_without_a_mode_and_the_message_says_what_helps(tmp_path, address):
    refused = script(f"driftq serve --memory --listen {address}", tmp_path)
    assert refused.returncode == 2
    assert "auth.mode=tokens" in refused.stderr
    assert "driftq auth init" in refused.stderr
