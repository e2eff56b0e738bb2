"""A start with a wrong clock is reported, nothing expires because of it, and one command corrects it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.server import Server, running

DAY_S = 86_400
_MAIN = """
import sys, time
wrong_ns, true_ns, true_s = int(sys.argv.pop(1)) * 1_000_000_000, time.time_ns, time.time
time.time_ns = lambda: true_ns() + wrong_ns
time.time = lambda: true_s() + wrong_ns / 1e9
from driftq.cli.main import main
main()
"""


def wrong_by(seconds: int) -> Callable[[list[str], dict[str, str]], subprocess.Popen[str]]:
    """Starts a server on a machine whose clock is wrong."""

    def start(arguments: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _MAIN, str(seconds), *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)

    return start


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def produce_with_deadline(server: Server) -> int:
    envelope = {"deadline": in_an_hour()}
    return server.call("POST", "/v1/produce", {"topic": "t", "value": "v", "envelope": envelope}).status


def metric(server: Server, name: str) -> float:
    page = server.call("GET", "/v1/metrics").body.decode()
    return float(next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1])


def fill(server: Server) -> None:
    assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
    assert server.call("PATCH", "/v1/topics/t", {"retention_ms": 3_600_000}).status == 200
    keyed = {"topic": "t", "value": "once", "envelope": {"idempotency_key": "k"}}
    assert server.call("POST", "/v1/produce", keyed).status == 200
    assert server.call("PUT", "/v1/stream/s", b"x", {"content-type": "text/plain", "stream-ttl": "3600"}).status == 201
    claimed = server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "w", "lease_ms": 3_600_000})
    assert len(claimed.json()["messages"]) == 1


@pytest.mark.parametrize("days", [10, -10])
def test_a_wrong_clock_at_one_start_is_reported_and_ends_nothing(
    tmp_path: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "data")
    with running(folder) as server:
        fill(server)
    with monkeypatch.context() as wrong:
        wrong.setattr(Server, "launch", staticmethod(wrong_by(days * DAY_S)))
        with running(folder) as server:
            ready = server.call("GET", "/v1/readyz")
            assert ready.status == 200
            assert "driftq clock accept" in ready.json()["warnings"][0]
            assert metric(server, "driftq_clock_held") == 1
            assert metric(server, "driftq_clock_ahead_seconds") == pytest.approx(days * DAY_S, abs=300)
            assert produce_with_deadline(server) == 200
            assert server.call("GET", "/v1/stream/s?offset=-1").status == 200
            keyed = {"topic": "t", "value": "once", "envelope": {"idempotency_key": "k"}}
            assert server.call("POST", "/v1/produce", keyed).json()["duplicate"]
            states = server.call("GET", "/v1/topics/t/groups/g").json()
            assert states["in_flight"] == 1
        assert any("the machine's clock" in line and "WARNING" in line for line in server.lines)
    with running(folder) as server:
        assert "warnings" not in server.call("GET", "/v1/readyz").json()
        assert produce_with_deadline(server) == 200
        assert server.call("GET", "/v1/stream/s?offset=-1").status == 200
        assert metric(server, "driftq_clock_held") == 0
    assert not any("the machine's clock" in line for line in server.lines)


def test_a_folder_that_was_created_with_a_wrong_clock_is_corrected_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "data")
    with monkeypatch.context() as wrong:
        wrong.setattr(Server, "launch", staticmethod(wrong_by(10 * DAY_S)))
        with running(folder) as server:
            fill(server)
    server = Server(folder)
    try:
        assert server.call("GET", "/v1/clock").json()["held"]
        assert produce_with_deadline(server) == 400, "ten days ahead, the deadline is long past"
        command = [sys.executable, "-m", "driftq.cli.main", "--url", server.url, "clock", "accept"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
        assert asked.returncode == 2, "it asks first"
        done = subprocess.run([*command, "--yes"], capture_output=True, text=True, timeout=60, check=True)
        assert "broker" in done.stdout
        check_corrected(server)
        server.kill()
        server = Server(folder)
        check_corrected(server)
    finally:
        server.kill()


def check_corrected(server: Server) -> None:
    clock = server.call("GET", "/v1/clock").json()
    assert not clock["held"]
    assert abs(datetime.fromisoformat(clock["broker_at"]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert produce_with_deadline(server) == 200
    assert server.call("GET", "/v1/stream/s?offset=-1").status == 200
    later = {"topic": "t", "id": f"j{server.port}", "task": "x", "value": "v", "not_before": in_an_hour()}
    assert server.call("POST", "/v1/jobs", later).status == 201
    claim = {"topic": "t", "group": "g2", "owner": "w", "task": "x"}
    assert server.call("POST", "/v1/claim", claim).json()["messages"] == []
    # The lease that ran keeps what it had left: about an hour.
    pending = server.call("GET", "/v1/topics/t/groups/g/states?partition=0").json()["pending"]
    assert pending["state"][0] == "leased"
    until = datetime.fromisoformat(pending["lease_until"][0])
    assert timedelta(minutes=30) < until - datetime.now(UTC) <= timedelta(minutes=61)
