"""Tenants, from outside: every route of the route table with the token of a tenant, and with that of another tenant.

A route that forgets its namespace fails here: it shows or changes what belongs to another tenant, shows a name with the
tenant in front, or fails because it asks for something that a tenant's engine does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.access import (
    CALLS,
    OWN_CALLS,
    STREAM,
    SUBSCRIPTION,
    TOKENS,
    TOPIC,
    ExampleCall,
    Operator,
    bearer,
    comparable,
    first_token,
    from_anywhere,
    missing_name,
    prepare,
)
from tests.support.server import Reply, Server

ALL = ("admin",)
# What concerns the whole server.
OPERATORS = (
    "/v1/backup", "/v1/clock/accept", "/v1/tenants", "/v1/overview", "/v1/series", "/v1/events", "/v1/runs",
    "/v1/config", "/v1/pipelines",
)  # fmt: skip
CREATED = (201, 200, 204)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = str(tmp_path_factory.mktemp("tenants") / "data")
    token = first_token(folder)
    server = Server(folder, TOKENS)
    try:
        server.read_lines()
        operator = Operator(server, token)
        for tenant in ("alpha", "beta"):
            operator.done("POST", "/v1/tenants", {"name": tenant})
        yield operator
    finally:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="module")
def alpha(operator: Operator) -> Operator:
    tenant = Operator(operator.server, operator.new(*ALL, tenant="alpha"))
    prepare(tenant)
    return tenant


def is_for_operators(call: ExampleCall) -> bool:
    return call.target.startswith(OPERATORS)


def seen_by(tenant: Operator) -> list[object]:
    """What a tenant can see of itself, without times and counts of calls."""
    targets = (
        "/v1/topics", f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}.eu", "/v1/streams", f"/v1/stream/{STREAM}",
        f"/v1/topics/{TOPIC}/groups/billing/states", f"/v1/stream/__ds/subscriptions/{SUBSCRIPTION}",
        f"/v1/jobs/{TOPIC}/job", f"/v1/idempotency?topic={TOPIC}&group=billing&key=k", f"/v1/dlq/{TOPIC}", "/v1/tokens",
    )  # fmt: skip
    replies = [tenant.call("GET", target) for target in targets]
    replies.append(tenant.call("HEAD", f"/v1/stream/{STREAM}"))
    return [(reply.status, reply.body, reply.headers.get("stream-next-offset")) for reply in replies]


def renamed(call: ExampleCall) -> ExampleCall:
    """The same call, with the names that an operator has for what belongs to alpha."""
    target = call.target.replace("acme", "alpha~acme")
    return call._replace(target=target, body=replaced(call.body, "acme", "alpha~acme"))


def replaced(body: object, before: str, after: str) -> object:
    return json.loads(json.dumps(body).replace(before, after)) if isinstance(body, dict) else body


def text_of(reply: Reply) -> str:
    return reply.body.decode("latin-1") + repr(reply.headers)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.target}")
def test_a_tenant_is_served_in_its_own_names(operator: Operator, alpha: Operator, call: ExampleCall):
    reply = from_anywhere(operator.server, call, bearer(alpha.token))
    assert reply.status < 500, (call, reply)
    assert (reply.status == 403) == is_for_operators(call), reply
    assert "alpha~" not in text_of(reply)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.target}")
def test_another_tenant_sees_and_changes_nothing(operator: Operator, alpha: Operator, call: ExampleCall):
    before = seen_by(alpha)
    beta = operator.new(*ALL, tenant="beta")
    own = call._replace(body=replaced(call.body, "secret", "own"))
    for tried in (own, renamed(own)):
        reply = from_anywhere(operator.server, tried, bearer(beta))
        assert reply.status < 500, (tried, reply)
        assert "secret" not in text_of(reply)
        assert "alpha" not in text_of(reply).replace("alpha~acme", ""), reply  # but for what was sent
    assert seen_by(alpha) == before


def test_a_name_of_another_tenant_gets_the_answer_of_a_name_that_does_not_exist(operator: Operator, alpha: Operator):
    """Alpha has names that begin with acme, no tenant has names that begin with nope: a third tenant cannot tell."""
    assert TOPIC in alpha.done("GET", "/v1/topics").json()["topics"]
    for tenant in ("gamma", "delta"):
        operator.done("POST", "/v1/tenants", {"name": tenant})
    tenants = {name: operator.new(*ALL, tenant=name) for name in ("gamma", "delta")}
    for call in CALLS:
        counts_for_all = "fence" in str(call.body)  # fences are numbers of the whole broker
        if call.endless or counts_for_all or call.target.startswith(("/v1/clock", "/v1/audit")):
            continue
        foreign = from_anywhere(operator.server, call, bearer(tenants["gamma"]))
        missing = from_anywhere(operator.server, missing_name(call), bearer(tenants["delta"]))
        assert comparable(foreign).replace("gamma", "delta") == comparable(missing), call


def test_a_wake_is_acked_only_with_the_token_of_its_own_tenant(operator: Operator, alpha: Operator):
    for call in OWN_CALLS:
        reply = from_anywhere(operator.server, call, bearer("1.0123456789.beta"))
        assert reply.status == 401
