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


def test_whose_unread_messages_retention_keeps_can_be_set_and_is_shown_only_then():
    async def story() -> None:
        async with handler_fixture() as at:
            await at.call("POST", "/v1/topics", {"name": "t", "keep_unread": "all"})
            assert (await at.call("GET", "/v1/topics/t")).body["config"]["keep_unread"] == "all"
            changed = await at.call("PATCH", "/v1/topics/t", {"keep_unread": "none"})
            assert changed.body["config"]["keep_unread"] == "none"
            assert "keep_unread" not in (await at.call("PATCH", "/v1/topics/t", {"keep_unread": ""})).body["config"]
            for wrong in ("some", None, 1):
                assert (await at.call("PATCH", "/v1/topics/t", {"keep_unread": wrong})).status == 400

    asyncio.run(story())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retry": {"max_attempts": -1}}, "invalid retry.max_attempts: it cannot be negative"),
        ({"retry": {"max_attempts": 1_001}}, "invalid retry.max_attempts: at most 1000"),
        ({"retry": {"backoff_ms": -1}}, "invalid retry.backoff_ms: it cannot be negative"),
        ({"retry": {"max_backoff_ms": 1 << 53}}, f"invalid retry.max_backoff_ms: at most {(1 << 53) - 1}"),
        ({"lease_ms": 99}, "lease_ms must be 100 to 43200000"),
        ({"lease_ms": 43_200_001}, "lease_ms must be 100 to 43200000"),
    ],
)
def test_a_retry_policy_or_a_lease_that_no_message_could_have_is_refused_for_a_topic_too(config, message):
    async def check():
        async with handler_fixture() as at:
            refused = await at.call("POST", "/v1/topics", {"name": "t", **config})
            assert (refused.status, refused.body["message"]) == (400, message)
            await at.call("POST", "/v1/topics", {"name": "t", "lease_ms": 100, "retry": {"max_attempts": 1_000}})
            before = (await at.call("GET", "/v1/topics/t")).body
            refused = await at.call("PATCH", "/v1/topics/t", config)
            assert (refused.status, refused.body["message"]) == (400, message)
            assert (await at.call("GET", "/v1/topics/t")).body == before

    asyncio.run(check())
