"""Retry now, purge, move, delete and export: what the calls do and return, page after page; and with ten thousand dead
letters and jobs no call holds the loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest
from msgspec import json

from driftq.cli.produce import _parse_ndjson
from driftq.core.model import commands as c
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed
from driftq.wire.dead_letters import line_of
from driftq.wire.message import DeadLetter, Envelope, Head, Job, encode_head
from driftq.wire.records import Record, pack
from tests.support.handler_fixture import HandlerFixture, handler_fixture
from tests.support.loop_turns import measured
from tests.unit.server.test_dead_letters import make_dead_letters

MANY = 10_000
TURN_S = 0.02


def with_broker(test: Callable[[HandlerFixture], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def body() -> None:
            async with handler_fixture(limits=BrokerLimits(in_flight_max=100_000)) as at:
                for topic in ("t", "u"):
                    retry = {"max_attempts": 9, "backoff_ms": 600_000}
                    await at.call("POST", "/v1/topics", {"name": topic, "retry": retry})
                await test(at)

        asyncio.run(body())

    del run.__wrapped__  # pytest must not see a parameter
    return run


async def ok(at: HandlerFixture, method: str, target: str, body: object = None) -> Any:
    reply = await at.call(method, target, body)
    assert reply.status in (200, 201, 204), reply
    return reply.body


async def enqueue(at: HandlerFixture, *ids: str, **fields: object) -> None:
    for id in ids:
        await ok(at, "POST", "/v1/jobs", {"topic": "t", "id": id, "task": "send", "value": f"value of {id}", **fields})


async def claim(at: HandlerFixture, max_messages: int = 100, topic: str = "t") -> list[dict[str, Any]]:
    body = {"topic": topic, "group": "g", "owner": "w", "max": max_messages}
    messages: list[dict[str, Any]] = (await ok(at, "POST", "/v1/claim", body))["messages"]
    return messages


async def end(at: HandlerFixture, verb: str, messages: list[dict[str, Any]]) -> None:
    held = [{"partition": 0, "offset": message["offset"], "token": message["token"]} for message in messages]
    body: dict[str, object] = {"topic": "t", "group": "g", "owner": "w", "messages": held, "reason": "no luck"}
    target = "/v1/reject" if verb == "reject" else f"/v1/{verb}/batch"
    await ok(at, "POST", target, body)


async def states(at: HandlerFixture) -> dict[str, str]:
    return {job["id"]: job["state"] for job in (await ok(at, "GET", "/v1/jobs?topic=t"))["jobs"]}


# --- retry now ---


@with_broker
async def test_a_job_that_waits_is_due_at_once_and_a_dead_one_is_sent_back(at):
    await enqueue(at, "backoff", "dead", "running")
    await enqueue(at, "delayed", delay_ms=60_000)
    messages = await claim(at)
    await end(at, "nack", messages[:1])
    await end(at, "reject", messages[1:2])
    replies = {id: await ok(at, "POST", f"/v1/jobs/t/{id}/retry") for id in ("backoff", "dead", "running", "delayed")}
    assert replies["backoff"] == {"id": "backoff", "retried": True, "redriven": 0, "state": "retrying"}
    assert replies["dead"] == {"id": "dead", "retried": True, "redriven": 1, "state": "ready"}
    assert replies["running"] == {"id": "running", "retried": False, "redriven": 0, "state": "running"}
    assert replies["delayed"] == {"id": "delayed", "retried": True, "redriven": 0, "state": "ready"}
    assert {message["job"]["id"] for message in await claim(at)} == {"backoff", "delayed", "dead"}
    assert not (await ok(at, "POST", "/v1/jobs/t/backoff/retry"))["retried"]
    assert (await at.call("POST", "/v1/jobs/t/nothing/retry")).status == 404


@with_broker
async def test_any_message_can_be_retried_by_its_place(at):
    await ok(at, "POST", "/v1/produce", {"topic": "t", "value": "plain"})
    await end(at, "nack", await claim(at))
    assert (await ok(at, "POST", "/v1/jobs/t/t:0:0/retry"))["retried"]
    assert [message["value"] for message in await claim(at)] == ["plain"]


@with_broker
async def test_jobs_are_retried_by_filter_page_by_page(at):
    await enqueue(at, *(f"j{number}" for number in range(30)))
    await end(at, "nack", (await claim(at, 20))[:10])
    await enqueue(at, *(f"later{number}" for number in range(5)), delay_ms=60_000)
    body = {"topic": "t", "task": "send"}
    assert (await ok(at, "POST", "/v1/jobs/retry", {**body, "dry_run": True}))["matched"] == 15
    assert sorted((await states(at)).values()).count("retrying") == 10
    retried, after = 0, ""
    while True:
        reply = await ok(at, "POST", "/v1/jobs/retry", {**body, "limit": 4, "after": after})
        assert reply["matched"] == reply["retried"] <= 4
        retried, after = retried + reply["retried"], reply.get("after", "")
        assert reply["more"] == bool(after)
        if not after:
            break
    assert retried == 15
    reply = await ok(at, "POST", "/v1/jobs/retry", body)
    assert (reply["matched"], reply["retried"]) == (10, 0), "they are due, and wait for a worker"
    assert len(await claim(at)) == 25
    assert (await at.call("POST", "/v1/jobs/retry", {"topic": "no"})).status == 404
    assert (await at.call("POST", "/v1/jobs/retry", {"topic": "t", "after": "x"})).status == 400
    assert (await at.call("POST", "/v1/jobs/retry", {"topic": "t", "state": "asleep"})).status == 400


@with_broker
async def test_jobs_are_retried_by_their_ids_in_every_state(at):
    await enqueue(at, "a", "b", "c", "d")
    messages = await claim(at)
    await end(at, "nack", messages[:1])
    await end(at, "reject", messages[1:3])
    reply = await ok(at, "POST", "/v1/jobs/retry", {"topic": "t", "ids": ["a", "b", "c", "d", "unknown"]})
    assert (reply["matched"], reply["retried"], reply["redriven"], reply["ids"]) == (3, 1, 2, ["a", "b", "c"])
    assert (await ok(at, "GET", "/v1/dlq/t"))["messages"] == []


@with_broker
async def test_jobs_are_cancelled_page_by_page(at):
    await enqueue(at, *(f"j{number}" for number in range(9)))
    cancelled, after = 0, ""
    while True:
        reply = await ok(at, "POST", "/v1/jobs/cancel", {"topic": "t", "limit": 4, "after": after})
        cancelled, after = cancelled + reply["cancelled"], reply.get("after", "")
        if not after:
            break
    assert cancelled == 9


# --- unique until done ---


@with_broker
async def test_the_id_of_a_job_is_free_when_its_time_after_the_end_is_over(at):
    await enqueue(at, "a", id_ttl_ms=0)
    job = {"topic": "t", "id": "a", "task": "send", "value": "again", "id_ttl_ms": 0}
    assert (await ok(at, "POST", "/v1/jobs", job))["duplicate"]
    await end(at, "ack", await claim(at))
    at.clock.move(1)
    assert not (await ok(at, "POST", "/v1/jobs", {**job, "id_ttl_ms": 5_000}))["duplicate"]
    await end(at, "ack", await claim(at))
    at.clock.move(4_999)
    assert (await ok(at, "POST", "/v1/jobs", job))["duplicate"]
    at.clock.move(1)
    assert not (await ok(at, "POST", "/v1/jobs", job))["duplicate"]
    refused = await at.call("POST", "/v1/jobs", {"topic": "t", "task": "x", "value": "v", "id_ttl_ms": 1})
    assert (refused.status, "id_ttl_ms" in refused.body["message"]) == (400, True)


# --- purge and move ---


@with_broker
async def test_a_purge_counts_first_and_drops_everything(at):
    await enqueue(at, "a", "b", "c")
    await end(at, "nack", (await claim(at, 2))[:1])
    expected = {"topic": "t", "messages": 3, "in_flight": 1, "waiting": 1}
    assert await ok(at, "POST", "/v1/topics/t/purge", {"dry_run": True}) == {"status": "dry run", **expected}
    assert await ok(at, "POST", "/v1/topics/t/purge") == {"status": "purged", **expected}
    assert (await ok(at, "POST", "/v1/topics/t/purge"))["messages"] == 0
    assert await claim(at) == []
    await enqueue(at, "d")
    assert [message["offset"] for message in await claim(at)] == [3]
    for body in ({"dry_run": True}, {}):
        assert (await at.call("POST", "/v1/topics/no/purge", body)).status == 404


@with_broker
async def test_messages_are_moved_with_their_jobs_page_by_page(at):
    await enqueue(at, "held", *(f"j{number}" for number in range(10)), key="k", priority=3)
    await ok(at, "POST", "/v1/produce", {"topic": "t", "value": "plain", "key": "k"})
    assert [message["job"]["id"] for message in await claim(at, 1)] == ["held"]
    move = {"to": "u", "limit": 4}
    assert (await ok(at, "POST", "/v1/topics/t/move", {"to": "u", "dry_run": True}))["matched"] == 11
    assert (await ok(at, "POST", "/v1/topics/t/move", {"to": "u", "task": "none"}))["matched"] == 0
    moved, after = 0, ""
    while True:
        reply = await ok(at, "POST", "/v1/topics/t/move", {**move, "after": after})
        assert (reply["status"], reply["failed"], reply["moved"]) == ("moved", [], reply["matched"])
        moved, after = moved + reply["moved"], reply.get("after", "")
        if not after:
            break
    assert moved == 11
    assert await claim(at) == []
    arrived = await claim(at, topic="u")
    assert [message["value"] for message in arrived] == [*(f"value of j{number}" for number in range(10)), "plain"]
    assert arrived[0]["job"] == {"id": "j0", "task": "send", "priority": 3}
    assert (await ok(at, "GET", "/v1/jobs/u/j3"))["state"] == "running"
    original = await ok(at, "GET", "/v1/jobs/t/j3")
    assert (original["state"], original["groups"][0]["attempts"]) == ("cancelled", [])
    assert (await ok(at, "POST", "/v1/topics/t/move", {"to": "u"}))["matched"] == 0


@with_broker
async def test_a_move_says_what_it_could_not_move_and_stops_at_a_full_topic(at):
    await enqueue(at, "taken", "free")
    await ok(at, "POST", "/v1/jobs", {"topic": "u", "id": "taken", "task": "send", "value": "v"})
    reply = await ok(at, "POST", "/v1/topics/t/move", {"to": "u"})
    assert (reply["matched"], reply["moved"], [item["offset"] for item in reply["failed"]]) == (2, 1, [0])
    assert "is in topic u already" in reply["failed"][0]["message"]
    await ok(at, "POST", "/v1/topics", {"name": "small", "backlog_messages_max": 3})
    await ok(at, "POST", "/v1/claim", {"topic": "small", "group": "g", "owner": "w"})
    for number in range(6):
        await ok(at, "POST", "/v1/produce", {"topic": "t", "value": f"{number}"})
    reply = await ok(at, "POST", "/v1/topics/t/move", {"to": "small", "limit": 100})
    assert (reply["moved"], len(reply["failed"])) == (3, 1)
    assert "producer overload" in reply["failed"][0]["message"]
    assert (await ok(at, "POST", "/v1/topics/t/move", {"to": "u", "after": reply["after"]}))["moved"] >= 3


@pytest.mark.parametrize(
    ("topic", "body", "status"),
    [
        ("t", {"to": "t"}, 400),
        ("t", {"to": "no"}, 404),
        ("no", {"to": "t"}, 404),
        ("dlq.t", {"to": "u"}, 400),
        ("t", {"to": "u", "partition": 7}, 400),
        ("t", {"to": "u", "since": "yesterday"}, 400),
        ("t", {"to": "u", "after": "x"}, 400),
        ("t", {}, 400),
    ],
)
def test_a_move_that_cannot_be_is_refused(topic, body, status):
    @with_broker
    async def refused(at):
        assert (await at.call("POST", f"/v1/topics/{topic}/move", body)).status == status

    refused()


# --- dead letters ---


@with_broker
async def test_letters_are_deleted_by_filter_and_not_redriven(at):
    await make_dead_letters(at, 300)
    chosen = {"error": "timeout after 100 ms"}
    assert await ok(at, "POST", "/v1/dlq/t/delete", {**chosen, "dry_run": True}) == {
        "status": "dry run", "matched": 100, "deleted": 0,
    }  # fmt: skip
    page = await ok(at, "POST", "/v1/dlq/t/delete", {**chosen, "limit": 60})
    assert (page["deleted"], page["after"]) == (60, "0:159")
    assert (await ok(at, "POST", "/v1/dlq/t/delete", {**chosen, "after": page["after"]}))["deleted"] == 40
    assert (await ok(at, "GET", "/v1/dlq"))["total"] == 200
    assert (await ok(at, "POST", "/v1/dlq/t/redrive", {"limit": 1_000}))["redriven"] == 200
    assert (await ok(at, "POST", "/v1/dlq/t/delete", {"offsets": [[0, 5]]}))["matched"] == 0
    assert (await at.call("POST", "/v1/dlq/no/delete")).status == 404
    assert (await at.call("POST", "/v1/dlq/t/delete", {"after": "x"})).status == 400


@with_broker
async def test_letters_are_redriven_to_another_topic_with_the_ids_of_their_jobs(at):
    await enqueue(at, "a", "b", "c")
    await end(at, "reject", await claim(at))
    await ok(at, "POST", "/v1/jobs", {"topic": "u", "id": "b", "task": "send", "value": "v"})
    reply = await ok(at, "POST", "/v1/dlq/t/redrive", {"to_topic": "u", "limit": 2})
    assert (reply["redriven"], [item["offset"] for item in reply["failed"]], reply["after"]) == (1, [1], "0:1")
    assert (await ok(at, "POST", "/v1/dlq/t/redrive", {"to_topic": "u", "after": "0:1"}))["redriven"] == 1
    assert [message["job"]["id"] for message in await claim(at, topic="u")] == ["b", "a", "c"]
    assert await claim(at) == []
    reply = await ok(at, "POST", "/v1/dlq/t/redrive", {"to_topic": "no"})
    assert "topic does not exist" in reply["failed"][0]["message"]


# --- many ---


async def enqueue_packed(at: HandlerFixture, count: int, delay_ms: int = 0) -> None:
    """Jobs without ids."""
    for first in range(0, count, 1_000):
        jobs = [Job(task="send", not_before_ms=at.clock.now_ms() + delay_ms if delay_ms else 0)] * 1_000
        records = [Record(b"v%d" % (first + n), b"", encode_head(Head(job=job))) for n, job in enumerate(jobs)]
        marks = tuple(
            RecordSchedule(n, task="send", not_before_ms=job.not_before_ms, tracked=True) for n, job in enumerate(jobs)
        )
        size = sum(record.size_bytes for record in records)
        await at.engine.submit(c.Produce("t", pack(records, scheduled=True), 1_000, size, partition=0, marks=marks))


async def quick(at: HandlerFixture, target: str, body: object) -> Any:
    """The body of a reply, after a check of the time that the loop was held."""
    reply, turns = await measured(at.call("POST", target, body))
    assert reply.status == 200, reply
    assert turns.longest < TURN_S, f"{target} held the loop for {turns.longest * 1_000:.0f} ms"
    return reply.body


@with_broker
async def test_ten_thousand_letters_are_deleted_and_redriven_elsewhere_without_a_stall(at):
    await make_dead_letters(at, MANY)
    assert (await quick(at, "/v1/dlq/t/delete", {"dry_run": True, "limit": MANY}))["matched"] == MANY
    assert (await quick(at, "/v1/dlq/t/delete", {"limit": MANY // 2}))["deleted"] == MANY // 2
    assert (await quick(at, "/v1/dlq/t/redrive", {"limit": MANY, "to_topic": "u"}))["redriven"] == MANY // 2


@with_broker
async def test_ten_thousand_jobs_are_retried_moved_and_purged_without_a_stall(at):
    await at.engine.submit(c.CreateGroup("t", "g"))
    await enqueue_packed(at, MANY, delay_ms=60_000)
    retried, after = 0, ""
    while True:
        reply = await quick(at, "/v1/jobs/retry", {"topic": "t", "after": after})
        retried, after = retried + reply["retried"], reply.get("after", "")
        if not after:
            break
    assert retried == MANY
    claimed = await at.engine.submit(c.Claim("t", "g", "w", MANY // 2))
    assert isinstance(claimed, Claimed)
    assert (await quick(at, "/v1/topics/t/move", {"to": "u", "limit": 1_000}))["moved"] == 1_000
    reply = await quick(at, "/v1/topics/t/purge", {})
    assert (reply["messages"], reply["in_flight"]) == (MANY, sum(run.end - run.first for run in claimed.deliveries))


def test_an_export_is_read_back_by_produce():

    letter = DeadLetter("t", 0, 7, "g", 3, 0, "no luck", "max_attempts", "2026-01-01T00:00:00.000+00:00")
    head = Head(Envelope(tenant_id="acme"), job=Job("a", "send", 2, timeout_ms=50), dlq=letter)
    line = line_of(3, 1_000, Record(b"value", b"key", encode_head(head)))
    assert json.decode(line)["dlq"]["last_error"] == "no luck"
    source = _parse_ndjson(1, line, {})
    assert source.value == "value"
    assert source.arguments == {
        "key": "key", "envelope": Envelope(tenant_id="acme"), "id": "a", "task": "send", "priority": 2,
        "timeout_ms": 50,
    }  # fmt: skip
    binary = _parse_ndjson(1, line_of(3, 1_000, Record(b"\xff\x00")), {})
    assert (binary.value, binary.arguments) == (b"\xff\x00", {})
