"""Schedules on the real thing: fired once through kills, registered by workers, listed in pages, by both clients."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import driftq
from driftq.client.errors import Conflict, InvalidCall, NotFound
from driftq.testing import MemoryBroker
from tests.support.server import running
from tests.support.wait import until_now

DAY_MS = 86_400_000
WAIT_S = 30


def times_in(broker: driftq.DriftQ, topic: str) -> list[str]:
    """The times of the firings in a topic, in the order of the log."""
    messages = broker.topics.search(topic, limit=1_000)
    ids = [message.job.id for message in sorted(messages, key=lambda message: message.offset)]
    return [id.partition("@")[2] for id in ids]


def fires_twice(broker: driftq.DriftQ, name: str) -> None:
    fired = broker.schedules.show(name).firings
    until_now(lambda: broker.schedules.show(name).firings > fired + 1, WAIT_S)


def test_every_second_fires_once_through_kills_and_restarts(tmp_path: Path):
    folder = str(tmp_path / "data")
    for number in range(3):
        with running(folder) as server:
            with driftq.connect(server.url) as broker:
                if number == 0:
                    broker.topics.create("ticks")
                    broker.schedules.create("tick", "ticks", "x", every_ms=1_000, catch_up="all")
                fires_twice(broker, "tick")
                if number == 2:
                    times, schedule = times_in(broker, "ticks"), broker.schedules.show("tick")
            server.kill()
    moments = [datetime.fromisoformat(time) for time in times]
    assert all(later - earlier == timedelta(seconds=1) for earlier, later in pairwise(moments)), times
    assert schedule.firings <= len(times) + 1  # one may have fired between the two reads
    assert schedule.missed == 0


@pytest.fixture
def broker():
    with MemoryBroker() as broker:
        broker.topics.create("reports", partitions=2)
        yield broker


def test_a_worker_registers_the_schedule_of_its_task_and_changes_it(broker: MemoryBroker):
    ran: list[str] = []

    @driftq.task("report", topic="reports", cron="0 9 * * *", timezone="Europe/Paris", priority=3)
    def report(to: str = "all") -> None:
        message = driftq.current_message()
        assert message is not None
        ran.append(f"{message.job_id} {to}")

    broker.drain(report)
    first = broker.schedules.show("report")
    assert (first.cron, first.message.task, first.message.priority) == ("0 9 * * *", "report", 3)
    broker.drain(report)
    assert broker.schedules.show("report") == first
    broker.advance(DAY_MS)
    broker.drain(report)
    assert ran == ["report@2023-11-15T08:00:00Z all"]
    assert broker.jobs.find("reports", "report@2023-11-15T08:00:00Z")["state"] == "succeeded"

    @driftq.task("report", topic="reports", every=timedelta(hours=2), catch_up="all")
    def changed() -> None:
        pass

    broker.schedules.pause("report")
    broker.drain(changed)
    second = broker.schedules.show("report")
    assert (second.cron, second.every_ms, second.catch_up, second.state) == ("", 7_200_000, "all", "paused")
    assert second.firings == 1


def test_a_schedule_of_a_task_is_checked_where_it_is_written(broker: MemoryBroker):
    with pytest.raises(InvalidCall, match="without arguments, so they need defaults"):
        driftq.task("t", cron="* * * * *")(lambda to: None)
    with pytest.raises(InvalidCall, match="needs cron or every"):
        driftq.task("t", schedule="nightly")

    @driftq.task("t", topic="reports", cron="61 * * * *", schedule="nightly")
    def wrong() -> None:
        pass

    with pytest.raises(InvalidCall, match="bad minute"):
        broker.drain(wrong)


def test_a_day_that_passed_is_caught_up_with_as_asked(broker: MemoryBroker):
    for catch_up in ("none", "last", "all"):
        broker.schedules.create(catch_up, "reports", "x", every_ms=3_600_000, catch_up=catch_up)
    broker.advance(10 * 3_600_000 + 120_000)
    assert {name: broker.schedules.show(name).firings for name in ("none", "last", "all")} == {
        "none": 0, "last": 1, "all": 10,
    }  # fmt: skip
    assert {name: broker.schedules.show(name).missed for name in ("none", "last", "all")} == {
        "none": 10, "last": 9, "all": 0,
    }  # fmt: skip


def test_a_schedule_survives_its_topic_and_shows_what_is_wrong(broker: MemoryBroker):
    broker.topics.create("gone")
    broker.schedules.create("s", "gone", "x", every_ms=60_000)
    broker.topics.delete("gone")
    broker.advance(60_000)
    assert "topic does not exist" in broker.schedules.show("s").error
    broker.topics.create("gone")
    broker.advance(60_000)
    shown = broker.schedules.show("s")
    assert (shown.error, shown.firings, shown.missed) == ("", 1, 1)


def test_lists_have_pages_and_both_clients_have_the_calls(broker: MemoryBroker):
    names = [f"s{number}" for number in range(5)]

    async def use() -> None:
        async with broker.asynchronous() as client:
            for name in names:
                await client.schedules.create(name, "reports", b"\xff", every=timedelta(minutes=1))
            assert [schedule.name for schedule in await client.schedules.list(limit=3)] == names[:3]
            assert [schedule.name async for schedule in client.schedules.iterate("s")] == names
            assert (await client.schedules.run("s1")).topic == "reports"
            await client.schedules.delete("s0")
            with pytest.raises(NotFound):
                await client.schedules.show("s0")
            with pytest.raises(Conflict, match="with replace"):
                await client.schedules.create("s1", "reports", "other", every_ms=60_000)

    asyncio.run(use())
    assert broker.schedules.show("s1").message.value_base64 == "/w=="
    assert [schedule.name for schedule in broker.schedules.list(topic="none")] == []


def test_messages_without_a_key_are_spread_by_the_name_of_their_schedule(broker: MemoryBroker):
    for number in range(20):
        broker.schedules.create(f"s{number}", "reports", "x", every_ms=60_000)
    broker.advance(60_000)
    partitions = {broker.schedules.show(f"s{number}").last.partition for number in range(20)}
    assert partitions == {0, 1}
