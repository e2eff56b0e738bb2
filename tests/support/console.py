"""The console in a real browser: a tab that remembers its errors, and a broker with something of everything."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.support.server import Server

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"`${1}{{1}}'
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

AXE = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
PIPELINE = 100  # requests at a time
PART = 1_000  # jobs that are made, and that die, together

expect.set_options(timeout=20_000)


@contextlib.contextmanager
def browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield chromium
        finally:
            chromium.close()


class Tab:
    """A page of the console. `errors` are those that the browser reports: of scripts, of the security policy, of calls
    that failed. A test that expects some clears them."""

    def __init__(self, chromium: Browser, server: Server, **options: Any) -> None:
        self.context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.server = server
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    def open(self, path: str, heading: str) -> Page:
        self.page.goto(f"{self.server.url}/console/{path}")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(self.page.locator(".skeleton")).to_have_count(0)
        return self.page

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def confirm(self, name: str) -> None:
        """Press a button of the open dialog."""
        self.page.locator("dialog").get_by_role("button", name=name, exact=True).click()

    def field(self, label: str) -> Locator:
        """A field of the open dialog."""
        return self.page.locator("dialog").get_by_label(label, exact=True)

    def is_clean(self) -> None:
        assert self.errors == []
        assert self.page.evaluate("window.hacked") is None

    def close(self) -> None:
        self.context.close()


def serious_findings(page: Page) -> list[Any]:
    return [
        (violation["id"], [node["html"] for node in violation["nodes"]][:3])
        for violation in Axe().run(page, options=AXE).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


def populate(server: Server) -> None:
    """Topics, groups, jobs, dead letters, a run, a worker and streams, with hostile text wherever text can be."""

    def call(method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        reply = server.call(method, path, body, headers)
        assert reply.status < 300, (path, reply.body)
        return json.loads(reply.body) if reply.body and method != "PUT" else None

    for topic in ("orders", "emails"):
        call("POST", "/v1/topics", {"name": topic, "partitions": 2, "history": True})
    for number in range(20):
        value = json.dumps({"order": number, "note": HOSTILE})
        envelope = {"run_id": "run-7", "step_id": f"s{number}", "tenant_id": "acme", "labels": {"x": HOSTILE}}
        call(
            "POST",
            "/v1/produce",
            {"topic": "orders", "key": f"{HOSTILE}{number}", "value": value, "envelope": envelope},
        )
    for number in range(3):
        job = {"topic": "emails", "value": HOSTILE, "task": "send", "id": f"mail-{number}"}
        call("POST", "/v1/jobs", {**job, "delay_ms": 3_600_000} if number == 2 else job)
    claim = {"topic": "orders", "group": "billing", "owner": HOSTILE, "max": 6, "lease_ms": 600_000}
    held = call("POST", "/v1/claim", claim)["messages"]
    rejected = [{key: item[key] for key in ("partition", "offset", "token")} for item in held[:3]]
    call(
        "POST",
        "/v1/reject",
        {"topic": "orders", "group": "billing", "owner": HOSTILE, "reason": HOSTILE, "messages": rejected},
    )
    worker = {"name": HOSTILE, "topic": "emails", "group": "senders", "task": "send", "concurrency": 4, "busy": 1}
    heartbeat = {"host": "host-1", "pid": 1, "version": HOSTILE, "workers": [worker]}
    call("PUT", "/v1/workers/worker-1", heartbeat)
    call("POST", "/v1/tenants", {"name": "acme", "quotas": {"topics": 10}})
    report = {"kind": "archive", "topics": ["orders"], "target": HOSTILE, "batch": 3, "rows": 20, "audit": "exact"}
    call("POST", "/v1/pipelines/warehouse/report", report)
    schedule = {
        "name": "nightly",
        "topic": "emails",
        "cron": "0 3 * * *",
        "message": {"value": HOSTILE, "key": HOSTILE},
    }
    call("POST", "/v1/schedules", schedule)
    batch = {"id": "letters", "topic": "emails", "group": "senders", "jobs": [{"value": HOSTILE}, {"value": "b"}]}
    call("POST", "/v1/job-batches", batch)
    call("PUT", "/v1/stream/runs/7", HOSTILE.encode(), {"Content-Type": "text/plain"})


def fill_large(server: Server, letters: int) -> None:
    """10,000 topics, 100,000 jobs or more, and dead letters of those: half of one kind, half of another one. The texts
    of a kind differ in a number."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for first in range(0, 10_000, PIPELINE):
            names = (f"t-{number:05}" for number in range(first, first + PIPELINE))
            _pipelined(connection, [("/v1/topics", {"name": name, "partitions": 1}) for name in names])
        _pipelined(connection, [("/v1/topics", {"name": "jobs", "partitions": 1})])
        jobs = [*[{"value": "v", "task": "common"}] * 999, {"value": "v", "task": "rare"}]
        for first in range(0, max(100_000, letters), PART):
            _pipelined(connection, [("/v1/produce/batch", {"topic": "jobs", "messages": jobs})])
            if first < letters:
                _reject(server, first)


def _reject(server: Server, number: int) -> None:
    claim = {"topic": "jobs", "group": "g", "owner": "o", "max": PART}
    held = server.call("POST", "/v1/claim", claim).json()["messages"]
    letters = [{key: item[key] for key in ("partition", "offset", "token")} for item in held]
    reason = f"no answer for charge ch_{number}" if number % (2 * PART) else f"card {number} declined"
    rejected = {"topic": "jobs", "group": "g", "owner": "o", "reason": reason, "messages": letters}
    assert server.call("POST", "/v1/reject", rejected).status == 200


def _pipelined(connection: socket.socket, calls: list[tuple[str, object]]) -> None:
    """Send requests at once and wait for as many replies. All must succeed."""
    requests = []
    for path, body in calls:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        requests.append(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    connection.sendall(b"".join(requests))
    replies = b""
    while replies.count(b"HTTP/1.1 20") < len(calls) or not replies.endswith(b"\n"):
        data = connection.recv(1 << 20)
        assert data, replies
        replies += data
        assert b"HTTP/1.1 4" not in replies, replies
