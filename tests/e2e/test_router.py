"""Routers in a real server process: rules from a file, Python from a module, and a webhook that may misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.support.server import Server, running

RULES = """
[[rule]]
name = "invoices"
match = { topic = "inbox", value = { kind = "invoice" } }
route = { target_topic = "invoices", label = "finance", meta = { by = "rules" } }
"""

MODULE = """
from driftq import RouteDecision

def route(message):
    if message.key == "boom":
        raise RuntimeError("no decision")
    return RouteDecision(label="len-" + str(len(message.value)), partition_override=1)

async def later(message):
    return {"label": "later"}
"""


def produce(server: Server, **body: object) -> dict:
    reply = server.call("POST", "/v1/produce", {"topic": "inbox", "value": "v", **body})
    assert reply.status == 200, reply
    return reply.json()


def claimed(server: Server, topic: str, group: str = "g") -> list[dict]:
    reply = server.call("POST", "/v1/claim", {"topic": topic, "group": group, "owner": "o", "max": 100})
    return reply.json()["messages"]


def topics(server: Server, *names: str) -> None:
    for name in names:
        assert server.call("POST", "/v1/topics", {"name": name, "partitions": 2}).status == 201


def results(server: Server) -> dict[str, float]:
    page = server.call("GET", "/v1/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("driftq_router_decisions_total{")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_a_decision_by_rules_survives_a_kill(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    settings = ("router.kind=rules", f"router.target={tmp_path / 'rules.toml'}")
    folder = str(tmp_path / "data")
    server = Server(folder, *settings)
    try:
        topics(server, "inbox", "invoices")
        body = {"value": '{"kind":"invoice"}', "envelope": {"idempotency_key": "k"}}
        first = produce(server, **body)
        assert (first["topic"], first["routed_topic"]) == ("inbox", "invoices")
        assert produce(server)["routed_topic"] == "inbox"
        server.kill()
        server = Server(folder)  # without a router: the stored decision still holds
        (message,) = claimed(server, "invoices")
        assert message["routing"] == {"label": "finance", "meta": {"rule": "invoices", "by": "rules"}}
        again = server.call("POST", "/v1/produce", {"topic": "inbox", **body}).json()
        assert (again["duplicate"], again["routed_topic"]) == (True, "invoices")
    finally:
        server.stop()


def test_a_python_router_is_loaded_by_name_and_its_failures_are_counted(tmp_path, monkeypatch):
    (tmp_path / "my_router.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with running(None, "router.kind=python", "router.target=my_router:route") as server:
        topics(server, "inbox")
        assert produce(server, value="four")["partition"] == 1
        assert produce(server, key="boom")["partition"] == 0
        assert results(server) == {"routed": 1, "error": 1}
        labels = {message["value"]: message.get("routing") for message in claimed(server, "inbox")}
        assert labels == {"four": {"label": "len-4"}, "v": None}
    assert any("a message was not routed" in line and "no decision" in line for line in server.lines)
    with running(None, "router.kind=python", "router.target=my_router:later", "log.format=json") as server:
        topics(server, "inbox")
        produce(server)
        assert claimed(server, "inbox")[0]["routing"] == {"label": "later"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("router.kind=rules", "router.target=/nowhere/rules.toml"), "No such file"),
        (("router.kind=python", "router.target=nowhere_at_all:x"), "nowhere_at_all"),
        (("router.kind=webhook", "router.target=http://example.org/"), "use https"),
        (("router.kind=rules",), "needs router.target"),
        (("router.kind=oracle",), "router.kind"),
    ],
)
def test_a_router_that_cannot_work_stops_the_start(settings, complaint):
    with pytest.raises(AssertionError) as failed:
        Server(None, *settings)
    assert complaint in str(failed.value)


# --- webhooks ---


class Hook(BaseHTTPRequestHandler):
    """Replies as the message's value asks it to."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[dict]] = []
    connections = 0
    stuck = threading.Event()

    def setup(self) -> None:
        Hook.connections += 1
        super().setup()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Hook.seen.append(body)
        value = body.get("value", "")
        if value == "late":
            Hook.stuck.wait(20)
        status, text = {
            "none": (204, b""),
            "null": (200, b"null"),
            "fail": (500, b"oops"),
            "redirect": (302, b""),
            "nonsense": (200, b"<html>"),
            "unknown": (200, b'{"lable":"x"}'),
            "huge": (200, b'"' + b"x" * 200_000 + b'"'),
        }.get(value, (200, json.dumps({"label": "hook", "target_topic": "invoices"}).encode()))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        if value == "close":
            self.close_connection = True

    def log_message(self, *parts: object) -> None:
        pass


@contextmanager
def hook() -> Iterator[str]:
    Hook.seen, Hook.connections, Hook.stuck = [], 0, threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/route"
    finally:
        Hook.stuck.set()
        server.shutdown()
        server.server_close()
        thread.join(20)


