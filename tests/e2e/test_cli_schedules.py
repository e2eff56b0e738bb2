"""`driftq schedules` against a real server, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from tests.support.server import Server


@pytest.fixture
def topic(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DRIFTQ_URL", server.url)
    with driftq.connect(server.url) as broker:
        broker.topics.create("scheduled")
    return "scheduled"


def run(*argv: str, code: int = 0) -> str:
    """What a command prints. Fails if it ends otherwise than it should."""
    result = CliRunner().invoke(main, ("schedules", *argv))
    assert result.exit_code == code, (argv, result.output, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


def as_json(*argv: str) -> Any:
    return json.loads(run(*argv, "--json"))


def test_a_schedule_is_created_shown_paused_run_and_deleted(topic: str):
    cron = ("--cron", "0 9 * * MON-FRI", "--timezone", "Europe/Paris")
    assert "next: 20" in run("create", "report", topic, "{}", "--task", "mail", *cron)
    created = as_json("create", "sync", topic, "{}", "--every", "15m", "--jitter", "1m", "--catch-up", "all")
    assert (created["every_ms"], created["jitter_ms"], created["catch_up"]) == (900_000, 60_000, "all")
    assert len(as_json("show", "report")["next_times"]) == 10
    assert "give either --cron or --every" in run("create", "never", topic, "x", code=Exit.USAGE)
    assert "with replace it is changed" in run("create", "report", topic, "x", *cron, code=Exit.REFUSED)
    assert as_json("create", "report", topic, "x", *cron, "--replace")["message"]["value"] == "x"
    assert "unknown timezone" in run(
        "create", "bad", topic, "x", "--cron", "0 9 * * *", "--timezone", "Mars/Base", code=Exit.USAGE
    )
    assert "0 9 * * MON-FRI (Europe/Paris)" in run("list", "rep")
    assert [schedule["name"] for schedule in as_json("list", "--topic", topic)] == ["report", "sync"]
    assert run("pause", "report") == "report: paused\n"
    assert as_json("resume", "sync") == {"schedule": "sync", "status": "resumed"}
    assert "paused" in run("show", "report")
    assert "every 15m\njitter    up to 1m\ncatch up  all, up to 366d\n" in run("show", "sync")
    assert as_json("run", "report", "--request-id", "r1")["id"] == "report@r1"
    assert "duplicate" in run("run", "report", "--request-id", "r1")
    assert run("delete", "report", "--yes") == "report: deleted\n"
    assert as_json("delete", "sync", "--yes") == {"schedule": "sync", "status": "deleted"}
    assert run("show", "report", code=Exit.NOTHING_THERE)
