"""Every gate of a claim, as `/v1/explain` reports it; exactly the claimable messages can be claimed."""

from __future__ import annotations

import asyncio

import pytest

from driftq.core.model.commands import TrimTopic
from driftq.core.model.limits import BrokerLimits
from driftq.testing.clock import START_MS
from driftq.wire.fields import to_rfc3339
from driftq.wire.message import RetryPolicy
from tests.support.handler_fixture import HandlerFixture, handler_fixture

ONE_AT_A_TIME = BrokerLimits(in_flight_max=1)
STEADY = BrokerLimits(retry=RetryPolicy(0, 500, 30_000, "none"))


def run(coroutine):
    return asyncio.run(coroutine)


async def prepared(at: HandlerFixture, *messages: dict) -> None:
    await at.call("POST", "/v1/topics", {"name": "t"})
    for message in messages:
        assert (await at.call("POST", "/v1/produce", {"topic": "t", "value": "v", **message})).status == 200


async def claim(at: HandlerFixture, group: str = "g", max_messages: int = 1, **more) -> list[dict]:
    body = {"topic": "t", "group": group, "owner": "ann", "max": max_messages, "lease_ms": 1_000, **more}
    return (await at.call("POST", "/v1/claim", body)).body["messages"]


async def explained(at: HandlerFixture, offset: int, group: str = "g", more: str = "") -> dict:
    reply = await at.call("GET", f"/v1/explain?topic=t&partition=0&offset={offset}&group={group}{more}")
    assert reply.status == 200, reply
    (view,) = reply.body["groups"]
    return {**view, "gates": [*reply.body["gates"], *view.get("gates", [])], "message": reply.body["message"]}


def gates(view: dict) -> list[str]:
    return [gate["gate"] for gate in view["gates"]]


def test_a_held_message_names_its_owner_and_the_end_of_the_lease():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {})
            await claim(at)
            view = await explained(at, 0)
            assert (view["state"], view["claimable"], view["attempts"]) == ("held", False, 1)
            (gate,) = view["gates"]
            assert (gate["gate"], gate["opens_at"]) == ("leased", to_rfc3339(START_MS + 1_000))
            assert "'ann'" in gate["why"]
            at.clock.move(1_001)
            assert gates(await explained(at, 0)) == ["lease_ended"]

    run(check())


def test_a_failed_message_waits_in_backoff_with_its_history():
    async def check():
        async with handler_fixture(limits=STEADY) as at:
            await prepared(at, {})
            await claim(at)
            nack = {"topic": "t", "group": "g", "owner": "ann", "partition": 0, "offset": 0, "reason": "no connection"}
            await at.call("POST", "/v1/nack", nack)
            view = await explained(at, 0)
            assert (view["state"], view["failures"], view["last_error"]) == ("resting", 1, "no connection")
            assert [(gate["gate"], gate["opens_at"]) for gate in view["gates"]] == [
                ("resting", to_rfc3339(START_MS + 500))
            ]
            assert "no connection" in view["summary"]
            at.clock.move(500)
            view = await explained(at, 0)
            assert (view["state"], view["claimable"], gates(view)) == ("ready", True, [])
            await at.call("POST", "/v1/topics/t/groups/g/pause")
            assert (await explained(at, 0))["state"] == "paused", "its backoff is over"
            await at.call("POST", "/v1/topics/t/groups/g/resume")
            assert [m["offset"] for m in await claim(at)] == [0]

    run(check())


def test_a_delayed_message_names_its_time():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {"delay_ms": 60_000})
            await claim(at)
            view = await explained(at, 0)
            assert (view["state"], gates(view)) == ("delayed", ["delayed"])
            assert view["gates"][0]["opens_at"] == to_rfc3339(START_MS + 60_000)

    run(check())


