"""A broker with the content of a small company, for the pictures of the console and for looking at it.

    .venv/bin/python -m tests.support.showcase        serves it on a free port until Ctrl-C

Topics with partitions that are not equal, groups that are late, paused and busy, jobs in every state, dead letters of
several kinds, an agent's run with streams, workers on three hosts, tenants, pipelines, and series of the last hours,
which are made up. All of it goes through the API, except the series: those are written before the broker starts again.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.made_up_series import write_series
from tests.support.server import Server, running

TOPICS = {"orders": 6, "payments": 4, "emails": 2, "invoices": 2, "web-events": 8, "agent-steps": 4, "search-index": 2}
TRACEBACK = """Traceback (most recent call last):
  File "/app/billing/handlers.py", line 41, in charge
    receipt = gateway.charge(order.customer, order.total)
  File "/app/billing/gateway.py", line 88, in charge
    raise GatewayTimeout(f"no answer for charge {charge_id} after 30 s")
billing.gateway.GatewayTimeout: no answer for charge ch_%06d after 30 s"""
ERRORS = (
    (TRACEBACK, "acme", 23),
    ("card declined: insufficient funds for customer %d", "globex", 9),
    ("KeyError: 'vat_id' in order %d", "acme", 4),
    ("ValidationError: total -%d.00 is below zero", "initech", 2),
)
CHAT = b'[{"from":"ada","text":"hello"},{"from":"grace","text":"hi"}]'
STORY = (
    "The warehouse in Rotterdam has three of the four items. The fourth, a green lamp, is due on Thursday. I suggest "
    "that we send the three today and the lamp later: the customer pays no second delivery, and the order leaves the "
    "building within the promised two days. "
)


class Caller:
    """Calls the broker, and fails if it refuses."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.chance = random.Random(7)

    def __call__(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        reply = self.server.call(method, path, body, headers)
        assert reply.status < 300, (method, path, reply.body)
        return json.loads(reply.body) if reply.body and method in ("GET", "POST") else None


@contextmanager
def showcase(folder: str, *settings: str) -> Iterator[Server]:
    with running(folder, *settings) as server:
        fill(Caller(server))
    write_series(Path(folder), tuple(TOPICS))
    with running(folder, *settings) as server:
        _workers(Caller(server))
        _reports(Caller(server))
        yield server


def fill(call: Caller) -> None:
    for topic, partitions in TOPICS.items():
        call("POST", "/v1/topics", {"name": topic, "partitions": partitions, "history": topic in ("orders", "emails")})
    _orders(call)
    _jobs(call)
    _runs(call)
    _streams(call)
    _tenants(call)
    _schedules(call)


def _orders(call: Caller) -> None:
    chance = call.chance
    cities = ("Rotterdam", "Porto", "Gdańsk", "Bergen", "Lyon")
    batches: dict[str, list[dict[str, Any]]] = {"orders": [], "web-events": [], "payments": []}
    for number in range(1, 900):
        customer = int(abs(chance.gauss(0, 40)))
        order = {
            "order": 4_000 + number,
            "customer": f"c-{customer}",
            "total": round(chance.uniform(4, 300), 2),
            "city": chance.choice(cities),
            "items": [{"sku": f"lamp-{chance.randrange(30)}", "count": chance.randrange(1, 4)}],
        }
        tenant = chance.choice(("acme", "acme", "globex", "initech"))
        labels = {"channel": chance.choice(("web", "app", "partner"))}
        envelope = {"tenant_id": tenant, "labels": labels}
        batches["orders"].append({"value": json.dumps(order), "key": f"c-{customer}", "envelope": envelope})
        event = {"page": f"/lamps/{chance.randrange(40)}", "ms": chance.randrange(20, 900)}
        batches["web-events"].append({"value": json.dumps(event), "key": f"s-{chance.randrange(90)}"})
        if number % 3 == 0:
            batches["payments"].append({"value": json.dumps({"charge": f"ch_{number:06}"}), "key": f"c-{customer}"})
    for topic, messages in batches.items():
        for first in range(0, len(messages), 300):
            call("POST", "/v1/produce/batch", {"topic": topic, "messages": messages[first : first + 300]})
    for group, acked in (("billing", 700), ("fulfilment", 850), ("analytics", 240)):
        _work(call, "orders", group, acked)
    number = 0
    for error, _, count in ERRORS:
        claimed = _claim(call, "orders", "billing", count)
        for item in claimed:
            number += 1
            text = error % (number * 37)
            _settle(call, "reject", "orders", "billing", [item], reason=text)
    _claim(call, "orders", "billing", 9, owner="billing-2", lease_ms=900_000)
    for item in _claim(call, "orders", "billing", 12):
        body = {"topic": "orders", "group": "billing", "owner": "billing-1", "reason": "gateway answered 503"}
        call("POST", "/v1/nack", {**body, **_place(item)})
    call("POST", "/v1/topics/orders/groups/analytics/pause")
    call("POST", "/v1/produce", {"topic": "payments", "value": "\u0000binary", "key": "raw"})


def _claim(call: Caller, topic: str, group: str, count: int, **more: Any) -> list[dict[str, Any]]:
    body = {"topic": topic, "group": group, "owner": f"{group}-1", "max": count, "lease_ms": 600_000, **more}
    messages: list[dict[str, Any]] = call("POST", "/v1/claim", body)["messages"]
    return messages


def _place(item: dict[str, Any]) -> dict[str, Any]:
    return {key: item[key] for key in ("partition", "offset", "token")}


def _settle(call: Caller, how: str, topic: str, group: str, items: list[dict[str, Any]], **more: Any) -> None:
    places = [_place(item) for item in items]
    call("POST", f"/v1/{how}", {"topic": topic, "group": group, "owner": f"{group}-1", "messages": places, **more})


def _work(call: Caller, topic: str, group: str, count: int) -> None:
    while count > 0 and (items := _claim(call, topic, group, min(count, 100))):
        _settle(call, "ack/batch", topic, group, items)
        count -= len(items)


def _jobs(call: Caller) -> None:
    for number in range(60):
        task = ("send_welcome", "send_receipt", "send_reminder")[number % 3]
        job: dict[str, Any] = {"topic": "emails", "task": task, "id": f"mail-{1_000 + number}"}
        job["value"] = json.dumps({"to": f"user{number}@shop.example", "template": task})
        job["envelope"] = {"tenant_id": ("acme", "globex")[number % 2], "retry_policy": {"max_attempts": 2}}
        if number >= 48:
            job["delay_ms"] = 60_000 * (number - 40)
        call("POST", "/v1/jobs", job)
    claimed = _claim(call, "emails", "senders", 40)
    for index, item in enumerate(claimed):
        where = {"topic": "emails", "group": "senders", "owner": "senders-1", **_place(item)}
        if index < 24:
            call("POST", "/v1/ack", where)
        elif index < 31:
            call("POST", "/v1/nack", {**where, "reason": "SMTPServerDisconnected: connection lost to mx2"})
        elif index < 34:
            _settle(call, "reject", "emails", "senders", [item], reason="550 no such mailbox")
    for number in (57, 58, 59):
        tenant = ("acme", "globex")[number % 2]
        call("POST", f"/v1/jobs/emails/mail-{1_000 + number}/cancel?tenant_id={tenant}", {})


STEPS = (
    ("plan", "", "plan"),
    ("stock", "plan", "tool"),
    ("carrier", "plan", "tool"),
    ("quote-dhl", "carrier", "tool"),
    ("quote-gls", "carrier", "tool"),
    ("draft", "plan", "llm"),
    ("review", "draft", "llm"),
    ("send", "review", "tool"),
)


def _runs(call: Caller) -> None:
    for number in range(24):
        run = f"order-{4_100 + number}"
        known = STEPS if number in (0, 23) else STEPS[: 3 + number % 5]
        for step, parent, task in known:
            envelope = {"run_id": run, "step_id": step, "parent_step_id": parent, "tenant_id": "acme"}
            value = json.dumps({"step": step, "order": 4_100 + number})
            job = {"topic": "agent-steps", "value": value, "task": task, "id": f"{run}.{step}", "envelope": envelope}
            if (number, step) == (23, "send"):
                job["delay_ms"] = 240_000
            call("POST", "/v1/jobs", job)
            if number < 22:
                continue
            time.sleep(0.05)
            for item in _claim(call, "agent-steps", "agents", 1):
                if step in ("draft", "review"):
                    continue  # stays with its worker
                if step == "quote-gls":
                    _settle(call, "reject", "agent-steps", "agents", [item], reason="gls: the key has expired")
                else:
                    _settle(call, "ack/batch", "agent-steps", "agents", [item])
        if number == 21:
            _work(call, "agent-steps", "agents", 500)
            time.sleep(0.2)


def _streams(call: Caller) -> None:
    text = {"Content-Type": "text/plain"}
    for number in (4_121, 4_122, 4_123):
        call("PUT", f"/v1/stream/runs/order-{number}/tokens", STORY.encode(), text)
    call("PUT", "/v1/stream/runs/order-4120/tokens", STORY.encode(), {**text, "Stream-Closed": "true"})
    for name in ("support", "sales"):
        call(
            "PUT",
            f"/v1/stream/chat/{name}",
            b'[{"from":"ada","text":"hello"},{"from":"grace","text":"hi"}]',
            {"Content-Type": "application/json"},
        )
    call("PUT", "/v1/stream/sessions/8f31", b"", {**text, "Stream-TTL": "3600"})


def _workers(call: Caller) -> None:
    for index, host in enumerate(("kestrel", "merlin", "osprey")):
        functions = [
            {
                "name": "charge",
                "topic": "orders",
                "group": "billing",
                "concurrency": 8,
                "busy": 3 + index,
                "held": 5 + index,
                "acked": 18_204 + 977 * index,
                "failed": 31 * index,
            },
            {
                "name": "send_welcome",
                "topic": "emails",
                "group": "senders",
                "task": "send_welcome",
                "concurrency": 4,
                "busy": index,
                "acked": 2_210 - 400 * index,
            },
            {
                "name": "run_step",
                "topic": "agent-steps",
                "group": "agents",
                "concurrency": 16,
                "busy": 2 * index,
                "acked": 801,
                "failed": 4,
            },
        ]
        body = {
            "host": host,
            "pid": 4_100 + index,
            "version": "0.9.0",
            "uptime_ms": 3_600_000 * (3 + index),
            "workers": functions[: 3 - index % 2],
        }
        call("PUT", f"/v1/workers/{host}-{4_100 + index}", body)


def _tenants(call: Caller) -> None:
    quotas = {"topics": 50, "messages_per_s": 2_000, "stored_bytes": 20 << 30}
    for name in ("acme", "globex", "initech"):
        call("POST", "/v1/tenants", {"name": name, "quotas": quotas})
        quotas = {"topics": 20}


def _schedules(call: Caller) -> None:
    """Reports at night, a reminder each hour, and a check that is paused."""
    for name, cron in (
        ("nightly-report", "0 3 * * *"),
        ("reminders", "0 * * * *"),
        ("stock-check", "*/10 8-18 * * MON-FRI"),
    ):
        message = {"value": json.dumps({"kind": name}), "task": "send_reminder"}
        schedule = {"name": name, "topic": "emails", "cron": cron, "timezone": "Europe/Amsterdam", "message": message}
        call("POST", "/v1/schedules", schedule)
    call("POST", "/v1/schedules/reminders/run", {})
    call("POST", "/v1/schedules/stock-check/pause", {})


def _reports(call: Caller) -> None:
    reports = {
        "orders-table": {
            "kind": "archive",
            "topics": ["orders"],
            "target": "s3://lake/orders",
            "batch": 812,
            "rows": 5_310,
            "took_ms": 2_140,
            "lag": 34,
            "audit": "exact",
        },
        "run-story": {
            "kind": "runs",
            "topics": ["agent-steps"],
            "target": "s3://lake/runs",
            "batch": 90,
            "rows": 77,
            "took_ms": 900,
            "lag": 0,
        },
    }
    for name, report in reports.items():
        call("POST", f"/v1/pipelines/{name}/report", report)


class Life:
    """What happens while the page is open: heartbeats, some orders, and tokens that arrive."""

    def __init__(self, server: Server) -> None:
        self._call = Caller(server)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        words = STORY.split(" ")
        number = 0
        while not self._over.wait(0.15):
            number += 1
            word = f"{words[number % len(words)]} ".encode()
            self._call("POST", "/v1/stream/runs/order-4123/tokens", word, {"Content-Type": "text/plain"})
            if number % 10 == 0:
                _workers(self._call)
            orders = [
                {"value": json.dumps({"order": 9_000 + number, "total": total / 4}), "key": f"c-{total}"}
                for total in range(number, number + 10)
            ]
            self._call("POST", "/v1/produce/batch", {"topic": "orders", "messages": orders})
            for group in ("fulfilment", "billing"):
                _work(self._call, "orders", group, 10)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, showcase(place, *sys.argv[1:]) as shown:
        life = Life(shown)
        print(f"{shown.url}/console/", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            life.end()
