"""Topics over the API: what a request to create one may ask for."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.handler_fixture import handler_fixture


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/topics", {"name": "t", "partitions": 0}),
        ("/v1/topics?name=t&partitions=0", None),
        ("/v1/topics", {"name": "t", "partitions": 1_025}),
    ],
)
def test_a_topic_with_no_partition_or_too_many_is_refused(target, body):
    async def check():
        async with handler_fixture() as at:
            refused = await at.call("POST", target, body)
            assert (refused.status, refused.body["error"]) == (400, "INVALID_ARGUMENT")
            assert "partitions" in refused.body["message"]
            assert (await at.call("GET", "/v1/topics")).body["topics"] == []

    asyncio.run(check())


@pytest.mark.parametrize(("target", "body"), [("/v1/topics", {"name": "t"}), ("/v1/topics?name=t", None)])
def test_a_topic_has_one_partition_unless_the_request_asks_for_more(target, body):
    async def check():
        async with handler_fixture() as at:
            created = await at.call("POST", target, body)
            assert (created.status, created.body["partitions"]) == (201, 1)

    asyncio.run(check())
