"""Tenants and their quotas, from outside: names on both sides of the namespace, what is refused over a quota, what
still passes, and what a restart keeps."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.access import TEXT, TOKENS, Operator, bearer, first_token
from tests.support.server import Reply, Server
from tests.support.wait import until_now


class Tenants:
    """A server with an operator, and tenants that are made when they are asked for."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        token = first_token(folder)
        self.operator = Operator(Server(folder, TOKENS), token)
        self.operator.server.read_lines()

    def new(self, tenant: str, **quotas: int) -> Operator:
        self.operator.done("POST", "/v1/tenants", {"name": tenant, "quotas": quotas})
        return Operator(self.operator.server, self.operator.new("admin", tenant=tenant))

    def restart(self, *others: Operator) -> None:
        self.operator.server.stop()
        server = Server(self.folder, TOKENS)
        server.read_lines()
        for caller in (self.operator, *others):
            caller.server = server

    def used(self, tenant: str) -> dict[str, int]:
        used = self.operator.done("GET", f"/v1/tenants/{tenant}").json()["used"]
        assert isinstance(used, dict)
        return used


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    tenants = Tenants(str(tmp_path / "data"))
    try:
        yield tenants
    finally:
        if tenants.operator.server.process.poll() is None:
            tenants.operator.server.stop()


def assert_over(reply: Reply, quota: str) -> None:
    assert reply.status == 429, reply
    body = reply.json()
    assert (body["error"], body["reason"], body["quota"]) == ("RESOURCE_EXHAUSTED", "tenant_quota", quota)
    assert body["limit"] > 0
    assert body["used"] >= 0
    assert body["retry_after_ms"] > 0
    assert int(reply.headers["retry-after"]) >= 1


def produce(caller: Operator, value: str = "v", topic: str = "orders", **envelope: str) -> Reply:
    return caller.call("POST", "/v1/produce", {"topic": topic, "value": value, "envelope": envelope or None})


def test_two_tenants_use_the_same_names_and_an_operator_sees_both(tenants: Tenants):
    callers = {name: tenants.new(name) for name in ("acme", "b-2")}
    for name, caller in callers.items():
        caller.done("POST", "/v1/topics", {"name": "orders"})
        caller.done("PUT", "/v1/stream/runs/1", name.encode(), TEXT)
        assert produce(caller, name).json()["topic"] == "orders"
    for name, caller in callers.items():
        assert caller.done("GET", "/v1/topics").json()["topics"] == ["orders"]
        assert [stream["stream"] for stream in caller.done("GET", "/v1/streams").json()["streams"]] == ["runs/1"]
        assert caller.done("GET", "/v1/stream/runs/1").body == name.encode()
        claimed = caller.done("POST", "/v1/claim", {"topic": "orders", "group": "g", "owner": "w", "max": 9}).json()
        assert [message["value"] for message in claimed["messages"]] == [name]
        assert claimed["messages"][0]["envelope"]["tenant_id"] == name
        held = [{"partition": 0, "offset": 0, "token": claimed["token"]}]
        caller.done("POST", "/v1/reject", {"topic": "orders", "group": "g", "owner": "w", "messages": held})
        [letter] = caller.done("GET", "/v1/dlq/orders").json()["messages"]
        assert letter["dlq"]["topic"] == "orders"
        assert caller.done("POST", "/v1/dlq/orders/redrive", {}).json()["redriven"] == 1
        assert caller.done("GET", "/v1/groups").json()["groups"][0]["topic"] == "orders"
        page = caller.done("GET", "/v1/metrics").body.decode()
        assert 'driftq_backlog_messages{topic="orders"} 2.0' in page
        assert "~" not in page
        assert not any(other in page for other in callers if other != name)
    topics = tenants.operator.done("GET", "/v1/topics").json()["topics"]
    assert topics == ["_audit", "acme~orders", "b-2~orders"]
    assert tenants.operator.done("POST", "/v1/dlq/acme~orders/redrive", {}).json()["redriven"] == 0
    assert 'tenant="b-2"' in tenants.operator.done("GET", "/v1/metrics").body.decode()


