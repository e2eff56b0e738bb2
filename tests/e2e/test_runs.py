"""Runs and the feed of events of a real broker: after a restart, with grants, and with a reader that does not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.access import TOKENS, Operator, bearer, first_token
from tests.support.server import Server, running
from tests.support.wait import until_now


def make_run(call: Any, topic: str, run_id: str, steps: int = 2) -> None:
    call("POST", "/v1/topics", {"name": topic})
    for number in range(steps):
        envelope = {"run_id": run_id, "step_id": f"s{number}", "parent_step_id": f"s{number - 1}" if number else ""}
        body = {"topic": topic, "task": "work", "value": "v", "envelope": envelope}
        assert call("POST", "/v1/jobs", body).status == 201


def test_runs_are_found_again_after_a_restart(tmp_path: Path):
    folder = str(tmp_path / "data")
    with running(folder) as server:
        make_run(server.call, "steps", "r1", 3)
        assert server.call("PUT", "/v1/stream/acme/runs/r1/tokens", b"x", {"Content-Type": "text/plain"}).status == 201
        before = server.call("GET", "/v1/runs/r1").json()
        assert [step["depth"] for step in before["steps"]] == [0, 1, 2]
        assert before["streams"] == ["acme/runs/r1/tokens"]
    with running(folder) as server:
        until_now(lambda: server.call("GET", "/v1/runs").json()["complete"], 10)
        assert server.call("GET", "/v1/runs/r1").json() == before
        make_run(server.call, "steps", "r2", 1)
        assert [run["run_id"] for run in server.call("GET", "/v1/runs?limit=1").json()["runs"]] == ["r2"]
        after = server.call("GET", "/v1/runs?limit=1").json()["after"]
        assert [run["run_id"] for run in server.call("GET", f"/v1/runs?limit=1&after={after}").json()["runs"]] == ["r1"]


@contextmanager
def events(server: Server, headers: dict[str, str]) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of an open feed. Each must come within 20 s."""
    connection = socket.create_connection(("127.0.0.1", server.port), 20)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection.sendall(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())

    def read(file: Any) -> Iterator[tuple[str, Any]]:
        kind = ""
        for line in file:
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])

    with connection, connection.makefile("rb") as file:
        yield read(file)


def test_a_reader_of_events_sees_only_what_its_grants_cover(tmp_path: Path):
    folder = str(tmp_path / "data")
    admin = first_token(folder)
    with running(folder, TOKENS) as server:
        operator = Operator(server, admin)
        token = operator.new("observe", "read:open")
        with events(server, bearer(token)) as feed:
            assert next(feed) == ("ready", {})
            for topic in ("secret", "open"):
                make_run(operator.call, topic, f"run-{topic}", 1)
            seen: dict[str, Any] = {}
            while "appended" not in seen:
                kind, fields = next(feed)
                assert (kind, fields["topic"]) == ("topic", "open")
                seen |= fields
        runs = server.call("GET", "/v1/runs", None, bearer(token)).json()["runs"]
        assert [run["run_id"] for run in runs] == ["run-open"]
        assert server.call("GET", "/v1/runs/run-secret", None, bearer(token)).status == 404
        cancel = server.call("POST", "/v1/runs/run-secret/cancel", None, bearer(token))
        assert cancel.status == 404
        assert server.call("POST", "/v1/runs/run-open/cancel", None, bearer(token)).status == 403


def test_deleting_a_group_makes_readers_read_again_and_counts_are_summed_up():
    with running(None) as server, events(server, {}) as feed:
        assert next(feed)[0] == "ready"
        make_run(server.call, "t", "r", 50)
        server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "w"})
        appended = delivered = 0
        while appended < 50 or not delivered:
            kind, fields = next(feed)
            appended += fields.get("appended", 0) if kind == "topic" else 0
            delivered += fields.get("delivered", 0)
        assert server.call("DELETE", "/v1/topics/t/groups/g").status == 204
        while next(feed)[0] != "resync":
            pass
