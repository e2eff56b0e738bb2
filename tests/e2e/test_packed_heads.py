"""Hostile heads in packed batches, against a real server: one record never makes an answer about others unreadable."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import driftq
from driftq.core.model import commands as c
from driftq.engine.engine import Engine
from driftq.wire.records import Record, pack
from tests.support.server import Reply, Server, running

BATCH = {"Content-Type": "application/x-driftq-batch"}
CLAIM = {"topic": "t", "group": "g", "owner": "w", "max": 100}

HARMLESS = [
    b"{}",
    b"{ }",
    b"{\n}",
    b'{\n"envelope":\n{"run_id":"r"}}',
    b'{"job":null}',
    b'{"job":{},"job":{"task":"t"}}',
]
REFUSED = [
    b"{},{}", b"[]", b"null", b"1", b"x", b'{"envelope":1}', b'{"unknown":1}', b'{"job":{"unknown":1}}',
    b'{"envelope":{"run_id":"\xff"}}', b'{"job":{"x":"\xff"}}', b'{"dlq":null}', b'{"job":{"priority":10}}',
    b'{"job":{"not_before_ms":99999999999999999999}}', b'{"job":{"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}}",
]  # fmt: skip
SPLIT = [b'{"envelope":{"run_id":"}', b'{"}}', b"{},{}"]  # joined with commas these are three objects


def packed(server: Server, *heads: bytes) -> Reply:
    batch = pack([Record(b"v%d" % number, b"k", head) for number, head in enumerate(heads)])
    return server.call("POST", "/v1/produce/packed?topic=t&partition=0", batch, BATCH)


def views(server: Server) -> list[list[dict[str, object]]]:
    """The messages of the topic in every JSON view of them."""
    claimed = server.call("POST", "/v1/claim", CLAIM).json()["messages"]
    peeked = server.call("GET", "/v1/topics/t/partitions/0/messages?offset=0&limit=100").json()["messages"]
    streamed = server.call("GET", "/v1/stream/__topics/t/0?offset=-1").json()
    connection = server.connect()
    connection.request("GET", "/v1/consume?topic=t&group=other&owner=w")
    response = connection.getresponse()
    consumed = [json.loads(response.readline()) for _ in claimed]
    connection.close()
    return [claimed, peeked, streamed, consumed]


@pytest.mark.parametrize("head", HARMLESS, ids=repr)
def test_a_head_in_another_spelling_is_shown_like_any_other(head: bytes) -> None:
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.call("POST", "/v1/produce", {"topic": "t", "value": "before"})
        assert packed(server, head).status == 200
        server.call("POST", "/v1/produce", {"topic": "t", "value": "after"})
        for shown in views(server):
            assert [message["value"] for message in shown] == ["before", "v0", "after"]


def test_what_is_not_a_head_is_refused_and_nothing_of_its_batch_is_stored() -> None:
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        for heads in (*([b"", head, b"{}"] for head in REFUSED), SPLIT):
            refused = packed(server, *heads)
            assert (refused.status, refused.json()["error"]) == (400, "INVALID_ARGUMENT"), heads
            batch = pack([Record(b"v", head=head) for head in heads])
            staged = server.call("POST", "/v1/stages?writer=w&handle=h&topic=t&partition=0", batch, BATCH)
            assert staged.status == 400, heads
        assert "record 1" in packed(server, b"", REFUSED[0]).json()["message"]
        assert server.call("GET", "/v1/topics/t/partitions/0/messages").json()["end_offset"] == 0


async def _stored_unchecked(folder: str, *heads: bytes) -> None:
    """A record that an older version stored without a check."""
    engine = await Engine.open(folder)
    await engine.submit(c.CreateTopic("t", 1))
    batch = pack([Record(b"v%d" % number, b"k", head) for number, head in enumerate(heads)])
    await engine.submit(c.Produce("t", batch, len(heads), len(batch), partition=0))
    await engine.close()


def test_a_stored_head_that_cannot_be_shown_is_an_error_in_its_place(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    asyncio.run(_stored_unchecked(folder, b"", *SPLIT, b'{"job":{"task":"t"}}'))
    with running(folder) as server:
        for shown in views(server):
            assert [message["value"] for message in shown] == ["v0", "v1", "v2", "v3", "v4"]
            assert [message.get("error", "") for message in shown] == ["", *["DATA_CORRUPT"] * 3, ""]
            assert "cannot be read" in str(shown[1]["message"])
        [claimed, *_] = [server.call("POST", "/v1/claim", {**CLAIM, "group": "third"}).json()["messages"]]
        for message in claimed:
            held = {key: message[key] for key in ("partition", "offset", "token")}
            settled = server.call("POST", "/v1/ack", {"topic": "t", "group": "third", "owner": "w", **held})
            assert settled.status == 204, "every message of the claim has a token that can be read"


def test_a_worker_turns_an_unreadable_message_into_a_dead_letter_and_handles_the_rest(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    asyncio.run(_stored_unchecked(folder, b"", SPLIT[0], b""))
    handled: list[bytes] = []
    with running(folder) as server:

        @driftq.worker("t", group="g")
        def handle(message: driftq.Message) -> None:
            handled.append(message.value)

        handle.run(server.url, drain=True)
        assert sorted(handled) == [b"v0", b"v2"]
        [letter] = server.call("GET", "/v1/dlq/t").json()["messages"]
        assert letter["value"] == "v1"
        assert "cannot be read" in letter["dlq"]["last_error"]
