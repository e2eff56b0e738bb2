"""Bodies of the API: every one can be encoded and decoded, and what handlers write by hand is what the Struct says."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import pkgutil

import msgspec
import pytest

import driftq.wire
from driftq.wire.claims import DELIVERED_ALWAYS, ClaimReply, Delivered
from driftq.wire.dead_letters import LettersReply
from driftq.wire.message import StoredMessage
from driftq.wire.produce import BatchReply, ProduceReply
from driftq.wire.topics import MessagesReply
from tests.support.handler_fixture import handler_fixture

MODULES = [
    importlib.import_module(f"driftq.wire.{module.name}") for module in pkgutil.iter_modules(driftq.wire.__path__)
]
STRUCTS = [
    value
    for module in MODULES
    for value in vars(module).values()
    if inspect.isclass(value) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("body", STRUCTS, ids=lambda body: body.__name__)
def test_the_types_of_a_body_are_known_at_run_time(body):
    msgspec.json.Decoder(body)
    msgspec.json.schema(body)


def test_a_name_of_a_body_is_used_once():
    names = [body.__name__ for body in STRUCTS]
    assert sorted(names) == sorted(set(names))


def strictly(value: dict, body: type) -> None:
    """Decodes, and has no field that the Struct does not have."""
    msgspec.convert(value, body)
    assert not set(value) - set(body.__struct_fields__), body


def test_bodies_that_handlers_write_by_hand_are_their_structs():
    async def run():
        async with handler_fixture() as at:
            await at.call("POST", "/v1/topics", {"name": "t"})
            produced = (await at.call("POST", "/v1/produce", {"topic": "t", "value": "plain"})).body
            strictly(produced, ProduceReply)
            full = {"value_base64": "/w==", "key": "k", "task": "mail", "envelope": {"run_id": "r"}}
            batch = (await at.call("POST", "/v1/produce/batch", {"topic": "t", "messages": [full, {}]})).body
            strictly(batch, BatchReply)
            assert [result["status"] for result in batch["results"]] == [200, 400]
            peeked = (await at.call("GET", "/v1/topics/t/partitions/0/messages")).body
            strictly(peeked, MessagesReply)
            for message in peeked["messages"]:
                strictly(message, StoredMessage)
            claimed = (await at.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o", "max": 9})).body
            strictly(claimed, ClaimReply)
            for message in claimed["messages"]:
                strictly(message, Delivered)
                assert set(DELIVERED_ALWAYS) <= set(message)
            held = [{name: claimed["messages"][0][name] for name in ("partition", "offset", "token")}]
            await at.call("POST", "/v1/reject", {"topic": "t", "group": "g", "messages": held})
            letters = (await at.call("GET", "/v1/dlq/t")).body
            strictly(letters, LettersReply)
            strictly(letters["messages"][0], StoredMessage)
            assert len(claimed["messages"]) == 2
            assert json.dumps(letters["messages"][0]["dlq"])

    asyncio.run(run())
