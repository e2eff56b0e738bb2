"""The audit of a server: every administrative call leaves one record, refused callers are counted, and with the right
it is read in every way in which a topic can be read."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from driftq.server.access.trail import KINDS_MAX
from driftq.server.app import RouteSpec
from tests.support.access import JSON, TOKENS, Operator, bearer, first_token, id_of
from tests.support.handler_fixture import handler_fixture
from tests.support.server import Server
from tests.support.wait import until_now

WRONG = "dq_0123456789abcdef_" + "0" * 64
SUBSCRIPTION = "/v1/stream/__ds/subscriptions/sub"
PULL = {"type": "pull-wake", "streams": ["s"], "wake_stream": "wakes"}


class Change(NamedTuple):
    """A call that succeeds, and its record."""

    action: str
    method: str
    target: str
    name: str
    body: object = None
    result: str = "changed"
    headers: dict[str, str] | None = None


SCHEDULE = {"name": "daily", "topic": "t", "message": {"value": "v"}, "cron": "0 9 1 1 *"}

# In this order; each of them can be repeated.
CHANGES = (
    Change("topic.create", "POST", "/v1/topics", "t", {"name": "t"}),
    Change("topic.create", "POST", "/v1/topics", "t", {"name": "t"}, "unchanged"),
    Change("topic.configure", "PATCH", "/v1/topics/t", "t", {"retention_ms": 90_000_000}),
    Change("topic.configure", "PATCH", "/v1/topics/t", "t", {"retention_ms": 90_000_000}, "unchanged"),
    Change("group.pause", "POST", "/v1/topics/t/groups/g/pause", "t/g"),
    Change("group.pause", "POST", "/v1/topics/t/groups/g/pause", "t/g", result="unchanged"),
    Change("group.resume", "POST", "/v1/topics/t/groups/g/resume", "t/g"),
    Change("jobs.retry", "POST", "/v1/jobs/t/j/retry", "t"),
    Change("topic.move", "POST", "/v1/topics/u/move", "u", {"to": "t"}),
    Change("topic.purge", "POST", "/v1/topics/u/purge", "u"),
    Change("dead_letters.delete", "POST", "/v1/dlq/t/delete", "dlq.t", {"offsets": [[0, 1]]}),
    Change("dead_letters.redrive", "POST", "/v1/dlq/t/redrive", "dlq.t", {}),
    Change("group.seek", "POST", "/v1/topics/t/groups/g/seek", "t/g", {"to": "earliest"}),
    Change("job_batch.cancel", "POST", "/v1/job-batches/b1/cancel", "b1"),
    Change("jobs.cancel", "POST", "/v1/jobs/cancel", "t", {"topic": "t"}),
    Change("group.delete", "DELETE", "/v1/topics/t/groups/g", "t/g"),
    Change("worker.drain", "POST", "/v1/workers/w1/drain", "w1", result="done"),
    Change("worker.stop", "POST", "/v1/workers/w1/stop", "w1", result="done"),
    Change("stream.trim", "POST", "/v1/streams/trim", "s", {"stream": "s", "before": "0" * 16 + "_" + "0" * 16},
           "unchanged"),
    Change("subscription.create", "PUT", SUBSCRIPTION, "sub", PULL, headers=JSON),
    Change("subscription.link", "POST", f"{SUBSCRIPTION}/streams", "sub", {"streams": ["s2"]}, headers=JSON),
    Change("subscription.unlink", "DELETE", f"{SUBSCRIPTION}/streams/s2", "sub"),
    Change("subscription.delete", "DELETE", SUBSCRIPTION, "sub"),
    Change("stream.delete", "DELETE", "/v1/stream/s", "s"),
    Change("schedule.create", "POST", "/v1/schedules", "daily", SCHEDULE),
    Change("schedule.create", "POST", "/v1/schedules", "daily", SCHEDULE, "unchanged"),
    Change("schedule.pause", "POST", "/v1/schedules/daily/pause", "daily"),
    Change("schedule.resume", "POST", "/v1/schedules/daily/resume", "daily"),
    Change("schedule.delete", "DELETE", "/v1/schedules/daily", "daily"),
    Change("topic.delete", "DELETE", "/v1/topics/t", "t"),
    Change("clock.accept", "POST", "/v1/clock/accept", ""),
    Change("tenant.create", "POST", "/v1/tenants", "acme", {"name": "acme"}),
    Change("tenant.configure", "PATCH", "/v1/tenants/acme", "acme", {"topics": 7}),
    Change("tenant.delete", "DELETE", "/v1/tenants/acme", "acme"),
)  # fmt: skip
OF_TOKENS = {"token.create", "token.narrow", "token.rotate", "token.revoke"}


def route_table() -> list[RouteSpec]:
    async def table() -> list[RouteSpec]:
        async with handler_fixture() as at:
            return [*at.app.routes]

    return asyncio.run(table())


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = str(tmp_path_factory.mktemp("audit") / "data")
    token = first_token(folder)
    operator = Operator(Server(folder, TOKENS), token)
    try:
        yield operator
    finally:
        if operator.server.process.poll() is None:
            operator.server.stop()


def records(operator: Operator, **query: object) -> list[dict[str, Any]]:
    """The records that fit, the oldest first."""
    text = "&".join(f"{name}={value}" for name, value in {"limit": 1_000, **query}.items())
    return operator.done("GET", f"/v1/audit?{text}").json()["records"][::-1]


def prepare(operator: Operator) -> None:
    for topic in ("t", "t", "u"):
        operator.done("POST", "/v1/topics", {"name": topic})
        operator.done("POST", "/v1/produce", {"topic": topic, "value": "v"})
    held = {"topic": "t", "group": "g", "owner": "w"}
    claimed = operator.done("POST", "/v1/claim", {**held, "max": 2}).json()["messages"]
    rejected = [{"partition": 0, "offset": message["offset"], "token": message["token"]} for message in claimed]
    operator.done("POST", "/v1/reject", {**held, "messages": rejected})
    operator.done("POST", "/v1/jobs", {"topic": "t", "id": "j", "value": "v", "delay_ms": 600_000})
    operator.done("POST", "/v1/job-batches", {"id": "b1", "jobs": [{"topic": "t", "value": "v"}]})
    working = {"name": "f", "topic": "other", "group": "g"}
    operator.done("PUT", "/v1/workers/w1", {"host": "h", "pid": 1, "version": "1", "workers": [working]})
    for stream in ("s", "s2", "wakes"):
        operator.done("PUT", f"/v1/stream/{stream}", b"", JSON)


def test_every_administrative_call_leaves_one_record_that_survives_a_kill(operator: Operator):
    prepare(operator)
    first = operator.done("GET", "/v1/audit").json()["end"]
    for change in CHANGES:
        if change.result == "changed" and change.action == "topic.create":
            continue  # made above, so that there is something to change
        operator.done(change.method, change.target, change.body, change.headers)
    token = operator.done("POST", "/v1/tokens", {"name": "n", "grants": ["observe", "read:x"]}).json()
    operator.done("PATCH", f"/v1/tokens/{token['id']}", {"grants": ["observe"]})
    operator.done("POST", f"/v1/tokens/{token['id']}/rotate", {})
    operator.done("DELETE", f"/v1/tokens/{token['id']}")
    expected = [
        (change.action, change.result, change.name)
        for change in CHANGES
        if (change.action, change.result) != ("topic.create", "changed")
    ]
    expected += [(action, "changed", token["id"]) for action in ("token.create", "token.narrow", "token.rotate")]
    expected.append(("token.revoke", "changed", token["id"]))

    listed = [record for record in records(operator) if record["offset"] >= first]
    assert [(r["action"], r["result"], r["name"]) for r in listed if r["action"] != "jobs.cancel"] == [
        row for row in expected if row[0] != "jobs.cancel"
    ]
    assert {r["name"] for r in listed if r["action"] == "jobs.cancel"} == {"t"}, "one for each job that is cancelled"
    assert {(r["who"], r["token_id"], r["address"]) for r in listed} == {
        ("operator", id_of(operator.token), "127.0.0.1")
    }
    assert len({r["request_id"] for r in listed}) == len(listed)
    actions = {action for route in route_table() for action in route.actions}
    assert actions == {change.action for change in CHANGES} | OF_TOKENS | {"backup.download"}

    operator.server.kill()
    operator.server = Server(operator.server.folder, TOKENS)
    assert [record for record in records(operator) if record["offset"] >= first][: len(listed)] == listed


def test_a_backup_is_recorded_and_its_id_is_that_of_the_request(operator: Operator):
    operator.done("GET", "/v1/backup", headers={"X-Request-Id": "backup-7"})
    [record] = records(operator, action="backup.download")
    assert (record["result"], record["request_id"]) == ("done", "backup-7")


class Refused(NamedTuple):
    """Callers that were refused, in one interval."""

    before: int  # records
    guessed: str  # the token whose secret was guessed
    guess: str
    nosy: str  # the token that lacks a right
    tenants: dict[str, Operator]


@pytest.fixture(scope="module")
def refused(operator: Operator) -> Refused:
    tenants = {}
    for tenant in ("one", "two"):
        operator.done("POST", "/v1/tenants", {"name": tenant})
        tenants[tenant] = Operator(operator.server, operator.new("admin", tenant=tenant))
        tenants[tenant].done("POST", "/v1/topics", {"name": f"of-{tenant}"})
    token = operator.new("observe")
    nosy = Operator(operator.server, operator.new("read:public.*"))
    refused = Refused(len(records(operator)), token, f"dq_{id_of(token)}_{'f' * 64}", nosy.token, tenants)
    for name in ("public.a", "secret.b", "secret.b"):
        nosy.call("GET", f"/v1/topics/{name}/messages")
    for owner in tenants.values():
        owner.call("GET", "/v1/overview")
    for _ in range(60):
        operator.server.call("GET", "/v1/topics", headers=bearer(refused.guess))
    operator.server.call("GET", "/v1/topics", headers=bearer(WRONG))
    until_now(lambda: sum(record["count"] for record in records(operator, result="refused")) >= 61, 30)
    until_now(lambda: records(tenants["two"], result="denied"), 30)
    return refused


def test_refused_credentials_are_counted_and_do_not_fill_the_audit(operator: Operator, refused: Refused):
    listed = records(operator, result="refused")
    assert sum(record["count"] for record in listed) == 61
    assert len(records(operator)) - refused.before < 12, "they are summed up"
    by_token: Counter[str] = Counter()
    for record in listed:
        by_token[record["token_id"]] += record["count"]
    assert by_token[id_of(refused.guessed)] >= 20, "whose secret was guessed"
    assert all(record["address"] == "127.0.0.1" and record["reason"] for record in listed)
    text = json.dumps(records(operator))
    assert not [secret for secret in ("f" * 64, refused.guessed, refused.nosy, operator.token) if secret in text]


def test_a_right_that_is_refused_is_recorded_with_the_grant_that_is_missing(operator: Operator, refused: Refused):
    [record] = records(operator, result="denied", name="secret.b")
    assert (record["reason"], record["count"], record["who"]) == ("no grant read:secret.b", 2, "test")
    assert record["token_id"] == id_of(refused.nosy)


def test_many_different_refusals_take_a_bounded_number_of_records(operator: Operator):
    nosy = Operator(operator.server, operator.new("observe"))
    for number in range(2 * KINDS_MAX):
        nosy.call("DELETE", f"/v1/topics/t{number}")

    def listed() -> list[dict[str, Any]]:
        denied = records(operator, result="denied")
        return [
            record for record in denied if record["token_id"] == id_of(nosy.token) or "too many" in record["reason"]
        ]

    until_now(lambda: sum(record["count"] for record in listed()) >= 2 * KINDS_MAX, 60)
    assert sum(record["count"] for record in listed()) == 2 * KINDS_MAX
    assert max(Counter(record["at"] for record in listed()).values()) <= KINDS_MAX + 1


def test_a_tenant_sees_the_records_of_its_own_callers_alone(operator: Operator, refused: Refused):
    for tenant, owner in refused.tenants.items():
        listed = records(owner)
        assert [record["reason"] for record in listed if record["result"] == "denied"] == ["for operators only"]
        assert {record["tenant"] for record in listed} == {tenant}
        assert [(r["action"], r["name"]) for r in listed if r["result"] == "changed"] == [
            ("topic.create", f"of-{tenant}")
        ]
        assert owner.call("GET", "/v1/topics/_audit").status == 404
        assert owner.call("POST", "/v1/topics", {"name": "_audit"}).status == 400
        assert records(owner, tenant="one" if tenant == "two" else "two") == []
    operator.done("POST", "/v1/topics", {"name": "of-no-tenant"})
    assert {record["tenant"] for record in records(operator, action="topic.create")} >= {"", "one", "two"}


def test_it_is_read_like_a_topic_with_the_right(operator: Operator):
    exporter = Operator(operator.server, operator.new("observe", "read:_audit", "consume:_audit/siem"))
    claimed = exporter.done("POST", "/v1/claim", {"topic": "_audit", "group": "siem", "owner": "w", "max": 2}).json()
    assert json.loads(claimed["messages"][0]["value"])["action"]
    assert exporter.done("GET", "/v1/topics/_audit/messages?limit=1").json()["messages"]
    assert exporter.done("GET", "/v1/stream/__topics/_audit/0?offset=-1").body
    assert exporter.done("GET", "/v1/audit?limit=1").json()["records"]
    assert "_audit" in exporter.done("GET", "/v1/topics").json()["topics"]
    for grants in (("read:*", "consume:*"), ("observe",), ("manage:*", "produce:*", "read:*")):
        other = Operator(operator.server, operator.new(*grants))
        for target in ("/v1/audit", "/v1/topics/_audit/messages", "/v1/stream/__topics/_audit/0?offset=-1"):
            assert other.call("GET", target).status == 403, (grants, target)
        body = {"topic": "_audit", "group": "siem", "owner": "w", "max": 1}
        assert other.call("POST", "/v1/claim", body).status == 403
        assert "_audit" not in other.done("GET", "/v1/topics").json()["topics"]
    refused = Operator(operator.server, operator.new("read:*")).call("GET", "/v1/audit").json()
    assert "no grant observe" in refused["message"]


def test_no_credential_can_change_it(operator: Operator):
    end = operator.done("GET", "/v1/audit").json()["end"]
    for method, target, body in (
        ("POST", "/v1/produce", {"topic": "_audit", "value": "{}"}),
        ("POST", "/v1/produce/batch", {"messages": [{"topic": "_audit", "value": "{}"}]}),
        ("POST", "/v1/jobs", {"topic": "_audit", "value": "{}"}),
        ("POST", "/v1/topics", {"name": "_audit"}),
        ("PATCH", "/v1/topics/_audit", {"retention_ms": 1}),
        ("DELETE", "/v1/topics/_audit", None),
        ("DELETE", "/v1/topics/dlq._audit", None),
        ("POST", "/v1/stream/__topics/_audit/0", b"[]"),
        ("DELETE", "/v1/stream/__topics/_audit/0", None),
    ):
        reply = operator.call(method, target, body, JSON if isinstance(body, bytes) else None)
        refused = reply.status >= 400 or "error" in reply.json()["results"][0]
        assert refused, (method, target, reply)
    later = operator.done("GET", f"/v1/audit?from={end}").json()["records"]
    assert all(record["action"] == "access" for record in later)


def test_pages_continue_in_both_directions(operator: Operator):
    everything = records(operator)
    offsets = [record["offset"] for record in everything]
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    for turn in ("", f"from={offsets[0]}&"):
        seen: list[int] = []
        reply = operator.done("GET", f"/v1/audit?{turn}limit=7").json()
        while True:
            seen += [record["offset"] for record in reply["records"]]
            if "after" not in reply or len(seen) >= len(offsets):
                break
            place = f"from={reply['after']}" if turn else f"after={reply['after']}"
            reply = operator.done("GET", f"/v1/audit?{place}&limit=7").json()
        assert set(offsets) <= set(seen)
        assert len(seen) == len(set(seen))
    assert operator.call("GET", "/v1/audit?after=1&from=1").status == 400
    assert operator.call("GET", "/v1/audit?since=yesterday").status == 400
    assert operator.done("GET", "/v1/audit?since=2999-01-01T00:00:00Z").json()["records"] == []


def test_the_command_shows_and_follows_it(operator: Operator, tmp_path: Path):
    environment = {**os.environ, "DRIFTQ_URL": operator.server.url, "DRIFTQ_TOKEN": operator.token}
    operator.done("POST", "/v1/topics", {"name": "shown"})
    driftq = [str(Path(sys.executable).parent / "driftq"), "audit", "--name", "shown"]
    shown = subprocess.run(driftq, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "topic.create" in shown
    assert "operator" in shown
    following = subprocess.Popen([*driftq, "--follow", "--json"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["action"] == "topic.create"
        operator.done("DELETE", "/v1/topics/shown")
        assert json.loads(following.stdout.readline())["action"] == "topic.delete"
    finally:
        following.kill()
        following.communicate()


def test_without_tokens_it_is_off_unless_it_is_turned_on(tmp_path: Path):
    for settings, is_on in (((), False), (("audit.mode=on",), True)):
        server = Server(None, *settings)
        try:
            assert server.call("POST", "/v1/topics", {"name": "t"}).status == 201
            reply = server.call("GET", "/v1/audit")
            assert reply.status == (200 if is_on else 404)
            if is_on:
                [record] = reply.json()["records"]
                assert (record["action"], record["who"], record["address"]) == ("topic.create", "", "127.0.0.1")
        finally:
            server.stop()
