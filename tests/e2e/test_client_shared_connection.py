"""Sends of many callers in one process share a connection, and none of them notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import driftq
from driftq.client import errors
from driftq.client.transport.sansio import RetryOptions
from tests.support.server import Server, running

CALLERS = 50


@pytest.fixture
def server() -> Iterator[Server]:
    with running(None) as running_server:
        assert running_server.call("POST", "/v1/topics", {"name": "t"}).status == 201
        yield running_server


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_sends_to_one_topic_share_a_connection_and_each_gets_its_own_reply(server: Server) -> None:
    async def send_all() -> tuple[list[int], int]:
        async with driftq.connect_async(url(server)) as broker:
            await broker.send("t", "first")
            replies = await asyncio.gather(*(broker.send("t", f"v{number}") for number in range(CALLERS)))
            return [reply.offset for reply in replies], len(broker._transport._connections)

    offsets, connections = asyncio.run(send_all())
    assert offsets == list(range(1, CALLERS + 1))
    assert connections == 1
    with driftq.connect(url(server)) as broker:
        values = [message.text for message in broker.claim("t", "g", max=100)]
    assert values == ["first", *(f"v{number}" for number in range(CALLERS))]


def test_a_refused_send_does_not_affect_the_others(server: Server) -> None:
    async def send_all() -> list[object]:
        async with driftq.connect_async(url(server)) as broker:
            await broker.send("t", "first")
            sends = (broker.send("t", "v", deadline="2001-01-01T00:00:00Z" if n == 7 else None) for n in range(20))
            return await asyncio.gather(*sends, return_exceptions=True)

    results = asyncio.run(send_all())
    assert [index for index, result in enumerate(results) if isinstance(result, Exception)] == [7]
    assert isinstance(results[7], errors.InvalidCall)


def test_a_cancelled_send_leaves_the_connection_in_order(server: Server) -> None:
    async def send_all() -> tuple[list[object], int]:
        async with driftq.connect_async(url(server)) as broker:
            await broker.send("t", "first")
            sends = [asyncio.create_task(broker.send("t", f"v{number}")) for number in range(10)]
            await asyncio.sleep(0)
            sends[3].cancel()
            results = await asyncio.gather(*sends, return_exceptions=True)
            lone = asyncio.create_task(broker.send("t", "lone"))
            await asyncio.sleep(0)
            lone.cancel()
            await asyncio.gather(lone, return_exceptions=True)
            assert not broker._transport._idle, "a connection with a reply under way is not used again"
            return list(results), len(await broker.claim("t", "g", max=100))

    results, claimed = asyncio.run(send_all())
    assert [index for index, result in enumerate(results) if isinstance(result, asyncio.CancelledError)] == [3]
    others = [result for result in results if not isinstance(result, BaseException)]
    assert len({reply.offset for reply in others}) == 9
    assert claimed >= 10


def test_a_broker_that_does_not_answer_is_noticed() -> None:
    async def send() -> None:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hold, "127.0.0.1") as silent:
            address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
            retry = RetryOptions(timeout_ms=100, deadline_ms=300)
            async with driftq.connect_async(address, retry=retry) as broker:
                results = await asyncio.gather(*(broker.send("t", "v") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(result, errors.OutcomeUnknown) for result in results), results

    asyncio.run(send())