def test_a_delayed_message_names_its_time_before_there_is_a_group():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {"delay_ms": 5_000})
            explanation = (await at.call("GET", "/v1/explain?topic=t&partition=0&offset=0")).body
            (gate,) = explanation["gates"]
            assert (gate["gate"], gate["opens_at"]) == ("delayed", to_rfc3339(START_MS + 5_000))
            assert explanation["summary"] == gate["why"]
            at.clock.move(5_001)
            explanation = (await at.call("GET", "/v1/explain?topic=t&partition=0&offset=0")).body
            assert explanation["gates"] == []

    run(check())


def test_all_gates_are_reported_at_once():
    async def check():
        async with handler_fixture(limits=ONE_AT_A_TIME) as at:
            await prepared(at, {}, {"task": "mail"})
            await claim(at)
            await at.call("POST", "/v1/topics/t/groups/g/pause")
            view = await explained(at, 1, more="&task=other")
            assert gates(view) == ["paused", "filter", "in_flight"]
            assert view["gates"][2]["opens_at"] == to_rfc3339(START_MS + 1_000)
            assert view["message"]["task"] == "mail"

    run(check())


def test_a_message_of_a_paused_group_is_paused_until_the_group_is_resumed():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {}, {})
            await claim(at)
            await at.call("POST", "/v1/topics/t/groups/g/pause")
            paused = await explained(at, 1)
            assert (paused["state"], paused["claimable"], gates(paused)) == ("paused", False, ["paused"])
            assert "paused" in paused["summary"]
            assert (await explained(at, 0))["state"] == "held"
            await at.call("POST", "/v1/topics/t/groups/g/resume")
            assert (await explained(at, 1))["state"] == "ready"

    run(check())


def test_only_a_message_that_can_be_claimed_is_ready():
    async def check():
        async with handler_fixture(limits=ONE_AT_A_TIME) as at:
            await prepared(at, {}, {})
            await claim(at)
            await claim(at, "other", task="none")
            assert (await explained(at, 1))["state"] == "in_flight"
            assert (await explained(at, 1, "other"))["state"] == "ready"
            assert (await explained(at, 1, "other", "&task=mail"))["state"] == "filter"

    run(check())


def test_a_deadline_that_has_passed_never_opens():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {"envelope": {"deadline": to_rfc3339(START_MS + 1_000)}})
            await at.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o", "task": "nothing"})
            assert (await explained(at, 0))["claimable"] is True
            at.clock.move(1_000)
            view = await explained(at, 0)
            assert (gates(view), view["claimable"]) == (["deadline"], False)
            assert view["gates"][0]["opens_when"] == "never"
            assert await claim(at) == []
            view = await explained(at, 0)
            assert (view["state"], view["settled_as"]) == ("settled", "dead letter")
            assert "deadline_exceeded" in view["summary"]

    run(check())


def test_gaps_are_reported_and_delay_nothing():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, *[{} for _ in range(6)])
            await claim(at, max_messages=5)
            for offset in (1, 3):
                ack = {"topic": "t", "group": "g", "owner": "ann", "partition": 0, "offset": offset}
                assert (await at.call("POST", "/v1/ack", ack)).status == 204
            view = await explained(at, 5)
            assert view["claimable"]
            assert view["gaps"] == 2
            assert [message["offset"] for message in await claim(at)] == [5]

    run(check())


def test_an_offset_below_the_start_differs_from_one_past_the_end():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {}, {})
            await claim(at)
            (not_produced,) = (await explained(at, 2))["gates"]
            assert not_produced["gate"] == "not_produced"
            await at.engine.submit(TrimTopic("t", 0, 1))
            (trimmed,) = (await explained(at, 0))["gates"]
            assert (trimmed["gate"], trimmed["opens_when"]) == ("retention", "never")

    run(check())


def test_the_messages_ahead_are_those_of_the_same_lane():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {}, {"task": "a"}, {}, {"task": "a"}, {})
            await at.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o", "task": "nothing"})
            assert (await explained(at, 3))["ahead"] == 1
            assert (await explained(at, 0)).get("ahead", 0) == 0

    run(check())


