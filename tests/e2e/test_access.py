"""Every route, with every kind of credential that must not work, made from the route table: refused, with nothing
changed and nothing shown. And with exactly the grants that it needs: not refused."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from driftq.server.access.identity import EVERY_VERB, OWN, PUBLIC, Right
from driftq.server.app import RouteSpec
from tests.support.access import (
    BATCH_ROUTE,
    CALLS,
    OWN_CALLS,
    PAGES,
    PUBLIC_ROUTES,
    SCHEDULE,
    STREAM,
    TOPIC,
    ExampleCall,
    Operator,
    bearer,
    comparable,
    first_token,
    from_anywhere,
    id_of,
    missing_name,
    prepare,
    renew_worker,
)
from tests.support.handler_fixture import handler_fixture
from tests.support.issuer import Issuer, public_jwk, settings
from tests.support.server import Reply, Server
from tests.support.wait import until_now

NO_TOKEN_OF_OURS = "dq_0123456789abcdef_" + "0" * 64


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    issuer = Issuer()
    issuer.add_key("rsa", "RS256")
    return issuer


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Operator]:
    folder = str(tmp_path_factory.mktemp("access") / "data")
    token = first_token(folder)
    keys = tmp_path_factory.mktemp("issuer") / "keys.json"
    issuer.write(keys)
    server = Server(folder, *settings(keys), "log.level=debug", "log.access=true")
    try:
        server.read_lines()
        operator = Operator(server, token)
        prepare(operator)
        yield operator
    finally:
        if server.process.poll() is None:
            server.stop()


def route_table() -> list[RouteSpec]:
    async def table() -> list[RouteSpec]:
        async with handler_fixture() as at:
            return [*at.app.routes]

    return asyncio.run(table())


def names_of(route: RouteSpec) -> list[str]:
    return [f"{method} {route.path}" for method in (route.method, *(["HEAD"] if route.head else []))]


def test_every_route_declares_its_right():
    for route in route_table():
        rights = [route.right] if isinstance(route.right, Right) else [route.right(m, b"x") for m in ("GET", "PUT")]
        assert all(right.verb in EVERY_VERB for right in rights), route


def test_every_route_has_an_example_call_here():
    examples = {call.route for call in CALLS} | PUBLIC_ROUTES | PAGES | {BATCH_ROUTE}
    assert {name for route in route_table() for name in names_of(route)} == examples
    public = {name for route in route_table() if route.right in (PUBLIC, OWN) for name in names_of(route)}
    assert public == PUBLIC_ROUTES | PAGES


def state_of(operator: Operator) -> str:
    """What the operator sees: everything that one of the calls could change."""
    targets = [
        "/v1/topics", f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}.eu", "/v1/groups", "/v1/streams", "/v1/tokens",
        f"/v1/topics/{TOPIC}/groups/billing/states", f"/v1/stream/{STREAM}", f"/v1/jobs/{TOPIC}/job",
        f"/v1/idempotency?topic={TOPIC}&group=billing&key=k", f"/v1/dlq/{TOPIC}",
        "/v1/stream/__ds/subscriptions/acme.sub",
    ]  # fmt: skip
    return "\n".join(_without_lag(operator.call("GET", target)) for target in targets)


def _without_lag(reply: Reply) -> str:
    if reply.headers.get("content-type") != "application/json":
        return reply.body.decode()
    return json.dumps(_stripped(reply.json()))


def _stripped(value: object) -> object:
    """Without what changes by itself."""
    if isinstance(value, dict):
        return {key: _stripped(part) for key, part in value.items() if key not in ("lag_ms", "used_at")}
    return [_stripped(part) for part in value] if isinstance(value, list) else value


def check_refused(reply: Reply, call: ExampleCall, status: int) -> None:
    assert reply.status == status, (call, reply)
    assert b"secret" not in reply.body, (call, reply)
    if call.method != "HEAD" and status not in (204, 404):
        assert b"PERMISSION_DENIED" in reply.body or b"UNAUTHENTICATED" in reply.body or b"grant" in reply.body


def bad_credentials(operator: Operator, issuer: Issuer) -> dict[str, dict[str, str]]:
    """Credentials that were never valid, or are not any more. Each would allow everything if it were."""
    revoked, rotated, expired = (operator.new("admin") for _ in range(3))
    operator.done("DELETE", f"/v1/tokens/{id_of(revoked)}")
    operator.done("POST", f"/v1/tokens/{id_of(rotated)}/rotate", {})
    soon = operator.new("admin", ttl_ms=1)
    until_now(lambda: operator.server.call("GET", "/v1/version", headers=bearer(soon)).status == 401, 10)
    wrong = operator.token[:-1] + ("0" if operator.token[-1] != "0" else "1")
    return {
        "none": {},
        "empty": {"Authorization": ""},
        "scheme": {"Authorization": f"Basic {operator.token}"},
        "bare": {"Authorization": operator.token},
        "malformed": bearer("dq_x"),
        "padded": bearer(f"{expired}x"),
        "long": bearer("x" * 9_000),
        "unknown": bearer(NO_TOKEN_OF_OURS),
        "wrong secret": bearer(wrong),
        "upper case": bearer(operator.token.upper()),
        "revoked": bearer(revoked),
        "rotated": bearer(rotated),
        "expired": bearer(soon),
        "in the query": {},
        **{f"jwt, {name}": bearer(text) for name, text in bad_jwts(issuer).items()},
    }


def bad_jwts(issuer: Issuer) -> dict[str, str]:
    """Tokens that look as if the issuer had made them. Each would allow everything if it were accepted."""
    now_s = int(time.time())
    claims = issuer.claims(permissions=["admin"])
    elliptic, rsa = (issuer.keys[kid][0] for kid in ("first", "rsa"))
    pem = rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stranger = Issuer()
    stranger.add_key("unknown")
    good = issuer.token("observe", kid="first")
    head, _, signature = good.split(".")
    return {
        "none": jwt.encode(claims, None, "none", {"kid": "first"}),
        "None": unsigned({"alg": "None", "kid": "first"}, claims),
        "signed with the public key": hs256(pem, {"alg": "HS256", "kid": "rsa"}, claims),
        "the public key as RS256": hs256(pem, {"alg": "RS256", "kid": "rsa"}, claims),
        "algorithm of another key": jwt.encode(claims, rsa, "RS256", {"kid": "first"}),
        "algorithm that is not allowed": jwt.encode(claims, rsa, "RS512", {"kid": "rsa"}),
        "key in the header": jwt.encode(claims, stranger.keys["first"][0], "ES256", {
            "kid": "first", "jwk": public_jwk(stranger.keys["first"][0], "first"), "jku": "http://127.0.0.1:1/keys",
        }),
        "signed by a stranger": stranger.token("admin", kid="first"),
        "unknown key": stranger.token("admin", kid="unknown"),
        "other audience": issuer.token("admin", aud="other"),
        "other issuer": issuer.token("admin", iss="https://login.other.example/"),
        "expired": issuer.token("admin", exp=now_s - 1),
        "future": issuer.token("admin", nbf=now_s + 3_600),
        "issued in the future": issuer.token("admin", iat=now_s + 3_600),
        "without an end": issuer.token("admin", exp=None),
        "changed": f"{head}.{jwt.encode(claims, elliptic, 'ES256').split('.')[1]}.{signature}",
        "cut": good[:-2],
        "without a signature": f"{head}.{good.split('.')[1]}.",
        "malformed": "eyJhbGciOiJFUzI1NiIsImtpZCI6WzFdfQ.e30.AA",
        "too long": issuer.token("admin", pad="x" * 9_000),
    }  # fmt: skip


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(header: dict[str, str], claims: dict[str, object]) -> str:
    return ".".join([part(json.dumps(header).encode()), part(json.dumps(claims).encode()), ""])


def hs256(secret: bytes, header: dict[str, str], claims: dict[str, object]) -> str:
    """What a library signs that takes a public key for a secret; PyJWT refuses to."""
    signed = unsigned(header, claims)[:-1]
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), 'sha256'))}"


def test_the_tokens_of_the_issuer_are_refused_for_the_reason_that_is_tested(operator, issuer):
    """The same tokens without what is wrong with them are accepted."""
    for kid in ("first", "rsa"):
        token = issuer.token("admin", kid=kid)
        assert operator.server.call("GET", "/v1/version", headers=bearer(token)).status == 200


@pytest.mark.timeout(120)
def test_no_route_answers_a_credential_that_is_not_valid(operator, issuer):
    credentials = bad_credentials(operator, issuer)
    before = state_of(operator)
    batch = ExampleCall(BATCH_ROUTE, "POST", "/v1/produce/batch", (), {"topic": TOPIC, "messages": [{"value": "v"}]})
    for call in (*CALLS, batch):
        for name, headers in credentials.items():
            sent = call
            if name == "in the query":
                separator = "&" if "?" in call.target else "?"
                sent = call._replace(target=f"{call.target}{separator}access_token={operator.token}")
            reply = from_anywhere(operator.server, sent, headers)
            check_refused(reply, call, 401)
            assert reply.headers["www-authenticate"].startswith("Bearer"), name
    assert state_of(operator) == before


@pytest.mark.timeout(120)
def test_no_route_answers_a_token_without_one_of_its_grants(operator, issuer):
    before = state_of(operator)
    for call in CALLS:
        if call.lists or not call.grants:
            continue
        if "/workers/" in call.target:
            renew_worker(operator)
        for missing in call.grants:
            grants = [grant for grant in call.grants if grant != missing] or ["produce:other", "consume:other/billing"]
            unrelated = ["read:other/*", "append:acme", "manage:acme.orders.x", "consume:acme.orders.x/billing"]
            token = operator.new(*grants, *unrelated)
            for sent in (token, issuer.token(*grants, *unrelated)):
                check_refused(from_anywhere(operator.server, call, bearer(sent)), call, call.refusal)
            operator.done("DELETE", f"/v1/tokens/{id_of(token)}")
    assert state_of(operator) == before


@pytest.mark.timeout(120)
def test_a_token_that_was_narrowed_is_refused_with_the_next_request(operator):
    before = state_of(operator)
    for call in CALLS:
        if call.lists or not call.grants:
            continue
        if "/workers/" in call.target:
            renew_worker(operator)
        token = operator.new("observe", *call.grants, "produce:other")
        assert operator.server.call("GET", "/v1/version", headers=bearer(token)).status == 200
        operator.done("PATCH", f"/v1/tokens/{id_of(token)}", {"grants": ["produce:other"]})
        check_refused(from_anywhere(operator.server, call, bearer(token)), call, call.refusal)
        operator.done("DELETE", f"/v1/tokens/{id_of(token)}")
    assert state_of(operator) == before


def test_a_worker_of_others_is_neither_removed_nor_replaced_nor_described(operator):
    renew_worker(operator)
    token = operator.new("consume:other/billing")
    working = {"name": "f", "topic": "other", "group": "billing"}
    heartbeat = {"host": "h", "pid": 1, "version": "1", "workers": [working]}
    taken = operator.server.call("PUT", "/v1/workers/acme.w", heartbeat, bearer(token))
    assert (taken.status, b"acme.orders" in taken.body) == (403, False), taken
    assert operator.server.call("DELETE", "/v1/workers/acme.w", headers=bearer(token)).status == 204
    assert operator.done("GET", "/v1/workers/acme.w").json()["host"] == "secret host"


def test_the_name_of_a_schedule_of_others_is_taken_and_says_no_more(operator):
    token = operator.new("produce:other")
    body = {"name": SCHEDULE, "topic": "other", "message": {"value": "v"}, "cron": "0 9 1 1 *", "replace": True}
    taken = operator.server.call("POST", "/v1/schedules", body, bearer(token))
    assert (taken.status, b"acme.orders" in taken.body) == (403, False), taken
    assert operator.done("GET", f"/v1/schedules/{SCHEDULE}").json()["topic"] == TOPIC


def test_a_caller_without_a_right_cannot_tell_which_names_exist(operator):
    """The same calls for names that exist, and for names that do not."""
    token = operator.new("produce:other")
    for call in CALLS:
        if call.lists or not call.grants:
            continue
        if "/workers/" in call.target:
            renew_worker(operator)
        exists = from_anywhere(operator.server, call, bearer(token))
        missing = from_anywhere(operator.server, missing_name(call), bearer(token))
        assert comparable(exists) == comparable(missing), call


def test_lists_show_what_the_caller_has_some_right_on(operator):
    def lists(*grants: str) -> list[list[str]]:
        token = operator.new(*grants)
        replies = [
            operator.server.call("GET", f"/v1/{n}", headers=bearer(token)) for n in ("topics", "groups", "streams")
        ]
        topics, groups, streams = (reply.json() for reply in replies)
        return [
            topics["topics"],
            [group["group"] for group in groups["groups"]],
            [stream["stream"] for stream in streams["streams"]],
        ]

    assert lists("observe") == [[], [], []]
    assert lists("produce:other", "read:nothing/*") == [[], [], []]
    assert lists("produce:acme.orders.eu") == [["acme.orders.eu"], [], []]
    assert lists("consume:acme.orders/billing") == [[TOPIC], ["billing"], []]
    assert lists("consume:acme.orders/other") == [[TOPIC], [], []]
    assert lists("append:acme/runs/*") == [[], [], [STREAM]]
    assert lists("read:*/runs/1") == [[], [], [STREAM]]
    assert {STREAM, "acme/wakes"} <= set(lists("admin")[2])


def test_a_list_of_streams_continues_page_by_page_over_what_the_caller_may_see(operator):
    for number in range(7):
        for name in (f"page/a{number}", f"page/b{number}", f"page/c{number}"):
            operator.done("PUT", f"/v1/stream/{name}")
    token = operator.new("read:page/a*", "append:page/c*", "manage:page/c2")
    seen: list[str] = []
    after = ""
    while True:
        target = f"/v1/streams?prefix=page/&limit=4&after={after}"
        reply = operator.server.call("GET", target, headers=bearer(token)).json()
        assert len(reply["streams"]) <= 4
        seen += (stream["stream"] for stream in reply["streams"])
        after = reply.get("after")
        if not after:
            break
    assert seen == [f"page/{kind}{number}" for kind in "ac" for number in range(7)]


def test_a_consumer_sees_its_own_group_and_no_other(operator):
    token = operator.new(f"consume:{TOPIC}/other")
    for target, status in (("", 200), ("/groups", 200), ("/groups/billing", 403), ("/groups/billing/states", 403)):
        assert operator.server.call("GET", f"/v1/topics/{TOPIC}{target}", headers=bearer(token)).status == status
    assert operator.server.call("GET", f"/v1/topics/{TOPIC}/groups", headers=bearer(token)).json()["groups"] == []
    assert operator.server.call("GET", f"/v1/topics/{TOPIC}/groups/other", headers=bearer(token)).status == 404


def test_each_message_of_a_batch_is_judged_alone(operator):
    token = operator.new(f"produce:{TOPIC}")
    messages = [
        {"topic": TOPIC, "value": "mine"},
        {"topic": "acme.orders.eu", "value": "not mine"},
        {"topic": TOPIC, "value": "sent elsewhere", "envelope": {"target_topic": "acme.orders.eu"}},
    ]
    reply = operator.server.call("POST", "/v1/produce/batch", messages, bearer(token)).json()
    assert [result.get("status") for result in reply["results"]] == [200, 403, 403]
    assert [result.get("error") for result in reply["results"]] == [None, "PERMISSION_DENIED", "PERMISSION_DENIED"]


def test_a_job_of_another_topic_is_not_found_by_the_place_of_its_message(operator):
    token = operator.new("read:acme.orders.eu", "produce:acme.orders.eu")
    place = f"{TOPIC}:0:1"
    shown = operator.server.call("GET", f"/v1/jobs/acme.orders.eu/{place}", headers=bearer(token))
    cancelled = operator.server.call("POST", f"/v1/jobs/acme.orders.eu/{place}/cancel", headers=bearer(token))
    assert (shown.status, cancelled.status) == (404, 404)
    assert operator.call("GET", f"/v1/jobs/{TOPIC}/job").json()["state"] != "cancelled"


def test_calls_that_carry_the_token_of_a_wake_need_it_and_show_no_name(operator):
    for call in OWN_CALLS:
        unknown = call._replace(target=call.target.replace("acme.sub", "acme.none"))
        answers = {
            (reply.status, reply.body)
            for sent in (call, unknown)
            for headers in ({}, bearer(operator.token), bearer("1.x"))
            for reply in [from_anywhere(operator.server, sent, headers)]
        }
        assert len(answers) == 1, answers
        assert answers.pop()[0] == 401


def test_public_routes_need_no_credential(operator):
    for name in PUBLIC_ROUTES:
        method, path = name.split()
        assert operator.server.call(method, path).status == 200, name
    assert operator.server.call("GET", "/v1/stream/__ds/jwks.json").status == 200
    assert operator.server.call("GET", "/v1/nothing").status == 401, "not even which paths exist"


@pytest.mark.timeout(120)
def test_every_route_is_open_to_a_token_with_exactly_its_grants(operator, issuer):
    """After the others: these calls change things. A call may fail, but not for want of a right."""
    for call in CALLS:
        token = operator.new(*(call.grants or ("produce:other",)))
        for sent in (token, issuer.token(*(call.grants or ("produce:other",)))):
            reply = from_anywhere(operator.server, call, bearer(sent))
            assert reply.status not in (401, 403, 405, 429, 500), (call, reply)
            assert reply.status < 300 or b"grant" not in reply.body, (call, reply)


def test_no_secret_is_in_anything_that_the_server_prints_or_shows(operator):
    tokens = [operator.token, *(operator.new("observe") for _ in range(3)), "dq_0123456789abcdef_" + "7" * 64]
    for call in CALLS:
        for token in tokens:
            if not call.endless and "clock" not in call.target:
                reply = from_anywhere(operator.server, call, bearer(token))
                assert not [other for other in tokens if other[20:].encode() in reply.body], call
    page = operator.done("GET", "/v1/metrics").body.decode()
    operator.server.stop()
    printed = "".join(operator.server.lines)
    assert "/v1/produce" in printed, "the access log is on"
    for token in tokens:
        assert token[20:] not in printed
        assert token[20:] not in page
    folder = Path(operator.server.folder or "")
    stored = [path for path in folder.rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored for token in tokens if token[20:].encode() in path.read_bytes()]
