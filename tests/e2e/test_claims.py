"""Claims from a real server: order, unsettled messages that block no others, and the share of retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, running

PAIRS = 12_000
AT_ONCE = 2_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000

Message = dict[str, Any]


@pytest.fixture
def server() -> Iterator[Server]:
    with running(None) as running_server:
        yield running_server


def ok(reply: Any) -> Any:
    assert reply.status in (200, 201), reply
    return reply.json()


def produce(server: Server, messages: list[Message]) -> None:
    for first in range(0, len(messages), AT_ONCE):
        body = {"topic": "t", "messages": messages[first : first + AT_ONCE]}
        assert ok(server.call("POST", "/v1/produce/batch", body))["failed"] == 0


def claim(server: Server, count: int) -> list[Message]:
    body = {"topic": "t", "group": "g", "owner": "w", "max": count, "lease_ms": 60_000}
    messages: list[Message] = ok(server.call("POST", "/v1/claim", body))["messages"]
    return messages


def settle(server: Server, how: str, messages: list[Message], **more: object) -> None:
    named = [{key: message[key] for key in ("partition", "offset", "token")} for message in messages]
    body = {"topic": "t", "group": "g", "owner": "w", "messages": named, **more}
    assert ok(server.call("POST", f"/v1/{how}/batch", body))["refused"] == []


def drain(server: Server, take: Callable[[list[Message]], None]) -> list[str]:
    """Claim until nothing is left."""
    values: list[str] = []
    while messages := claim(server, 1_000):
        values += [message["value"] for message in messages]
        take(messages)
    return values


@pytest.mark.timeout(180)
def test_delayed_messages_do_not_block_due_ones(tmp_path: Path) -> None:
    with running(str(tmp_path / "data")) as server:
        ok(server.call("POST", "/v1/topics", {"name": "t"}))
        claim(server, 1)
        pairs = [({"value": f"tomorrow {n}", "delay_ms": DAY_MS}, {"value": f"now {n}"}) for n in range(PAIRS)]
        produce(server, [message for pair in pairs for message in pair])
        values = drain(server, lambda messages: settle(server, "ack", messages))
        assert values == [f"now {n}" for n in range(PAIRS)]
        produce(server, [{"value": "urgent", "priority": 9}])
        assert [message["value"] for message in claim(server, 10)] == ["urgent"]
        (partition,) = ok(server.call("GET", "/v1/topics/t/groups/g"))["partitions"]
        assert partition["gaps"] == PAIRS
        assert b'driftq_group_gaps{topic="t",group="g",partition="0"} 12000.0' in server.call("GET", "/v1/metrics").body
    with running(str(tmp_path / "data")) as server:
        produce(server, [{"value": "later"}, {"value": "urgent again", "priority": 9}])
        assert [message["value"] for message in claim(server, 10)] == ["urgent again", "later"]
        (view,) = ok(server.call("GET", "/v1/explain?topic=t&partition=0&offset=0&group=g"))["groups"]
        assert (view["state"], view["gaps"]) == ("delayed", PAIRS)


@pytest.mark.timeout(180)
def test_messages_in_a_long_backoff_do_not_block_others(tmp_path: Path) -> None:
    def every_second_fails(messages: list[Message]) -> None:
        settle(server, "nack", messages[::2], delay_ms=HOUR_MS, reason="not now")
        settle(server, "ack", messages[1::2])

    with running(str(tmp_path / "data")) as server:
        ok(server.call("POST", "/v1/topics", {"name": "t"}))
        produce(server, [{"value": str(n)} for n in range(2 * PAIRS)])
        assert drain(server, every_second_fails) == [str(n) for n in range(2 * PAIRS)]
    with running(str(tmp_path / "data")) as server:
        produce(server, [{"value": "later"}, {"value": "urgent", "priority": 9}])
        assert [message["value"] for message in claim(server, 10)] == ["urgent", "later"]
        (partition,) = ok(server.call("GET", "/v1/topics/t/groups/g"))["partitions"]
        assert (partition["resting"], partition["gaps"]) == (PAIRS, PAIRS)


def test_messages_of_one_key_keep_their_order_when_they_name_tenants(server: Server) -> None:
    ok(server.call("POST", "/v1/topics", {"name": "t"}))
    tenants = ["a", "a", "a", "b", "a", "b", "b", "a"]
    produce(
        server, [{"value": str(n), "key": "k", "envelope": {"tenant_id": tenant}} for n, tenant in enumerate(tenants)]
    )
    assert [message["value"] for _ in range(8) for message in claim(server, 1)] == [str(n) for n in range(8)]


def test_tenants_of_a_fair_topic_take_turns_and_keep_their_own_order(server: Server) -> None:
    ok(server.call("POST", "/v1/topics", {"name": "t", "fair": "tenant"}))
    assert ok(server.call("GET", "/v1/topics/t"))["config"]["fair"] == "tenant"
    produce(server, [{"value": f"a{n}", "key": "k", "envelope": {"tenant_id": "a"}} for n in range(4)])
    produce(server, [{"value": f"b{n}", "key": "k", "envelope": {"tenant_id": "b"}} for n in range(2)])
    values = [message["value"] for _ in range(6) for message in claim(server, 1)]
    assert values == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert "fair" not in ok(server.call("PATCH", "/v1/topics/t", {"fair": ""}))["config"]
    for wrong in ("tenants", None, 1):
        assert server.call("PATCH", "/v1/topics/t", {"fair": wrong}).status == 400


def test_hundreds_of_due_retries_leave_fresh_messages_their_share(server: Server) -> None:
    ok(server.call("POST", "/v1/topics", {"name": "t"}))
    produce(server, [{"value": f"old {n}"} for n in range(300)])
    settle(server, "nack", claim(server, 300), delay_ms=0, reason="again")
    produce(server, [{"value": f"new {n}"} for n in range(100)])
    values = [message["value"] for _ in range(100) for message in claim(server, 1)]
    assert sum(value.startswith("new") for value in values) == 80
    assert [value for value in values if value.startswith("new")] == [f"new {n}" for n in range(80)]


@pytest.mark.parametrize("named", [True, False], ids=["begin names the message", "begin names no message"])
def test_a_message_whose_effect_is_committed_is_not_delivered_again(tmp_path: Path, named: bool) -> None:
    effect = {"topic": "t", "group": "g", "key": "order-1"}
    place = {"partition": 0, "offset": 0} if named else {}
    with running(str(tmp_path / "data")) as server:
        ok(server.call("POST", "/v1/topics", {"name": "t", "history": True}))
        produce(server, [{"value": key, "envelope": {"idempotency_key": key}} for key in ("order-1", "order-2")])
        messages = claim(server, 2)
        fence = ok(server.call("POST", "/v1/idempotency/begin", {**effect, **place, "owner": "w"}))["fence"]
        assert server.call("POST", "/v1/idempotency/commit", {**effect, "fence": fence}).status == 204
        settle(server, "nack", messages, delay_ms=0, reason="died")
        server.kill()
    with running(str(tmp_path / "data")) as server:
        assert [message["value"] for message in claim(server, 10)] == ["order-2"]
        line = b'driftq_settled_total{topic="t",group="g",how="skipped"} 1.0'
        assert line in server.call("GET", "/v1/metrics").body
        history = server.call("GET", "/v1/topics/t.history/partitions/0/messages?offset=0&limit=100").body
        assert b"skipped" in history