def test_without_a_group_all_groups_are_explained():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {})
            no_group = await at.call("GET", "/v1/explain?topic=t&partition=0&offset=0")
            assert no_group.body["groups"] == []
            assert "No group" in no_group.body["summary"]
            await claim(at, "g")
            await claim(at, "h", task="nothing")
            two_groups = await at.call("GET", "/v1/explain?topic=t&partition=0&offset=0")
            assert [view["group"] for view in two_groups.body["groups"]] == ["g", "h"]
            assert two_groups.body["summary"] == "1 of 2 groups can claim this message now."

    run(check())


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("topic=t", 400),
        ("topic=t&partition=0", 400),
        ("topic=t&partition=0&offset=-1", 400),
        ("topic=t&partition=x&offset=0", 400),
        ("topic=t&partition=1&offset=0", 400),
        ("topic=x&partition=0&offset=0", 404),
        ("topic=t&partition=0&offset=0&group=x", 404),
    ],
)
def test_an_invalid_query_is_refused(query, status):
    async def check():
        async with handler_fixture() as at:
            await prepared(at)
            assert (await at.call("GET", f"/v1/explain?{query}")).status == status

    run(check())


def test_exactly_the_claimable_messages_can_be_claimed():
    """The explanation and the rule of a claim are two pieces of code; they must agree."""

    async def check():
        async with handler_fixture(limits=BrokerLimits(in_flight_max=3, retry=STEADY.retry)) as at:
            shapes = [{}, {"delay_ms": 700}, {"task": "a"}, {"priority": 9}, {"envelope": {"tenant_id": "x"}}, {}]
            await prepared(at, *shapes)
            await at.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o", "task": "nothing"})
            for step in range(12):
                views = [await explained(at, offset) for offset in range(len(shapes))]
                claimable = {offset for offset, view in enumerate(views) if view["claimable"]}
                messages = await claim(at, max_messages=3)
                assert {m["offset"] for m in messages} <= claimable, step
                assert bool(messages) == bool(claimable), step
                for number, m in enumerate(messages):
                    path = "/v1/ack" if (step + number) % 3 else "/v1/nack"
                    body = {"topic": "t", "group": "g", "owner": "ann", "partition": 0, "offset": m["offset"]}
                    if (step + number) % 4:
                        await at.call("POST", path, body)
                at.clock.move(300)

    run(check())


def test_a_time_after_the_last_date_is_shown_as_the_last_date():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {"delay_ms": 2**53 - 1}, {"id": "j", "delay_ms": 2**53 - 1})
            await claim(at)
            assert (await explained(at, 0))["gates"][0]["opens_at"] == "9999-12-31T23:59:59.999+00:00"
            job = await at.call("GET", "/v1/jobs/t/j")
            assert (job.status, job.body["not_before"]) == (200, "9999-12-31T23:59:59.999+00:00")
            far = await at.call("POST", f"/v1/produce?topic=t&value=v&deadline_ms={2**53 - 1}")
            assert far.status == 200

    run(check())


@pytest.mark.parametrize("position", ["t:0:" + "9" * 5_000, "t:" + "9" * 5_000 + ":0", "t:0:٣", "t:0:"])
def test_a_job_at_an_impossible_position_is_not_found(position):
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {})
            assert (await at.call("GET", f"/v1/jobs/t/{position}")).status == 404

    run(check())


def test_the_end_of_a_job_is_reported():
    async def check():
        async with handler_fixture() as at:
            await prepared(at, {"id": "a", "task": "x"}, {"id": "b", "task": "x"})
            await claim(at)
            ack = {"topic": "t", "group": "g", "owner": "ann", "partition": 0, "offset": 0}
            assert (await at.call("POST", "/v1/ack", ack)).status == 204
            assert (await at.call("POST", "/v1/jobs/t/b/cancel")).status == 200
            assert (await explained(at, 0))["settled_as"] == "acked"
            assert (await explained(at, 1))["settled_as"] == "cancelled"

    run(check())
