"""Lists and metrics of many topics and partitions: in slices, complete, and without a long turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.engine.queries import StateView
from driftq.server import slices as slices_module
from driftq.server.slices import collected, next_slice, slices
from tests.support.broker_fixture import packed
from tests.support.handler_fixture import HandlerFixture, handler_fixture
from tests.support.loop_turns import measured

TURN_S = 0.02


@asynccontextmanager
async def with_topics(topics: int, partitions: int, groups: int) -> AsyncIterator[HandlerFixture]:
    async with handler_fixture() as at:
        batch, count, size = packed("x")
        for number in range(topics):
            name = f"t{number}"
            await at.engine.submit(c.CreateTopic(name, partitions, TopicConfig()))
            for group in range(groups):
                await at.engine.submit(c.CreateGroup(name, f"g{group}", "earliest"))
            for partition in range(partitions):
                await at.engine.submit(c.Produce(name, batch, count, size, partition=partition))
        yield at


@pytest.mark.parametrize(("topics", "partitions", "groups"), [(2_000, 1, 2), (2, 1_000, 3)])
def test_no_list_and_no_scrape_holds_the_loop_for_long(topics: int, partitions: int, groups: int) -> None:
    async def run() -> None:
        async with with_topics(topics, partitions, groups) as at:
            for target in (
                "/v1/metrics",
                "/v1/groups",
                "/v1/topics",
                "/v1/topics/t0",
                "/v1/topics/t0/groups",
                "/v1/topics/t0/groups/g0",
            ):
                reply, turns = await measured(at.call("GET", target))
                assert reply.status == 200
                assert turns.longest < TURN_S, target

    asyncio.run(run())


def test_a_page_of_groups_with_many_partitions_ends_early():
    async def run() -> None:
        async with with_topics(1, 1_000, 12) as at:
            for target in ("/v1/groups", "/v1/topics/t0/groups"):
                page = (await at.call("GET", target)).body
                assert [group["group"] for group in page["groups"]] == [f"g{number}" for number in range(10)]
                rest = (await at.call("GET", f"{target}?after={page['after']}")).body
                assert [group["group"] for group in rest["groups"]] == ["g10", "g11"]
                assert "after" not in rest

    asyncio.run(run())


def test_what_is_deleted_between_two_slices_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice ends after each item, and the deletion runs between the first two."""
    monkeypatch.setattr(slices_module, "SLICE_S", 0.0)
    monkeypatch.setattr(next_slice, "__defaults__", (0.0,))

    async def run(target: str, deleted: str, turns: int = 4) -> object:
        async with with_topics(3, 4, 2) as at:
            call = asyncio.ensure_future(at.call("GET", target))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert not call.done()
            await at.call("DELETE", deleted)
            return (await call).body

    groups = asyncio.run(run("/v1/groups", "/v1/topics/t1"))
    assert isinstance(groups, dict)
    assert {group["topic"] for group in groups["groups"]} == {"t0", "t2"}
    groups = asyncio.run(run("/v1/topics/t0/groups", "/v1/topics/t0/groups/g0"))
    assert isinstance(groups, dict)
    assert [group["group"] for group in groups["groups"]] == ["g1"]
    for target in ("/v1/topics/t0", "/v1/topics/t0/groups/g0"):
        error = asyncio.run(run(target, "/v1/topics/t0"))
        assert isinstance(error, dict)
        assert error["error"] == "NOT_FOUND"
    for turns in range(1, 80):  # between any two slices of the sample
        page = asyncio.run(run("/v1/metrics", "/v1/topics/t2", turns))
        assert isinstance(page, bytes)
        assert b'driftq_backlog_messages{topic="t1"} 4.0' in page


def test_nothing_is_lost_between_two_slices():
    def numbers(view: StateView) -> Iterator[int | None]:
        for number in range(1_000):
            yield number if number % 3 else None

    async def run() -> None:
        async with handler_fixture() as at:
            expected = [number for number in range(1_000) if number % 3]
            assert await collected(at.engine.queries, numbers) == expected
            assert [number async for part in slices(at.engine.queries, numbers) for number in part] == expected

    asyncio.run(run())
