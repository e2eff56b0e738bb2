"""Dead letters against a real server: sent back to the group in which they died, and listed to the last one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import driftq
from driftq.client.api import DriftQ
from tests.support.server import Server, running
from tests.support.wait import until_now


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None) as started:
        yield started


@pytest.fixture
def topic(broker: DriftQ, request: pytest.FixtureRequest) -> str:
    name: str = re.sub("[^a-z0-9_]+", ".", request.node.name)
    broker.topics.create(name)
    return name


def values(messages: list[Any]) -> list[str]:
    return [message.text for message in messages]


def make_dead_letters(broker: DriftQ, topic: str, group: str, count: int, reason: str = "bad") -> None:
    left = count
    while left:
        claimed = broker.claim(topic, group, max=min(left, 1_000))
        assert claimed
        broker.reject(claimed, reason)
        left -= len(claimed)


def test_a_redriven_message_reaches_only_the_group_in_which_it_died(broker: DriftQ, topic: str) -> None:
    broker.send(topic, "once")
    for message in broker.claim(topic, "billing"):
        message.ack()
    make_dead_letters(broker, topic, "mailing", 1)
    assert broker.dead_letters.redrive(topic)["redriven"] == 1
    assert broker.claim(topic, "billing") == []
    assert values(broker.claim(topic, "late")) == ["once"], "every group gets the original"
    assert broker.claim(topic, "late") == []
    assert values(broker.claim(topic, "mailing")) == ["once"]


def test_a_topic_counts_only_the_dead_letters_that_were_not_redriven(broker: DriftQ, topic: str) -> None:
    broker.send_many(topic, ["a", "b", "c"])
    make_dead_letters(broker, topic, "mailing", 3)
    assert broker.topics.describe(topic).dead_letters == 3
    assert broker.dead_letters.redrive(topic, limit=2)["redriven"] == 2
    assert broker.topics.describe(topic).dead_letters == 1
    assert broker.dead_letters.redrive(topic)["redriven"] == 1
    assert broker.topics.describe(topic).dead_letters == 0


def test_a_redriven_message_reaches_every_group_if_that_is_asked_for(broker: DriftQ, topic: str) -> None:
    broker.send(topic, "again")
    for message in broker.claim(topic, "billing"):
        message.ack()
    make_dead_letters(broker, topic, "mailing", 1)
    assert broker.dead_letters.redrive(topic, all_groups=True)["redriven"] == 1
    assert values(broker.claim(topic, "billing")) == values(broker.claim(topic, "mailing")) == ["again"]


def test_a_redrive_to_a_group_that_is_gone_says_so(broker: DriftQ, topic: str) -> None:
    broker.send(topic, "lost")
    make_dead_letters(broker, topic, "mailing", 1)
    broker.groups.delete(topic, "mailing")
    reply = broker.dead_letters.redrive(topic)
    assert reply["redriven"] == 0
    assert "is gone" in reply["failed"][0]["message"]
    assert broker.dead_letters.redrive(topic, all_groups=True)["redriven"] == 1


def test_a_redriven_job_keeps_its_task_and_its_id(broker: DriftQ, topic: str) -> None:
    broker.send(topic, "work", task="mail", id="j", priority=3)
    make_dead_letters(broker, topic, "mailing", 1)
    broker.dead_letters.redrive(topic)
    assert broker.jobs.find(topic, "j")["state"] == "ready"
    (job,) = broker.claim(topic, "mailing", task="mail")
    job.ack()
    assert broker.jobs.find(topic, "j")["state"] == "succeeded"


@pytest.mark.parametrize("keep", [False, True])
def test_a_deadline_that_has_passed_is_dropped_unless_it_is_kept(
    server: Server, broker: DriftQ, topic: str, keep: bool
):
    due = datetime.now(UTC) + timedelta(milliseconds=400)
    deadline = due.isoformat()
    server.call("POST", "/v1/produce", {"topic": topic, "value": "late", "envelope": {"deadline": deadline}})
    broker.claim(topic, "mailing", task="nothing")  # registers the group; the message waits until its time is over
    until_now(lambda: datetime.now(UTC) > due, 20)
    assert broker.claim(topic, "mailing") == []
    assert broker.dead_letters.redrive(topic, keep_deadline=keep)["redriven"] == 1
    (again,) = broker.claim(topic, "mailing")
    assert bool(again.envelope is not None and again.envelope.deadline) is keep


def test_every_dead_letter_is_listed_page_by_page(server: Server, broker: DriftQ, topic: str) -> None:
    broker.send_many(topic, [f"v{number}" for number in range(2_345)])
    make_dead_letters(broker, topic, "g", 2_345)
    letters = broker.dead_letters.list(topic, limit=None)
    assert sorted(letter.offset for letter in letters) == list(range(2_345))
    assert len(broker.dead_letters.list(topic, limit=1_500)) == 1_500
    assert sum(1 for _ in broker.dead_letters.iterate(topic, limit=None)) == 2_345
    page = server.call("GET", f"/v1/dlq/{topic}?limit=1000").json()
    assert len(page["messages"]) == 1_000
    broker.dead_letters.redrive(topic, limit=2_300)
    left = server.call("GET", f"/v1/dlq/{topic}?limit=1000").json()
    assert len(left["messages"]) == 45
    assert "after" not in left

    async def awaited() -> int:
        async with driftq.connect_async(server.url) as client:
            return len([letter async for letter in client.dead_letters.iterate(topic, limit=None)])

    assert asyncio.run(awaited()) == 45


@pytest.mark.parametrize("query", ["after=x", "after=1", "after=0:-1", "limit=0", "limit=1001", "limit=-1"])
def test_a_wrong_cursor_or_limit_is_refused(server: Server, topic: str, query: str) -> None:
    reply = server.call("GET", f"/v1/dlq/{topic}?{query}")
    assert (reply.status, reply.json()["error"]) == (400, "INVALID_ARGUMENT")


def test_kinds_of_errors_topics_and_groups_have_cursors(server: Server, broker: DriftQ, topic: str) -> None:
    for letters in ("a", "bb", "ccc"):
        broker.send(topic, letters)
        make_dead_letters(broker, topic, "g", 1, letters)
    for group in ("h", "i"):
        broker.claim(topic, group)

    def pages(path: str, name: str) -> list[Any]:
        entries: list[Any] = []
        after = ""
        while True:
            page = server.call("GET", f"{path}{'&' if '?' in path else '?'}limit=1{after}").json()
            assert len(page[name]) == 1
            entries += page[name]
            if page.get("after") is None:
                return entries
            after = f"&after={page['after']}"

    assert {entry["error"] for entry in pages(f"/v1/dlq/{topic}/errors", "errors")} == {"a", "bb", "ccc"}
    assert [entry["group"] for entry in pages(f"/v1/topics/{topic}/groups", "groups")] == ["g", "h", "i"]
    assert [entry["group"] for entry in pages(f"/v1/groups?topic={topic}", "groups")] == ["g", "h", "i"]
    assert pages("/v1/topics", "topics") == server.call("GET", "/v1/topics").json()["topics"] == broker.topics.list()
    assert len(list(broker.dead_letters.iterate_errors(topic))) == 3


def test_creating_the_dead_letters_of_a_topic_finds_them_there(server: Server, topic: str) -> None:
    reply = server.call("POST", f"/v1/topics?name=dlq.{topic}")
    assert (reply.status, reply.json()["partitions"]) == (200, 1)
    assert server.call("POST", f"/v1/topics?name=dlq.{topic}&partitions=2").status == 409
    assert server.call("POST", "/v1/topics?name=dlq.nothing").status == 400


def test_the_reply_to_a_nack_names_the_messages_that_became_dead_letters():
    """Also over several slices of one call."""
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "nacked"})
        policy = {"retry_policy": {"max_attempts": 1}}
        messages = [{"value": "v", **({"envelope": policy} if number % 2 else {})} for number in range(600)]
        server.call("POST", "/v1/produce/batch", {"topic": "nacked", "messages": messages})
        claim = {"topic": "nacked", "group": "g", "owner": "o", "max": 600}
        claimed = server.call("POST", "/v1/claim", claim).json()
        held = [{"partition": 0, "offset": 0, "end": 600, "token": claimed["token"]}]
        body = {"topic": "nacked", "group": "g", "owner": "o", "messages": held, "reason": "boom"}
        reply = server.call("POST", "/v1/nack/batch", body).json()
        assert reply["dead"] == [{"partition": 0, "offset": offset} for offset in range(1, 600, 2)]
        assert reply["refused"] == []
        assert "dead" not in server.call("POST", "/v1/nack/batch", {**body, "messages": held[:1]}).json()