def test_the_tenant_of_a_message_is_that_of_the_credential(tenants: Tenants):
    acme = tenants.new("acme")
    acme.done("POST", "/v1/topics", {"name": "orders"})
    assert produce(acme, tenant_id="acme").status == 200
    assert produce(acme, tenant_id="other").status == 403
    item = {"topic": "orders", "value": "v", "task": "t", "envelope": {"tenant_id": "other"}}
    assert acme.call("POST", "/v1/jobs", item).status == 403
    assert (
        acme.call(
            "POST",
            "/v1/produce/batch",
            {"topic": "orders", "messages": [{"value": "v", "envelope": {"tenant_id": "other"}}]},
        ).status
        == 403
    )
    assert acme.call("GET", "/v1/jobs/orders/x?tenant_id=other").status == 403
    effect = {"topic": "orders", "group": "g", "key": "k", "owner": "w", "tenant_id": "other"}
    assert acme.call("POST", "/v1/idempotency/begin", effect).status == 403
    assert acme.done("GET", "/v1/topics/orders").json()["partitions"][0]["end_offset"] == 1


def test_the_same_keys_and_ids_in_two_tenants_are_different(tenants: Tenants):
    for caller in (tenants.new("acme"), tenants.new("other")):
        caller.done("POST", "/v1/topics", {"name": "orders"})
        assert produce(caller, idempotency_key="k").json().get("duplicate", False) is False
        assert caller.done("POST", "/v1/jobs", {"topic": "orders", "id": "j", "value": "v"}).status == 201
        effect = {"topic": "orders", "group": "g", "key": "e", "owner": "w"}
        assert caller.done("POST", "/v1/idempotency/begin", effect).json()["status"] == "begun"
        assert caller.done("GET", "/v1/jobs/orders/j").json()["topic"] == "orders"
        heartbeat = {"host": "h", "pid": 1, "version": "1", "workers": [{"name": "f", "topic": "orders", "group": "g"}]}
        caller.done("PUT", "/v1/workers/w", heartbeat)
        [worker] = caller.done("GET", "/v1/workers").json()["workers"]
        assert (worker["id"], worker["workers"][0]["topic"]) == ("w", "orders")
    workers = tenants.operator.done("GET", "/v1/workers").json()["workers"]
    assert [worker["id"] for worker in workers] == ["acme~w", "other~w"]


def test_a_wake_of_a_tenant_is_claimed_and_acked_in_its_own_names(tenants: Tenants):
    acme = tenants.new("acme")
    for path in ("runs/1", "wakes"):
        acme.done("PUT", f"/v1/stream/{path}", b"", {"Content-Type": "application/json"})
    root = "/v1/stream/__ds/subscriptions/sub"
    acme.done("PUT", root, {"type": "pull-wake", "pattern": "runs/*", "wake_stream": "wakes"})
    acme.done("POST", "/v1/stream/runs/1", b"[1]", {"Content-Type": "application/json"})
    [event] = acme.done("GET", "/v1/stream/wakes").json()
    assert (event["subscription_id"], event["stream"]) == ("sub", "runs/1")
    wake = acme.done("POST", f"{root}/claim", {"worker": "w"}).json()
    [stream] = wake["streams"]
    body = {
        "wake_id": wake["wake_id"], "generation": wake["generation"], "done": True,
        "acks": [{"stream": stream["path"], "offset": stream["tail_offset"]}],
    }  # fmt: skip
    other_tenant = wake["token"].rpartition(".")[0] + ".other"
    assert acme.server.call("POST", f"{root}/ack", body, bearer(other_tenant)).status == 401
    assert acme.server.call("POST", f"{root}/ack", body, bearer(wake["token"])).json()["ok"]
    assert acme.done("GET", root).json()["streams"][0]["acked_offset"] == stream["tail_offset"]


