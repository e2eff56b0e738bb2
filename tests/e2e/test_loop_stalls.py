"""Work that holds the event loop is counted and logged with its cause."""

from __future__ import annotations

import pytest

from tests.support.measured_server import measured_server
from tests.support.server import running

ROUTER = """
import time

def slow(message):
    end_s = time.thread_time() + 0.25
    while time.thread_time() < end_s:
        pass
"""
SETTINGS = ("router.kind=python", "router.target=stall_router:slow", "router.inline=true")


@pytest.fixture
def router_folder(tmp_path, monkeypatch):
    (tmp_path / "stall_router.py").write_text(ROUTER)
    monkeypatch.syspath_prepend(str(tmp_path))  # for a server on a thread
    monkeypatch.chdir(tmp_path)  # for a server process


@pytest.mark.usefixtures("router_folder")
def test_a_stall_is_in_the_metrics_and_in_the_log():
    with running(None, *SETTINGS) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        assert server.call("POST", "/v1/produce", {"topic": "t", "value": "x"}).status == 200
        page = server.call("GET", "/v1/metrics").body.decode()
    assert 'driftq_loop_stall_seconds_count{cause="POST /v1/produce"} 1.0' in page
    assert 'driftq_loop_stall_seconds_bucket{cause="POST /v1/produce",le="0.2"} 0.0' in page
    assert [line for line in server.lines if "the event loop was held for" in line and "POST /v1/produce" in line]


@pytest.mark.usefixtures("router_folder")
def test_a_measured_server_reports_the_longest_turn_of_each_cause(tmp_path):
    with measured_server(str(tmp_path / "data"), *SETTINGS) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.assert_no_turn_above(0.2)
        assert server.call("POST", "/v1/produce", {"topic": "t", "value": "x"}).status == 200
        with pytest.raises(AssertionError, match="POST /v1/produce"):
            server.assert_no_turn_above(0.2)
        assert server.longest_s["commit"] < 0.2
        server.reset()
        server.assert_no_turn_above(0.2)


def test_nearly_all_work_has_a_cause(tmp_path):
    """A callback without a cause is measured by the test server only, not by the metrics."""
    with measured_server(str(tmp_path / "data")) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        messages = [{"value": "x" * 1_000}] * 2_000
        assert server.call("POST", "/v1/produce/batch", {"topic": "t", "messages": messages}).status == 200
        claim = {"topic": "t", "group": "g", "owner": "w", "max": 1_000}
        assert len(server.call("POST", "/v1/claim", claim).json()["messages"]) == 1_000
        assert server.call("GET", "/v1/metrics").status == 200
        assert server.call("GET", "/v1/topics/t/partitions/0/messages?max=500").status == 200
        longest_s = server.on_loop(lambda: dict(server.longest_s))
    unnamed = {cause: took_s for cause, took_s in longest_s.items() if not cause.islower() and "/v1/" not in cause}
    assert {"POST /v1/produce/batch", "POST /v1/claim", "commit"} <= set(longest_s), longest_s
    assert max(unnamed.values()) < 0.005, unnamed
