"""Calls of a router: in time, once for each key, and never at the expense of a message."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from driftq.server.router.routers import PythonRouter, RulesRouter
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

    async def check():
        async with handler_fixture(RulesRouter.parse(rules)) as at:
            await topics(at, "inbox", "tasks", "other")
            envelope = {"target_topic": "other", "partition_override": 0}
            plain = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v", "envelope": envelope})
            assert (plain.body["topic"], plain.body["routed_topic"], plain.body["partition"]) == ("inbox", "other", 0)
            envelope["labels"] = {"to": "router"}
            routed = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v", "envelope": envelope})
            assert (routed.body["topic"], routed.body["routed_topic"]) == ("inbox", "tasks")
            assert routed.body["partition"] == 1

    run(check())


def test_the_decision_is_stored_and_its_label_can_be_claimed():
    async def check():
        async with handler_fixture(RulesRouter.parse(TO_TASKS)) as at:
            await topics(at, "tasks")
            await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v"})
            claim = {"topic": "tasks", "group": "g", "owner": "o"}
            assert (await at.call("POST", "/v1/claim", {**claim, "label": "other"})).body["messages"] == []
            (message,) = (await at.call("POST", "/v1/claim", {**claim, "label": "work"})).body["messages"]
            assert message["routing"] == {"label": "work", "meta": {"rule": "tasks"}}
            assert message["envelope"] == {"target_topic": "tasks"}

    run(check())


def test_an_unknown_target_of_the_envelope_is_refused_and_leaves_no_idempotency_key():
    async def check():
        async with handler_fixture() as at:
            await topics(at, "inbox")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k", "target_topic": "tasks"}}
            refused = await at.call("POST", "/v1/produce", body)
            assert (refused.status, refused.body["error"]) == (404, "NOT_FOUND")
            assert "tasks" in refused.body["message"]
            await topics(at, "tasks")
            assert "duplicate" not in (await at.call("POST", "/v1/produce", body)).body

    run(check())


def test_a_message_goes_unrouted_if_its_target_is_deleted_during_the_call():
    class Slow:
        kind = "slow"
        inline = False

        async def route(self, message):
            await at.call("DELETE", "/v1/topics/tasks")
            return RouteDecision(target_topic="tasks")

        async def close(self):
            pass

    async def check():
        nonlocal at
        async with handler_fixture(Slow()) as at:
            await topics(at, "inbox", "tasks")
            done = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "v"})
            assert (done.status, done.body["routed_topic"]) == (200, "inbox")

    at: HandlerFixture | None = None

    run(check())


def test_every_way_to_produce_calls_the_router():
    async def check():
        async with handler_fixture(RulesRouter.parse(TO_TASKS)) as at:
            await topics(at, "tasks")
            batch = await at.call("POST", "/v1/produce/batch", {"topic": "inbox", "messages": [{"value": "1"}, {}]})
            assert [r.get("routed_topic", r["status"]) for r in batch.body["results"]] == ["tasks", 400]
            job = await at.call("POST", "/v1/jobs", {"topic": "inbox", "value": "2", "task": "t", "id": "j"})
            assert (job.status, job.body["topic"]) == (201, "tasks")
            assert (await at.call("GET", "/v1/jobs/inbox/j")).body["topic"] == "tasks"
            done = await at.call("POST", "/v1/outcome", {"produce": [{"topic": "inbox", "value": "3"}]})
            assert done.body["produced"][0]["routed_topic"] == "tasks"
            claim = {"topic": "tasks", "group": "g", "owner": "o", "max": 9}
            messages = (await at.call("POST", "/v1/claim", claim)).body["messages"]
            assert {m["value"]: m["routing"]["label"] for m in messages} == {"1": "work", "2": "work", "3": "work"}

    run(check())


@pytest.mark.parametrize("inline", [True, False])
def test_a_duplicate_is_not_routed_again_and_goes_where_the_first_went(inline):
    targets = iter(("tasks", "other"))

    def route(message):
        return RouteDecision(target_topic=next(targets))

    async def check():
        async with handler_fixture(PythonRouter(route, inline=inline)) as at:
            await topics(at, "tasks", "other")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k"}}
            first = await at.call("POST", "/v1/produce", body)
            again = await at.call("POST", "/v1/produce", body)
            assert first.body["routed_topic"] == again.body["routed_topic"] == "tasks"
            assert again.body["duplicate"] is True
            assert at.router.results == {"routed": 1}

    run(check())


def test_messages_with_one_key_share_the_decision_of_a_call_in_progress():
    async def check():
        calls = 0
        begun, gate = asyncio.Event(), asyncio.Event()

        async def route(message):
            nonlocal calls
            calls += 1
            begun.set()
            await gate.wait()
            return RouteDecision(label=f"call {calls}")

        async with handler_fixture(PythonRouter(route), timeout_ms=20_000) as at:
            await topics(at, "inbox")
            body = {"topic": "inbox", "value": "v", "envelope": {"idempotency_key": "k"}}
            produces = [asyncio.ensure_future(at.call("POST", "/v1/produce", body)) for _ in range(3)]
            await begun.wait()
            gate.set()
            replies = await asyncio.gather(*produces)
            assert calls == 1
            assert sorted(reply.body.get("duplicate", False) for reply in replies) == [False, True, True]
            assert {reply.body["offset"] for reply in replies} == {0}

    run(check())


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

    async def check():
        async with handler_fixture(PythonRouter(route), timeout_ms=20) as at:
            await topics(at, "inbox")
            with caplog.at_level(logging.WARNING, "driftq.router"):
                for _ in range(3):
                    reply = await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "the payload"})
                    assert (reply.status, reply.body["routed_topic"]) == (200, "inbox")
            assert at.router.results == {result: 3}

    run(check())
    assert len(caplog.records) == (0 if result == "unrouted" else 1), "warnings are logged at a limited rate"
    assert "the payload" not in caplog.text


def test_a_plain_function_that_hangs_times_out():
    release = threading.Event()
    called_with = []

    def route(message):
        called_with.append(message.value)
        assert release.wait(20)
        return RouteDecision(label="too late")

    async def check():
        async with handler_fixture(PythonRouter(route, threads=1), timeout_ms=20) as at:
            await topics(at, "inbox")
            for value in ("stuck", "queued after it"):
                assert (await at.call("POST", "/v1/produce", {"topic": "inbox", "value": value})).status == 200
            assert at.router.results == {"timeout": 2}
            release.set()
            at.router.timeout_ms = 20_000
            await at.call("POST", "/v1/produce", {"topic": "inbox", "value": "after"})
            assert called_with == [b"stuck", b"after"], "the router is not called for what timed out in the queue"

    run(check())


def test_the_messages_of_a_batch_keep_their_order_however_long_each_call_takes():
    async def route(message):
        for _ in range(10 - int(message.value)):
            await asyncio.sleep(0)

    async def check():
        async with handler_fixture(PythonRouter(route), timeout_ms=20_000) as at:
            await topics(at, "inbox", partitions=1)
            messages = [{"value": str(n)} for n in range(10)]
            await at.call("POST", "/v1/produce/batch", {"topic": "inbox", "messages": messages})
            stored = await at.call("GET", "/v1/topics/inbox/partitions/0/messages?limit=10")
            assert [m["value"] for m in stored.body["messages"]] == [str(n) for n in range(10)]

    run(check())