def test_an_administrator_of_a_tenant_makes_tokens_of_the_tenant_only(tenants: Tenants):
    acme, other = tenants.new("acme"), tenants.new("other")
    token = Operator(acme.server, acme.new("read:*"))
    assert token.done("GET", "/v1/topics").json()["topics"] == []
    assert acme.call("POST", "/v1/tokens", {"name": "n", "grants": ["admin"], "tenant": "other"}).status == 403
    assert len(acme.done("GET", "/v1/tokens").json()["tokens"]) == 2
    other_id = other.token.split("_")[1]
    for method, target in (("GET", ""), ("DELETE", ""), ("POST", "/rotate"), ("PATCH", "")):
        body = {"grants": ["observe"]} if method == "PATCH" else None
        assert acme.call(method, f"/v1/tokens/{other_id}{target}", body).status == 404
    assert other.done("GET", "/v1/topics").status == 200


def test_over_a_quota_new_work_is_refused_and_acks_and_reads_pass(tenants: Tenants):
    acme = tenants.new("acme", messages_per_s=3, topics=1, streams=1, groups=1)
    acme.done("POST", "/v1/topics", {"name": "orders"})
    assert_over(acme.call("POST", "/v1/topics", {"name": "more"}), "topics")
    acme.done("PUT", "/v1/stream/a", b"", TEXT)
    assert acme.call("PUT", "/v1/stream/b", b"", TEXT).status == 429
    replies = [produce(acme) for _ in range(8)]
    assert_over(next(reply for reply in replies if reply.status != 200), "messages_per_s")
    names = {"topic": "orders", "group": "g", "owner": "w"}
    claimed = acme.done("POST", "/v1/claim", {**names, "max": 1}).json()
    acme.done("POST", "/v1/ack", {**names, "partition": 0, "offset": 0, "token": claimed["token"]})
    assert_over(acme.call("POST", "/v1/claim", {**names, "group": "other"}), "groups")
    acme.done("GET", "/v1/topics/orders/partitions/0/messages")
    acme.done("DELETE", "/v1/stream/a")
    acme.done("PUT", "/v1/stream/b", b"", TEXT)
    refused = tenants.operator.done("GET", "/v1/metrics").body.decode()
    assert 'driftq_tenant_refused_total{tenant="acme",quota="messages_per_s"}' in refused


def test_requests_over_the_quota_are_refused_if_they_add_something(tenants: Tenants):
    acme = tenants.new("acme", requests_per_s=2)
    replies = [acme.call("POST", "/v1/topics", {"name": f"t{number}"}) for number in range(30)]
    assert_over(next(reply for reply in replies if reply.status == 429), "requests_per_s")
    assert all(acme.call("GET", "/v1/topics").status == 200 for _ in range(10))


def test_a_large_body_over_the_quota_of_bytes_is_refused_before_it_is_read(tenants: Tenants):
    acme = tenants.new("acme", bytes_per_s=100_000)
    acme.done("POST", "/v1/topics", {"name": "orders"})
    no_json = b"{" * 100_000
    assert acme.call("POST", "/v1/produce", no_json).status == 400
    acme.done("POST", "/v1/produce", {"topic": "orders", "value": "x" * 1_000_000})
    assert_over(acme.call("POST", "/v1/produce", no_json), "bytes_per_s")
    assert acme.call("GET", "/v1/topics").status == 200


def test_stored_bytes_and_backlog_are_measured_and_freed(tenants: Tenants):
    acme = tenants.new("acme", stored_bytes=50_000, backlog=0)
    acme.done("POST", "/v1/topics", {"name": "orders"})
    until_now(lambda: produce(acme, "x" * 20_000).status == 429, 20.0)
    assert_over(produce(acme), "stored_bytes")
    assert tenants.used("acme")["stored_bytes"] >= 50_000
    acme.done("DELETE", "/v1/topics/orders")
    acme.done("POST", "/v1/topics", {"name": "orders"})
    until_now(lambda: produce(acme).status == 200, 20.0)
    tenants.operator.done("PATCH", "/v1/tenants/acme", {"stored_bytes": 0, "backlog": 2})
    claim = {"topic": "orders", "group": "g", "owner": "w", "max": 100}
    acme.done("POST", "/v1/claim", {**claim, "max": 1})
    until_now(lambda: produce(acme).status == 429, 20.0)
    assert_over(produce(acme), "backlog")
    end = acme.done("GET", "/v1/topics/orders").json()["partitions"][0]["end_offset"]
    acme.done("POST", "/v1/topics/orders/groups/g/seek", {"to": end, "partition": 0})
    until_now(lambda: produce(acme).status == 200, 20.0)


