"""Tokens of a foreign issuer: a real one with real keys, which changes them, misbehaves and goes away."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator

import jwt
import pytest

from driftq.server.http.limits import LARGE_BODY_BYTES
from tests.support.access import JSON, TEXT, Operator, bearer, first_token
from tests.support.issuer import ISSUER, Issuer, IssuerServer, settings, status_of
from tests.support.server import Server, running
from tests.support.wait import until_now

OFTEN = "jwt.unknown_key_ms=1"


@pytest.fixture
def issuer() -> Iterator[IssuerServer]:
    with IssuerServer(Issuer()) as server:
        yield server


@contextlib.contextmanager
def serving(issuer: IssuerServer, *more: str, folder: str | None = None) -> Iterator[Server]:
    with running(folder, *settings(issuer.url, *more)) as server:
        yield server


def test_claims_become_a_name_and_grants(issuer):
    roles = 'jwt.roles={reader=["read:*"],boss=["admin"]}'
    with serving(issuer, roles, "jwt.roles_claim=realm_access.roles") as server:

        def status(target: str, *grants: str, **claims: object) -> int:
            return status_of(server, issuer.issuer.token(*grants, **claims), target)

        assert status("/v1/metrics") == 403, "known, and without a right"
        assert status("/v1/metrics", "observe") == 200
        assert status("/v1/metrics", "openid", "observe:x", "obs") == 403
        assert status("/v1/metrics", permissions="openid observe") == 200, "as scopes are written"
        assert status("/v1/metrics", permissions={"observe": 1}) == 403
        assert status("/v1/topics/t", realm_access={"roles": ["reader", "other", 7]}) == 404
        assert status("/v1/topics/t", realm_access={"roles": ["other"]}) == 403
        assert status("/v1/topics/t", realm_access="reader") == 403
        boss = issuer.issuer.token(sub="grace", realm_access={"roles": ["boss"]})
        created = server.call("POST", "/v1/tokens", {"name": "n", "grants": ["observe"]}, bearer(boss)).json()
        shown = server.call("GET", f"/v1/tokens/{created['id']}", headers=bearer(boss)).json()
        assert shown["created_by"] == "grace"
        assert status_of(server, created["token"], "/v1/metrics") == 200, "tokens of its own are accepted, too"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_every_kind_of_key_verifies(algorithm, tmp_path):
    issuer = Issuer(algorithm)
    issuer.write(tmp_path / "keys.json")
    with running(None, *settings(tmp_path / "keys.json", "auth.mode=jwt")) as server:
        assert status_of(server, issuer.token("observe"), "/v1/metrics") == 200
        assert status_of(server, "dq_0123456789abcdef_" + "0" * 64) == 401
        issuer.keys["first"] = Issuer(algorithm).keys["first"]
        assert status_of(server, issuer.token("observe")) == 401, "the same id, another key"


def test_a_new_key_is_fetched_when_a_token_names_it_and_no_call_fails(issuer):
    with serving(issuer, OFTEN) as server:
        old = issuer.issuer.token("observe")
        assert status_of(server, old) == 200
        fetches = issuer.fetches
        issuer.issuer.add_key("second", "RS256")
        assert status_of(server, issuer.issuer.token("observe")) == 200
        assert issuer.fetches == fetches + 1
        assert status_of(server, old) == 200


def test_unknown_keys_cause_few_fetches(issuer):
    with serving(issuer, "jwt.unknown_key_ms=600000") as server:
        until_now(lambda: status_of(server, issuer.issuer.token("observe")) == 200, 10)
        stranger = Issuer()
        stranger.add_key("unknown")
        statuses = [status_of(server, stranger.token("admin", jti=str(n))) for n in range(15)]
        assert set(statuses) == {401}
        assert issuer.fetches == 1


def test_what_a_removed_key_has_signed_ends_and_so_do_its_streams(issuer):
    with serving(issuer, OFTEN) as server:
        issuer.issuer.add_key("second")
        old = issuer.issuer.token("admin", kid="first")
        assert server.call("PUT", "/v1/stream/s", b"", {**TEXT, **bearer(old)}).status == 201
        with open_stream(server, old) as response:
            derived = derive(server, old)
            assert status_of(server, derived, "/v1/stream/s") == 200
            del issuer.issuer.keys["first"]
            issuer.issuer.add_key("third")
            assert status_of(server, issuer.issuer.token("observe")) == 200
            response.read()  # to its end
        assert status_of(server, old) == 401
        assert status_of(server, derived, "/v1/stream/s") == 401


@contextlib.contextmanager
def open_stream(server: Server, token: str) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(server.connect(20.0)) as connection:
        connection.request("GET", "/v1/stream/s?offset=-1&live=sse", headers=bearer(token))
        response = connection.getresponse()
        assert response.status == 200
        yield response


def derive(server: Server, token: str) -> str:
    reply = server.call("POST", "/v1/tokens/derive", {"grants": ["read:s"]}, bearer(token))
    assert reply.status == 201, reply
    return str(reply.json()["token"])


def test_open_streams_end_when_their_token_expires_and_what_was_derived_from_it_too(issuer):
    with serving(issuer) as server:
        expires_s = int(time.time()) + 3
        token = issuer.issuer.token("read:s", "append:s", exp=expires_s)
        assert server.call("PUT", "/v1/stream/s", b"", {**TEXT, **bearer(token)}).status == 201
        derived = derive(server, token)
        with open_stream(server, token) as response:
            response.read()
            assert time.time() >= expires_s, "not before"
        refused = server.call("GET", "/v1/version", headers=bearer(token))
        assert refused.status == 401
        assert "expired at" in refused.json()["message"]
        assert status_of(server, derived, "/v1/stream/s") == 401


def test_keys_stay_in_use_while_the_issuer_is_away(issuer):
    with serving(issuer, OFTEN, "jwt.refresh_ms=50", "jwt.timeout_ms=500") as server:
        assert status_of(server, issuer.issuer.token("observe")) == 200
        misbehaviours = [
            lambda handler: issuer.send(handler, b"no", 500),
            lambda handler: issuer.send(handler, b'{"keys": []}'),
            lambda handler: issuer.send(handler, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'),
            lambda handler: issuer.send(handler, b"[" * 60_000),
            lambda handler: issuer.send(handler, b" " * 100_000 + issuer.issuer.document()),
            lambda handler: handler.connection.close(),
        ]
        for misbehaviour in misbehaviours:
            issuer.answer = misbehaviour
            enough = issuer.fetches + 2
            until_now(lambda enough=enough: issuer.fetches >= enough, 20)
            assert status_of(server, issuer.issuer.token("observe")) == 200
        stranger = Issuer()
        stranger.add_key("unknown")
        assert status_of(server, stranger.token("admin")) == 401
    assert any("those from before stay in use" in line for line in server.lines)


def test_a_call_waits_for_the_issuer_no_longer_than_its_time_limit(issuer):
    silent = threading.Event()
    issuer.answer = lambda handler: silent.wait(60) and None
    try:
        with serving(issuer, OFTEN, "jwt.timeout_ms=300") as server:
            token = issuer.issuer.token("observe")
            reply = server.call("GET", "/v1/version", headers=bearer(token))
            assert (reply.status, reply.headers["retry-after"]) == (503, "1"), "its token may be right"
            large = {"topic": "t", "value": "x" * LARGE_BODY_BYTES}
            assert server.call("POST", "/v1/produce", large, bearer(token)).status == 503
            assert server.call("GET", "/v1/healthz").status == 200
            issuer.answer = issuer.document
            until_now(lambda: status_of(server, token) == 200, 20)
    finally:
        silent.set()


def test_redirects_of_the_issuer_are_not_followed(issuer):
    def redirect(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", issuer.url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    issuer.answer = redirect
    with serving(issuer, OFTEN) as server:
        assert status_of(server, issuer.issuer.token("observe")) == 503
    assert any("status 302" in line for line in server.lines)


def test_a_tenant_comes_from_a_claim_and_ends_with_it(issuer, tmp_path):
    folder = str(tmp_path / "data")
    first = first_token(folder)
    with serving(issuer, "jwt.tenant_claim=org", folder=folder) as server:
        operator = Operator(server, first)
        token = issuer.issuer.token("admin", org="acme")
        for org in ("acme", "", None, ["acme"], "acme~x"):
            refused = server.call("GET", "/v1/topics", headers=bearer(issuer.issuer.token("admin", org=org)))
            assert (refused.status, "tenant" in refused.json()["message"]) == (401, True), org
        operator.done("POST", "/v1/tenants", {"name": "acme"})
        operator.done("POST", "/v1/topics", {"name": "secret"})
        assert server.call("POST", "/v1/topics", {"name": "t"}, bearer(token)).status == 201
        assert server.call("GET", "/v1/topics", headers=bearer(token)).json()["topics"] == ["t"]
        assert "acme~t" in operator.done("GET", "/v1/topics").json()["topics"]
        assert status_of(server, token, "/v1/tenants") == 403
        assert server.call("DELETE", "/v1/topics/t", headers=bearer(token)).status < 300
        operator.done("DELETE", "/v1/tenants/acme")
        assert status_of(server, token) == 401


def test_a_derived_token_outlives_a_restart_and_not_a_server_without_the_issuer(issuer, tmp_path):
    folder = str(tmp_path / "data")
    first_token(folder)
    with serving(issuer, folder=folder) as server:
        token = issuer.issuer.token("read:s", "append:s")
        assert server.call("PUT", "/v1/stream/s", b"", {**TEXT, **bearer(token)}).status == 201
        derived = derive(server, token)
    with serving(issuer, folder=folder) as server:
        assert status_of(server, derived, "/v1/stream/s") == 200
        target = "/v1/stream/s?offset=-1&access_token="
        assert server.call("GET", target + derived).status == 200
        assert server.call("GET", target + token).status == 401, "a token of the issuer is never in a URL"
    with running(folder, "auth.mode=tokens") as server:
        assert [status_of(server, text) for text in (token, derived)] == [401, 401]
    with running(folder, *settings(issuer.url, "auth.mode=jwt")) as server:
        assert status_of(server, derived, "/v1/stream/s") == 200


def test_a_token_that_nests_deeply_is_refused_like_any_other(issuer, tmp_path):
    def encoded(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    deep = encoded('{"a":' + "[" * 5_000)
    head = encoded(json.dumps({"alg": "ES256", "kid": "first"}))
    attempts = [f"{deep}.e30.AA", f"{head}.{deep}.AA"]
    folder = str(tmp_path / "data")
    first_token(folder)
    with serving(issuer, folder=folder) as server:
        assert [status_of(server, attempt) for attempt in attempts] == [401, 401]
    with running(folder, "auth.mode=tokens") as server:
        assert [status_of(server, attempt) for attempt in attempts] == [401, 401]
    assert "Traceback" not in "".join(server.lines)


def test_a_token_whose_signature_is_right_says_what_is_wrong_with_it(issuer):
    with serving(issuer) as server:
        now_s = int(time.time())
        texts = {
            "is for another service": [{"aud": "other"}, {"aud": None}, {"iss": ISSUER + "x"}, {"iss": None}],
            "is for another service: ": [{"exp": None}],
            "is not valid yet": [{"nbf": now_s + 600}, {"iat": now_s + 600}],
            "expired at": [{"exp": now_s - 1}, {"exp": 0}, {"exp": -1}],
            "has no name": [{"sub": None}, {"sub": ""}],
            "is not valid:": [{"exp": "soon"}, {"sub": 7}],
        }
        for text, bad in texts.items():
            for claims in bad:
                refused = server.call("GET", "/v1/version", headers=bearer(issuer.issuer.token("admin", **claims)))
                assert refused.status == 401, claims
                assert text in refused.json()["message"], (claims, refused)
                assert ISSUER not in refused.body.decode()


def test_the_clocks_may_differ_by_the_leeway(issuer):
    with serving(issuer, "jwt.leeway_ms=60000") as server:
        now_s = int(time.time())
        assert status_of(server, issuer.issuer.token(exp=now_s - 30)) == 200
        assert status_of(server, issuer.issuer.token(nbf=now_s + 30, iat=now_s + 30)) == 200
        assert status_of(server, issuer.issuer.token(exp=now_s - 90)) == 401


def test_a_token_without_a_key_id_is_verified_if_there_is_one_key_for_it(issuer):
    private, algorithm = issuer.issuer.keys["first"]
    token = jwt.encode(issuer.issuer.claims(permissions=["observe"]), private, algorithm)
    with serving(issuer, OFTEN) as server:
        assert status_of(server, token) == 200
        issuer.issuer.add_key("second")
        assert status_of(server, issuer.issuer.token()) == 200
        other = jwt.encode(issuer.issuer.claims(permissions=["admin"]), private, algorithm)
        assert status_of(server, other) == 401


def test_a_server_that_takes_only_tokens_of_the_issuer_asks_for_one(issuer):
    with serving(issuer, "auth.mode=jwt") as server:
        refused = server.call("POST", "/v1/topics", {"name": "t"}, JSON)
        assert refused.status == 401
        assert "a token of the issuer is required" in refused.json()["message"]
