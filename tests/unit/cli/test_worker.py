"""`driftq worker`: what it refuses before it starts anything."""

from __future__ import annotations

import sys

from click.testing import CliRunner

from driftq.cli.worker import command


def test_windows_gets_a_sentence_and_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    ended = CliRunner().invoke(command, ["app"])
    assert ended.exit_code == 2
    assert "driftq worker does not run on Windows" in ended.stderr
    assert "driftq.run(…)" in ended.stderr