def test_connections_past_the_quota_are_refused_and_closed(tenants: Tenants):
    acme = tenants.new("acme", connections=2)
    port = acme.server.port
    kept = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(4)]
    replies = []
    for connection in kept:
        connection.request("POST", "/v1/topics", b'{"name":"t"}', bearer(acme.token))
        response = connection.getresponse()
        replies.append(Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()))
    assert [reply.status for reply in replies] == [201, 200, 429, 429]
    assert_over(replies[2], "connections")
    assert replies[2].headers["connection"] == "close"
    kept[0].request("POST", "/v1/topics", b'{"name":"t"}', bearer(acme.token))
    assert kept[0].getresponse().status == 200
    reading = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    reading.request("GET", "/v1/topics", headers=bearer(acme.token))
    read = reading.getresponse()
    assert (read.status, read.headers["connection"]) == (200, "close")
    for connection in kept:
        connection.close()
    until_now(lambda: acme.call("POST", "/v1/topics", {"name": "t"}).status == 200, 20.0)


def test_quotas_and_what_is_counted_survive_a_restart(tenants: Tenants):
    acme = tenants.new("acme", topics=5, streams=2)
    acme.done("POST", "/v1/topics", {"name": "orders"})
    acme.done("PUT", "/v1/stream/a", b"x", TEXT)
    tenants.operator.done("PATCH", "/v1/tenants/acme", {"topics": 1})
    tenants.restart(acme)
    shown = tenants.operator.done("GET", "/v1/tenants/acme").json()
    assert (shown["quotas"]["topics"], shown["used"]["topics"], shown["used"]["streams"]) == (1, 1, 1)
    assert_over(acme.call("POST", "/v1/topics", {"name": "more"}), "topics")
    assert [tenant["name"] for tenant in tenants.operator.done("GET", "/v1/tenants").json()["tenants"]] == ["acme"]


def test_schedules_are_counted_and_the_next_one_is_refused_also_after_a_restart(tenants: Tenants):
    acme = tenants.new("acme", schedules=2)
    acme.done("POST", "/v1/topics", {"name": "orders"})

    def create(name: str, every_ms: int = 3_600_000) -> Reply:
        body = {"name": name, "topic": "orders", "message": {"value": "v"}, "every_ms": every_ms, "replace": True}
        return acme.call("POST", "/v1/schedules", body)

    assert (create("a").status, create("b").status) == (201, 201)
    assert_over(create("c"), "schedules")
    assert create("b", 7_200_000).status == 200, "one that exists can be changed"
    tenants.restart(acme)
    assert_over(create("c"), "schedules")
    assert tenants.used("acme")["schedules"] == 2
    acme.done("DELETE", "/v1/schedules/a")
    assert create("c").status == 201


def test_a_tenant_is_deleted_only_when_nothing_is_left(tenants: Tenants):
    acme = tenants.new("acme")
    acme.done("POST", "/v1/topics", {"name": "orders"})
    assert tenants.operator.call("DELETE", "/v1/tenants/acme").status == 409
    acme.done("DELETE", "/v1/topics/orders")
    assert "access token" in tenants.operator.call("DELETE", "/v1/tenants/acme").json()["message"]
    tenants.operator.done("DELETE", f"/v1/tokens/{acme.token.split('_')[1]}")
    tenants.operator.done("DELETE", "/v1/tenants/acme")
    tenants.operator.done("PUT", "/v1/stream/acme~x", b"", TEXT)
    assert tenants.operator.call("POST", "/v1/tenants", {"name": "acme"}).status == 409
