"""No read of any route shows a change that a kill takes back.

The journal's sync is blocked in a real server. Changes are sent and decided, and wait for the sync; then every read of
the route table is sent. If the server is killed now, the changes are lost, and no read may have shown them. If the sync
is unblocked instead, every read is answered, and its answer is still true after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.access import PAGES, first_token
from tests.support.blocked_sync import BlockedSyncServer, compile_blocking_library
from tests.support.handler_fixture import handler_fixture
from tests.support.server import Reply, Server, running
from tests.support.wait import until_now


class Read(NamedTuple):
    """One request, and its route in the route table."""

    route: str
    target: str
    method: str = "GET"
    body: bytes | None = None


TOKEN_ID = "0123456789abcdef"
READS = (
    Read("GET /v1/topics", "/v1/topics"),
    Read("GET /v1/topics/{topic}", "/v1/topics/t"),
    Read("GET /v1/topics/{topic}", "/v1/topics/new"),
    Read("GET /v1/topics/{topic}/offsets", "/v1/topics/t/offsets"),
    Read("GET /v1/topics/{topic}/partitions/{partition}/records", "/v1/topics/t/partitions/0/records"),
    Read("GET /v1/topics/{topic}/partitions/{partition}/messages", "/v1/topics/t/partitions/0/messages"),
    Read("GET /v1/groups", "/v1/groups"),
    Read("GET /v1/topics/{topic}/groups", "/v1/topics/t/groups"),
    Read("GET /v1/topics/{topic}/groups/{group}", "/v1/topics/t/groups/g"),
    Read("GET /v1/topics/{topic}/groups/{group}/states", "/v1/topics/t/groups/g/states"),
    Read("GET /v1/topics/{topic}/groups/{group}/lanes", "/v1/topics/t/groups/g/lanes"),
    Read("GET /v1/explain", "/v1/explain?topic=t&partition=0&offset=0&group=g"),
    Read("GET /v1/idempotency", "/v1/idempotency?topic=t&group=g&key=charge"),
    Read("GET /v1/dlq", "/v1/dlq"),
    Read("GET /v1/jobs", "/v1/jobs?topic=t"),
    Read("GET /v1/topics/{topic}/messages", "/v1/topics/t/messages"),
    Read("POST /v1/jobs/cancel", "/v1/jobs/cancel", "POST", b'{"topic": "u", "ids": ["done"], "dry_run": true}'),
    Read("GET /v1/subscriptions", "/v1/subscriptions"),
    Read("GET /v1/producers", "/v1/producers"),
    Read("GET /v1/dlq/{topic}", "/v1/dlq/t"),
    Read("GET /v1/dlq/{topic}", "/v1/dlq/new"),
    Read("GET /v1/dlq/{topic}/errors", "/v1/dlq/t/errors"),
    Read("GET /v1/dlq/{topic}/errors", "/v1/dlq/new/errors"),
    Read("GET /v1/jobs/{topic}/{id}", "/v1/jobs/t/known"),
    Read("GET /v1/jobs/{topic}/{id}", "/v1/jobs/t/fresh"),
    Read("GET /v1/jobs/{topic}/{id}/result", "/v1/jobs/t/known/result"),
    Read("GET /v1/job-batches", "/v1/job-batches"),
    Read("GET /v1/job-batches/{id}", "/v1/job-batches/known"),
    Read("GET /v1/job-batches/{id}", "/v1/job-batches/fresh"),
    Read("GET /v1/job-batches/{id}/jobs", "/v1/job-batches/known/jobs"),
    Read("GET /v1/job-batches/{id}/results", "/v1/job-batches/known/results"),
    Read("GET /v1/streams", "/v1/streams"),
    Read("GET /v1/streams/records", "/v1/streams/records?stream=s"),
    Read("* /v1/stream/*", "/v1/stream/s"),
    Read("* /v1/stream/*", "/v1/stream/s", "HEAD"),
    Read("* /v1/stream/*", "/v1/stream/s?offset=now"),
    Read("* /v1/stream/*", "/v1/stream/s?producer=p"),
    Read("* /v1/stream/*", "/v1/stream/made"),
    Read("* /v1/stream/*", "/v1/stream/__topics/t/0"),
    Read("* /v1/stream/*", "/v1/stream/__ds/subscriptions/sub"),
    Read("GET /v1/audit", "/v1/audit"),
    Read("GET /v1/tenants", "/v1/tenants"),
    Read("GET /v1/tenants/{tenant}", "/v1/tenants/acme"),
    Read("GET /v1/schedules", "/v1/schedules"),
    Read("GET /v1/schedules/{name}", "/v1/schedules/daily"),
    Read("GET /v1/tokens", "/v1/tokens"),
    Read("GET /v1/tokens/{id}", f"/v1/tokens/{TOKEN_ID}"),
    Read("POST /v1/offsets", "/v1/offsets", "POST", b'{"topics": ["t"]}'),
    Read("POST /v1/route", "/v1/route", "POST", b'{"topic": "new", "value": "x"}'),
    # Refusals, and calls that change nothing, depend on the state too.
    Read("POST /v1/jobs/{topic}/{id}/cancel", "/v1/jobs/u/done/cancel", "POST"),
    Read("POST /v1/dlq/{topic}/redrive", "/v1/dlq/new/redrive", "POST", b'{"dry_run": true}'),
    Read("POST /v1/dlq/{topic}/delete", "/v1/dlq/new/delete", "POST", b'{"dry_run": true}'),
    Read("GET /v1/dlq/{topic}/export", "/v1/dlq/t/export"),
    Read("POST /v1/jobs/retry", "/v1/jobs/retry", "POST", b'{"topic": "new", "dry_run": true}'),
    Read("POST /v1/jobs/{topic}/{id}/retry", "/v1/jobs/u/done/retry", "POST"),
    Read("POST /v1/topics/{topic}/purge", "/v1/topics/new/purge", "POST", b'{"dry_run": true}'),
    Read("POST /v1/topics/{topic}/move", "/v1/topics/new/move", "POST", b'{"to": "t", "dry_run": true}'),
    Read("PATCH /v1/topics/{topic}", "/v1/topics/u", "PATCH", b'{"retention_ms": 0}'),
)
# Dead letters are listed from durable records alone: one that is written during the wait is not in the answer yet.
SHOWN_LATER = {"GET /v1/dlq/{topic}", "GET /v1/dlq/{topic}/errors", "GET /v1/dlq/{topic}/export"}

OF_THE_PROCESS = {
    "GET /v1/healthz", "GET /v1/readyz", "GET /v1/version", "GET /v1/metrics", "GET /v1/openapi.json", "GET /v1/docs",
    "HEAD /v1/healthz", "HEAD /v1/readyz", "HEAD /v1/metrics", "GET /v1/clock",
    # Samples, which are taken by queries and are durable when they are finished.
    "GET /v1/jobs/counts", "GET /v1/events", "GET /v1/runs", "GET /v1/runs/{id}",
    "GET /v1/overview", "GET /v1/series", "GET /v1/series/names",
    "GET /v1/config", "GET /v1/pipelines", "POST /v1/pipelines/{name}/report",
    # The registry of workers is presence, in memory: no part of the state.
    "GET /v1/workers", "GET /v1/workers/{id}", "PUT /v1/workers/{id}", "DELETE /v1/workers/{id}",
    "POST /v1/workers/{id}/drain", "POST /v1/workers/{id}/stop",
    # A copy of files, whose order has a test of its own with real kills (tests/crash).
    "GET /v1/backup",
    # Keys of a file, and a token that is signed and not stored: it has what the caller's credential has.
    "GET /.well-known/jwks.json", "POST /v1/tokens/derive", "GET /v1/identity",
}  # fmt: skip
CHANGES = {
    "POST /v1/topics", "POST /v1/produce", "GET /v1/consume", "POST /v1/ack", "POST /v1/nack", "POST /v1/produce/batch",
    "POST /v1/produce/packed", "POST /v1/claim", "POST /v1/ack/batch", "POST /v1/nack/batch", "POST /v1/release",
    "POST /v1/reject", "POST /v1/extend", "POST /v1/ack-cumulative", "DELETE /v1/topics/{topic}",
    "DELETE /v1/topics/{topic}/groups/{group}", "POST /v1/topics/{topic}/groups/{group}/seek",
    "POST /v1/topics/{topic}/groups/{group}/pause", "POST /v1/topics/{topic}/groups/{group}/resume",
    "POST /v1/idempotency/begin", "POST /v1/idempotency/commit", "POST /v1/idempotency/fail", "POST /v1/outcome",
    "POST /v1/jobs", "POST /v1/stages", "POST /v1/stages/publish", "POST /v1/stages/forget", "POST /v1/streams/trim",
    "POST /v1/clock/accept", "POST /v1/tokens", "PATCH /v1/tokens/{id}", "DELETE /v1/tokens/{id}",
    "POST /v1/runs/{id}/cancel", "POST /v1/tokens/{id}/rotate", "POST /v1/groups/offsets",
    "POST /v1/job-batches", "POST /v1/job-batches/{id}/jobs", "POST /v1/job-batches/{id}/cancel",
    "POST /v1/tenants", "PATCH /v1/tenants/{tenant}", "DELETE /v1/tenants/{tenant}",
    "POST /v1/schedules", "POST /v1/schedules/{name}/pause", "POST /v1/schedules/{name}/resume",
    "POST /v1/schedules/{name}/run", "DELETE /v1/schedules/{name}",
}  # fmt: skip

GAUGES = re.compile(
    r"^driftq_(topics|groups|streams|idempotency_keys|effect_keys|backlog_messages|backlog_bytes|dead_letters|"
    r"consumer_lag_messages|inflight_messages|resting_messages)(\{.*\})? .*$",
    re.MULTILINE,
)
JSON = {"Content-Type": "application/json"}


def test_every_route_is_read_here_or_listed_as_no_read():
    async def table() -> set[str]:
        async with handler_fixture() as at:
            exact = {f"{m} {path.decode()}" for path, methods in at.app._exact.items() for m in methods}
            patterns = {f"{m} /{'/'.join(parts)}" for parts, methods in at.app._patterns for m in methods}
            return exact | patterns | {f"* {prefix.decode()}*" for prefix, _ in at.app._prefixes}

    assert asyncio.run(table()) == {read.route for read in READS} | OF_THE_PROCESS | CHANGES | PAGES


class Scenario:
    """A folder with every kind of object, and changes to all of them."""

    def __init__(self, folder: str) -> None:
        first_token(folder, TOKEN_ID, ("observe", "read:a"))
        with running(folder, "audit.mode=on") as server:
            self._set_up(server)
            self.before = {read: ask(server, read) for read in READS}

    def _set_up(self, server: Server) -> None:
        def done(method: str, target: str, body: object = None, **headers: str) -> Any:
            reply = server.call(method, target, body, headers)
            assert reply.status < 300, reply
            return json.loads(reply.body) if reply.body.startswith(b"{") else None

        done("POST", "/v1/topics", {"name": "t"})
        done("POST", "/v1/topics", {"name": "u"})
        done("POST", "/v1/tenants", {"name": "acme"})
        schedule = {"name": "daily", "topic": "t", "message": {"value": "v"}, "cron": "0 9 1 1 *"}
        done("POST", "/v1/schedules", schedule)
        done("POST", "/v1/jobs", {"topic": "u", "id": "done", "task": "x", "value": "v"})
        for _ in range(3):
            done("POST", "/v1/produce", {"topic": "t", "value": "v"})
        claim = {"topic": "t", "group": "g", "owner": "o", "max": 3, "lease_ms": 600_000}
        self.token = done("POST", "/v1/claim", claim)["messages"][0]["token"]
        done("POST", "/v1/reject", {**self.held(2), "reason": "bad"})
        done("POST", "/v1/jobs", {"topic": "t", "id": "known", "task": "x", "value": "v"})
        done("POST", "/v1/job-batches", {"id": "known", "topic": "t", "jobs": [{"value": "v"}]})
        key = {"topic": "t", "group": "g", "key": "charge"}
        self.fence = done("POST", "/v1/idempotency/begin", {**key, "owner": "o", "lease_ms": 600_000})["fence"]
        done("PUT", "/v1/stream/s", b"one", **{"Content-Type": "text/plain"})
        done("PUT", "/v1/stream/__ds/subscriptions/sub", self.subscription("first"), **JSON)

    def held(self, offset: int) -> dict[str, Any]:
        message = {"partition": 0, "offset": offset, "token": self.token}
        return {"topic": "t", "group": "g", "owner": "o", "messages": [message]}

    def subscription(self, *streams: str) -> dict[str, Any]:
        return {"type": "pull-wake", "streams": list(streams), "wake_stream": "wakes"}

    def changes(self) -> Iterator[tuple[str, str, object, dict[str, str]]]:
        """Each writes one frame. Together they change the answer of every read."""
        yield "POST", "/v1/topics", {"name": "new"}, {}
        yield "POST", "/v1/produce", {"topic": "t", "value": "w"}, {}
        yield "POST", "/v1/ack/batch", self.held(0), {}
        yield "POST", "/v1/reject", {**self.held(1), "reason": "worse"}, {}
        yield "POST", "/v1/jobs/t/known/cancel", None, {}
        yield "POST", "/v1/jobs", {"topic": "t", "id": "fresh", "task": "x", "value": "v"}, {}
        commit = {"topic": "t", "group": "g", "key": "charge", "fence": self.fence, "result": "RES"}
        yield "POST", "/v1/idempotency/commit", commit, {}
        producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", "Content-Type": "text/plain"}
        yield "POST", "/v1/stream/s", b"two", producer
        yield "PUT", "/v1/stream/made", b"m", {"Content-Type": "text/plain"}
        yield "POST", "/v1/stream/__ds/subscriptions/sub/streams", {"streams": ["second"]}, JSON
        yield "PATCH", f"/v1/tokens/{TOKEN_ID}", {"grants": ["observe"]}, {}
        yield "PATCH", "/v1/tenants/acme", {"topics": 3}, {}
        yield "POST", "/v1/job-batches/known/cancel", None, {}
        yield "POST", "/v1/job-batches", {"id": "fresh", "topic": "t", "jobs": [{"value": "v"}]}, {}
        yield "POST", "/v1/schedules/daily/pause", None, {}
        yield "DELETE", "/v1/topics/u", None, {}


def ask(server: Server, read: Read) -> tuple[int, object]:
    """The answer without the fields that change with time."""
    reply = server.call(read.method, read.target, read.body)
    shown = {name: reply.headers[name] for name in sorted(reply.headers) if "offset" in name}
    return reply.status, [shown, *_stable_body(reply)]


def _stable_body(reply: Reply) -> list[object]:
    try:
        return [_without_time(json.loads(reply.body))]
    except ValueError:
        return [reply.body]


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_time(inner) for name, inner in value.items() if name != "lag_ms"}
    return [_without_time(inner) for inner in value] if isinstance(value, list) else value


def gauges(server: Server) -> list[str]:
    reply = server.call("GET", "/v1/metrics")
    return [match[0] for match in GAUGES.finditer(reply.body.decode())]


def decided(server: Server) -> int:
    page = server.call("GET", "/v1/metrics").body.decode()
    return int(float(re.findall(r'driftq_journal_lsn\{state="decided"\} (.*)', page)[0]))


class Calls:
    """Requests that may never be answered, each in a thread of its own."""

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}
        self._threads: list[threading.Thread] = []

    def add(self, name: Any, call: Any) -> None:
        def run() -> None:
            with contextlib.suppress(OSError, HTTPException):  # killed
                self.answers[name] = call()

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_blocking_library(tmp_path_factory.mktemp("preload"))


class BlockedReads:
    """The scenario up to the moment when every read was sent and none can be answered, because the sync is blocked."""

    def __init__(self, folder: str, library: str, hold: Path) -> None:
        self.scenario = Scenario(folder)
        self.server = server = BlockedSyncServer(folder, library, hold, "audit.mode=on")
        self.gauges = gauges(server)
        lsn = decided(server)
        server.block_syncs()
        self.calls = Calls()
        # The block of this produce is written and its sync is blocked. What follows is only in memory.
        first = {"topic": "u", "value": "first"}
        self.calls.add("first", lambda: server.call("POST", "/v1/produce", first))
        server.wait_until_blocked()
        changes = list(self.scenario.changes())
        for change in changes:
            self.calls.add(change[:2], lambda change=change: server.call(*change))
        until_now(lambda: decided(server) >= lsn + 1 + len(changes), 30.0)
        for read in READS:
            self.calls.add(read, lambda read=read: ask(server, read))
        # A read that does not wait has its answer by the time these calls return twice.
        for _ in range(2):
            assert server.call("GET", "/v1/readyz").status == 200
            self.gauges_while_blocked = gauges(server)


def test_a_read_never_shows_a_change_that_a_kill_takes_back(tmp_path, library):
    blocked = BlockedReads(str(tmp_path / "data"), library, tmp_path / "hold")
    try:
        early = {name: answer for name, answer in blocked.calls.answers.items() if isinstance(name, Read)}
    finally:
        blocked.server.kill()
        blocked.calls.join()
    with running(str(tmp_path / "data")) as again:
        for read, shown in early.items():
            assert ask(again, read) == shown, f"{read.method} {read.target} showed what a kill took back"
        unchanged = [read for read in READS if ask(again, read) == blocked.scenario.before[read]]
        assert len(unchanged) > len(READS) // 2, "the changes survived the kill: this run proves nothing"
    assert not early, "a read of the state did not wait"
    assert blocked.gauges_while_blocked == blocked.gauges


def test_reads_that_waited_show_the_changes_they_waited_for(tmp_path, library):
    blocked = BlockedReads(str(tmp_path / "data"), library, tmp_path / "hold")
    try:
        blocked.server.unblock_syncs()
        blocked.calls.join()
        answers = blocked.calls.answers
        for read in READS:
            assert read in answers
            if read.route not in SHOWN_LATER:
                assert answers[read] != blocked.scenario.before[read], f"{read.method} {read.target} shows no change"
        assert gauges(blocked.server) != blocked.gauges
    finally:
        blocked.server.kill()
    with running(str(tmp_path / "data")) as again:
        for read in READS:
            if read.route not in SHOWN_LATER:
                assert ask(again, read) == answers[read]