def test_a_webhook_decides_over_a_kept_connection():
    with hook() as url, running(None, "router.kind=webhook", f"router.target={url}") as server:
        topics(server, "inbox", "invoices")
        envelope = {"tenant_id": "acme", "labels": {"a": "b"}}
        for _ in range(5):
            assert produce(server, key="k", envelope=envelope)["routed_topic"] == "invoices"
        assert Hook.seen[0] == {"topic": "inbox", "key": "k", "value": "v", "envelope": envelope}
        assert Hook.connections == 1
        assert claimed(server, "invoices")[0]["routing"] == {"label": "hook"}
        binary = server.call("POST", "/v1/produce", {"topic": "inbox", "value_base64": "/w=="})
        assert binary.status == 200
        assert Hook.seen[-1]["value_base64"] == "/w=="


MISBEHAVIOUR = {
    "none": "unrouted",
    "null": "unrouted",
    "fail": "error",
    "redirect": "error",
    "huge": "error",
    "nonsense": "invalid",
    "unknown": "invalid",
    "late": "timeout",
}


def test_a_webhook_that_misbehaves_leaves_the_message_unrouted():
    settings = ("router.kind=webhook", "router.timeout_ms=500")
    counted = dict.fromkeys(("unrouted", "error", "invalid", "timeout"), 0)
    with hook() as url, running(None, *settings, f"router.target={url}") as server:
        topics(server, "inbox", "invoices")
        for value, result in MISBEHAVIOUR.items():
            assert produce(server, value=value)["routed_topic"] == "inbox", value
            counted[result] += 1
            assert {key: count for key, count in counted.items() if count} == results(server), value
        assert produce(server)["routed_topic"] == "invoices"
        assert len(Hook.seen) == len(MISBEHAVIOUR) + 1, "a redirect is not followed and nothing is asked twice"


def test_an_unreachable_webhook_loses_no_message():
    settings = ("router.kind=webhook", "router.target=http://127.0.0.1:1/")
    with running(None, *settings) as server:
        topics(server, "inbox")
        assert produce(server)["routed_topic"] == "inbox"
        assert results(server) == {"error": 1}
        asked = server.call("POST", "/v1/route", {"topic": "inbox", "value": "v"}).json()
        assert asked["result"] == "error"
        assert asked["explanation"][0].startswith("The message goes unrouted: the router failed")


def test_a_connection_that_was_closed_in_the_meantime_is_not_an_error():
    with hook() as url, running(None, "router.kind=webhook", f"router.target={url}") as server:
        topics(server, "inbox", "invoices")
        for _ in range(3):
            assert produce(server, value="close")["routed_topic"] == "invoices"
        assert results(server) == {"routed": 3}


def test_a_trace_of_the_request_reaches_the_consumer():
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    own = "00-11111111111111111111111111111111-2222222222222222-00"
    with running(None) as server:
        topics(server, "inbox")
        headers = {"traceparent": trace}
        server.call("POST", "/v1/produce", {"topic": "inbox", "value": "1"}, headers)
        server.call("POST", "/v1/produce", {"topic": "inbox", "value": "2", "envelope": {"traceparent": own}}, headers)
        server.call("POST", "/v1/produce", {"topic": "inbox", "value": "3"}, {"traceparent": "00-nonsense"})
        batch = {"topic": "inbox", "messages": [{"value": "4"}]}
        server.call("POST", "/v1/produce/batch", batch, headers)
        server.call("POST", "/v1/jobs", {"topic": "inbox", "value": "5", "task": "t"}, headers)
        traces = {m["value"]: m.get("envelope", {}).get("traceparent") for m in claimed(server, "inbox")}
        assert traces == {"1": trace, "2": own, "3": None, "4": trace, "5": trace}


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ('target_topic = "nowhere"', "there is no topic nowhere"),
        ("partition = 7", "topic inbox has no partition 7"),
        ('target_topic = "dlq.inbox"', "only the broker writes to dlq.inbox"),
    ],
)
def test_a_router_that_names_a_missing_target_loses_no_message(tmp_path, route, why):
    rule = f'[[rule]]\nname = "astray"\nmatch = {{ topic = "inbox" }}\nroute = {{ {route}, label = "lost" }}\n'
    (tmp_path / "rules.toml").write_text(rule)
    with running(None, "router.kind=rules", f"router.target={tmp_path / 'rules.toml'}") as server:
        topics(server, "inbox")
        envelope = {"partition_override": 1, "idempotency_key": "k"}
        first = produce(server, envelope=envelope)
        assert (first["routed_topic"], first["partition"]) == ("inbox", 1)
        assert produce(server, envelope=envelope)["duplicate"]
        shown = server.call("POST", "/v1/route", {"topic": "inbox", "value": "v"}).json()
        assert (shown["result"], shown["routed_topic"]) == ("invalid", "inbox")
        (message,) = claimed(server, "inbox")
        assert why in message["routing"]["meta"]["router_error"]
        assert not message["routing"].get("label")
        assert results(server) == {"invalid": 2.0}
