"""The overview and the time series of a real broker, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftq.server.observation.series import STEP_MS, STEPS_MAX, Ring, SeriesTable, seal
from tests.support.server import Server, running
from tests.support.wait import until_now


def make_work(server: Server) -> None:
    assert server.call("POST", "/v1/topics", {"name": "orders"}).status == 201
    for _ in range(5):
        assert server.call("POST", "/v1/produce", {"topic": "orders", "value": "v"}).status == 200
    claim = {"topic": "orders", "group": "billing", "owner": "w", "max": 2}
    message = server.call("POST", "/v1/claim", claim).json()["messages"][0]
    body = {"topic": "orders", "group": "billing", "messages": [message_of(message)], "reason": "bad"}
    assert server.call("POST", "/v1/reject", body).json() == {"refused": []}


def message_of(message: dict[str, Any]) -> dict[str, Any]:
    return {"partition": message["partition"], "offset": message["offset"], "token": message["token"]}


def overview(server: Server) -> Any:
    return server.call("GET", "/v1/overview").json()


def test_the_overview_counts_what_there_is_and_says_what_needs_attention(tmp_path: Path):
    with running(str(tmp_path / "data")) as server:
        make_work(server)
        until_now(lambda: overview(server)["counts"]["dead_letters"] == 1, 10)
        shown = overview(server)
        counts = shown["counts"]
        assert (counts["topics"], counts["lag"], counts["in_flight"], counts["messages"]) == (1, 4, 1, 5)
        assert shown["durability"] == "fsync"
        assert shown["rates"]["produced"] > 0
        assert shown["latency"]["fsync_p99_ms"] > 0
        assert shown["disk"]["used_bytes"]["journal"] > 0
        assert [(item["kind"], item["link"]) for item in shown["attention"] if item.get("topic")] == [
            ("dead_letters", "/v1/dlq/orders/errors")
        ] or shown["attention"][0]["kind"] == "dead_letters_rise"


def test_series_continue_after_a_restart_and_damage_is_ignored(tmp_path: Path):
    folder = tmp_path / "data"

    def measured(server: Server) -> Any:
        reply = server.call("GET", "/v1/series?names=produced,messages&window_ms=600000").json()
        return reply if any(value is not None for value in reply["series"]["messages"]) else None

    with running(str(folder)) as server:
        make_work(server)
        until_now(lambda: measured(server) is not None, 10)
        assert measured(server)["step_ms"] == 10_000
        assert server.call("GET", "/v1/series?topic=none").status == 404
        assert server.call("GET", "/v1/series?group=g").status == 400
        assert server.call("GET", "/v1/series?names=nothing").status == 400
    saved = SeriesTable()
    assert saved.restore((folder / "series.bin").read_bytes())
    last_step = saved.totals.last_step
    saved.totals = Ring(saved.totals.columns, STEP_MS, STEPS_MAX)
    saved.totals.put((last_step - 3) * STEP_MS, {"messages": 42})
    (folder / "series.bin").write_bytes(seal(saved.pack()))
    with running(str(folder)) as server:
        until_now(lambda: measured(server) is not None, 10)
        assert 42 in measured(server)["series"]["messages"]
    (folder / "series.bin").write_bytes(seal(saved.pack())[:-1])
    with running(str(folder)) as server:
        assert overview(server)["counts"]["messages"] == 5
