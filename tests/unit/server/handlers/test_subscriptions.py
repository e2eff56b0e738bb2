"""Subscriptions on a full disk: refused with a time to retry, and never signed with a key that was not stored."""

from __future__ import annotations

import asyncio

from driftq.server.streams.webhooks import Signer
from tests.support.handler_fixture import handler_fixture

CONTROL = "/v1/stream/__ds"
SUBSCRIPTION = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "http://127.0.0.1:9/hook"}}


def test_a_full_disk_refuses_the_first_subscription_and_makes_no_key() -> None:
    async def run() -> None:
        async with handler_fixture() as at:
            room = at.engine.sequencer.room
            free_bytes, room.free_bytes = room.free_bytes, 0
            for method, path, body in (("PUT", "subscriptions/s", SUBSCRIPTION), ("GET", "jwks.json", None)):
                refused = await at.call(method, f"{CONTROL}/{path}", body)
                assert refused.status == 507, refused.body
                assert (refused.body["error"]["code"], refused.body["error"]["reason"]) == ("DISK_FULL", "disk_full")
                assert b"Retry-After: 1\r\n" in at.last_headers
            room.free_bytes = free_bytes
            assert (await at.call("PUT", f"{CONTROL}/subscriptions/s", SUBSCRIPTION)).status == 201
            keys = (await at.call("GET", f"{CONTROL}/jwks.json")).body["keys"]
            assert keys == Signer(at.engine.latest_state.subscriptions.seed).jwks["keys"]
            assert keys != Signer(b"").jwks["keys"]

    asyncio.run(run())
