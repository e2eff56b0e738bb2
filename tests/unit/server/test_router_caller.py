"""Asking a router: in time, once for each key, and never at the expense of a message."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from driftq.server.outbound.client import OutboundClient
from driftq.server.router.factory import parse
from driftq.server.router.python_router import PythonRouter, load
from driftq.server.router.webhook_router import WebhookRouter
from driftq.server.settings import Settings
from driftq.settings.loader import SettingsError
from driftq.wire.router import RouteDecision
from tests.support.handler_fixture import HandlerFixture, handler_fixture

TO_TASKS = '[[rule]]\nname = "tasks"\nmatch = { topic = "inbox" }\nroute = { target_topic = "tasks", label = "work" }'


async def topics(at, *names, partitions=2):
    for name in names:
        assert (await at.call("POST", "/v1/topics", {"name": name, "partitions": partitions})).status == 201


def run(coroutine):
    return asyncio.run(coroutine)


def test_the_router_wins_over_the_envelope_which_wins_over_the_hash():
    rules = """
        [[rule]]
        match = { labels = { to = "router" } }
        route = { target_topic = "tasks", partition = 1 }
    """

    async def story():
        async with handler_fixture(parse(rules)) as at:
            await topics(at, "inbox", "tasks", "other")
            envelope = {"target_topic": "other", "partition_override": 0}
            plain = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v", "envelope": envelope})
            assert (plain.body["topic"], plain.body["routed_topic"], plain.body["partition"]) == ("inbox", "other", 0)
            envelope["labels"] = {"to": "router"}
            routed = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v", "envelope": envelope})
            assert (routed.body["topic"], routed.body["routed_topic"]) == ("inbox", "tasks")
            assert routed.body["partition"] == 1

    run(story())


def test_the_decision_is_stored_and_its_label_can_be_claimed():
    async def story():
        async with handler_fixture(parse(TO_TASKS)) as at:
            await topics(at, "tasks")
            await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v"})
            claim = {"topic": "tasks", "group": "g", "owner": "o"}
            assert (await at.call("POST", "/v1/claim", {**claim, "label": "other"})).body["messages"] == []
            (got,) = (await at.call("POST", "/v1/claim", {**claim, "label": "work"})).body["messages"]
            assert got["routing"] == {"label": "work", "meta": {"rule": "tasks"}}
            assert got["envelope"] == {"target_topic": "tasks"}

    run(story())


def test_an_unknown_target_of_the_envelope_is_refused_and_leaves_no_key_behind():
    async def story():
        async with handler_fixture() as at:
            await topics(at, "inbox")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k", "target_topic": "tasks"}}
            refused = await at.call("POST", "/v1/produce", body)
            assert (refused.status, refused.body["error"]) == (404, "NOT_FOUND")
            assert "tasks" in refused.body["message"]
            await topics(at, "tasks")
            assert "duplicate" not in (await at.call("POST", "/v1/produce", body)).body

    run(story())


def test_a_topic_that_is_deleted_while_the_router_thinks_hurts_no_message():
    class Slow:
        kind = "slow"
        inline = False

        async def route(self, message):
            await at.call("DELETE", "/v1/topics/tasks")
            return RouteDecision(target_topic="tasks")

        async def close(self):
            pass

    async def story():
        nonlocal at
        async with handler_fixture(Slow()) as at:
            await topics(at, "inbox", "tasks")
            done = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v"})
            assert (done.status, done.body["routed_topic"]) == (200, "inbox")

    at: HandlerFixture | None = None

    run(story())


def test_every_way_to_produce_passes_the_router():
    async def story():
        async with handler_fixture(parse(TO_TASKS)) as at:
            await topics(at, "tasks")
            batch = await at.call("POST", "/v1/produce/batch", {"topic": "inbox", "messages": [{"value": "1"}, {}]})
            assert [r.get("routed_topic", r["status"]) for r in batch.body["results"]] == ["tasks", 400]
            job = await at.call("POST", "/v1/jobs", {"topic": "inbox", "value": "2", "task": "t", "id": "j"})
            assert (job.status, job.body["topic"]) == (201, "tasks")
            assert (await at.call("GET", "/v1/jobs/inbox/j")).body["topic"] == "tasks"
            done = await at.call("POST", "/v1/outcome", {"produce": [{"topic": "inbox", "value": "3"}]})
            assert done.body["produced"][0]["routed_topic"] == "tasks"
            claim = {"topic": "tasks", "group": "g", "owner": "o", "max": 9}
            got = (await at.call("POST", "/v1/claim", claim)).body["messages"]
            assert {m["value"]: m["routing"]["label"] for m in got} == {"1": "work", "2": "work", "3": "work"}

    run(story())


@pytest.mark.parametrize("inline", [True, False])
def test_a_duplicate_does_not_ask_again_and_goes_where_the_first_went(inline):
    targets = iter(("tasks", "other"))

    def route(message):
        return RouteDecision(target_topic=next(targets))

    async def story():
        async with handler_fixture(PythonRouter(route, inline=inline)) as at:
            await topics(at, "tasks", "other")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k"}}
            first = await at.call("POST", "/v1/produce", body)
            again = await at.call("POST", "/v1/produce", body)
            assert first.body["routed_topic"] == again.body["routed_topic"] == "tasks"
            assert again.body["duplicate"] is True
            assert at.router.results == {"routed": 1}

    run(story())


def test_messages_with_one_key_share_one_decision_while_the_router_thinks():
    async def story():
        asked = 0
        begun, gate = asyncio.Event(), asyncio.Event()

        async def route(message):
            nonlocal asked
            asked += 1
            begun.set()
            await gate.wait()
            return RouteDecision(label=f"call {asked}")

        async with handler_fixture(PythonRouter(route), timeout_ms=20_000) as at:
            await topics(at, "inbox")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k"}}
            calls = [asyncio.ensure_future(at.call("POST", "/v1/produce", body)) for _ in range(3)]
            await begun.wait()
            gate.set()
            replies = await asyncio.gather(*calls)
            assert asked == 1
            assert sorted(reply.body.get("duplicate", False) for reply in replies) == [False, True, True]
            assert {reply.body["offset"] for reply in replies} == {0}

    run(story())


@pytest.mark.parametrize(
    ("kind", "result"), [("raises", "error"), ("late", "timeout"), ("nonsense", "invalid"), ("silent", "unrouted")]
)
def test_a_router_that_fails_leaves_the_message_as_it_is(kind, result, caplog):
    async def route(message):
        if kind == "raises":
            raise ValueError("broken: secret payload is not logged")
        if kind == "late":
            await asyncio.Event().wait()
        return {"lable": "x"} if kind == "nonsense" else None

    async def story():
        async with handler_fixture(PythonRouter(route), timeout_ms=20) as at:
            await topics(at, "inbox")
            with caplog.at_level(logging.WARNING, "driftq.router"):
                for _ in range(3):
                    reply = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "the payload"})
                    assert (reply.status, reply.body["routed_topic"]) == (200, "inbox")
            assert at.router.results == {result: 3}

    run(story())
    assert len(caplog.records) == (0 if result == "unrouted" else 1), "warnings are logged at a limited rate"
    assert "the payload" not in caplog.text


def test_a_plain_function_that_hangs_is_given_up_on():
    release = threading.Event()
    asked = []

    def route(message):
        asked.append(message.value)
        assert release.wait(20)
        return RouteDecision(label="too late")

    async def story():
        async with handler_fixture(PythonRouter(route, threads=1), timeout_ms=20) as at:
            await topics(at, "inbox")
            for value in ("stuck", "in line behind it"):
                assert (await at.call("POST", "/v1/produce", {"topic": "inbox", "value": value})).status == 200
            assert at.router.results == {"timeout": 2}
            release.set()
            at.router.timeout_ms = 20_000
            await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "after"})
            assert asked == [b"stuck", b"after"], "what was given up on in the line is not asked at all"

    run(story())


def test_the_messages_of_a_batch_keep_their_order_whatever_the_router_takes():
    async def route(message):
        for _ in range(10 - int(message.value)):
            await asyncio.sleep(0)

    async def story():
        async with handler_fixture(PythonRouter(route), timeout_ms=20_000) as at:
            await topics(at, "inbox", partitions=1)
            messages = [{"value": str(n)} for n in range(10)]
            await at.call("POST", "/v1/produce/batch", {"topic": "inbox", "messages": messages})
            seen = await at.call("GET", "/v1/topics/inbox/partitions/0/messages?limit=10")
            assert [m["value"] for m in seen.body["messages"]] == [str(n) for n in range(10)]

    run(story())


class Labeller:
    """A router as a class."""

    def route(self, message):
        return RouteDecision(label="class")


async def label_later(message):
    return RouteDecision(label="later")


NOT_A_ROUTER = 3


def test_a_router_is_found_by_its_name():
    here = __name__
    import sys

    sys.modules.setdefault(here, sys.modules[Labeller.__module__])
    assert load(f"{here}:Labeller")(None) == RouteDecision(label="class")
    assert PythonRouter(load(f"{here}:label_later")).inline is False


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nothing", "module:attribute"),
        ("no_such_module_here:x", "no_such_module_here"),
        ("json:nothing", "nothing"),
        ("json:__name__", "is not callable"),
    ],
)
def test_a_router_that_cannot_be_loaded_is_named(target, complaint):
    with pytest.raises(SettingsError, match=complaint):
        load(target)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/route",
        "ftp://127.0.0.1/",
        "https://",
        "https://user:pass@example.org/",
        "https://example.org/#x",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1.example.org/",
        "nothing",
    ],
)
def test_a_webhook_must_be_https_or_on_this_machine(url):
    with pytest.raises(SettingsError, match=r"router\.target"):
        WebhookRouter(url, OutboundClient(Settings()))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/r?x=1", "http://[::1]/", "http://localhost", "https://example.org"]
)
def test_a_decent_webhook_is_accepted(url):
    WebhookRouter(url, OutboundClient(Settings()))
