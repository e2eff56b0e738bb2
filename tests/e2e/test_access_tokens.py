"""The life of access tokens on a real server: they survive a kill, end their streams, and are slow to guess."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.server.access.failure_limit import FAILURES_MAX
from tests.support.access import TEXT, TOKENS, ExampleCall, Operator, bearer, first_token, from_anywhere, id_of
from tests.support.server import Server
from tests.support.wait import until_now

ENDS_S = 1.0  # what a revoked token's streams may still take
BUSY_S = 9.0  # on a busy machine


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    folder = str(tmp_path / "data")
    token = first_token(folder)
    operator = Operator(Server(folder, TOKENS), token)
    try:
        yield operator
    finally:
        if operator.server.process.poll() is None:
            operator.server.stop()


def status_of(operator: Operator, token: str) -> int:
    return operator.server.call("GET", "/v1/version", headers=bearer(token)).status


def restart(operator: Operator) -> None:
    operator.server.kill()
    operator.server = Server(operator.server.folder, TOKENS)


def test_what_was_said_of_a_token_holds_after_a_kill(operator):
    kept, revoked, narrowed, rotated = (operator.new("observe", "produce:a") for _ in range(4))
    operator.done("DELETE", f"/v1/tokens/{id_of(revoked)}")
    operator.done("PATCH", f"/v1/tokens/{id_of(narrowed)}", {"grants": ["produce:a"]})
    renewed = operator.done("POST", f"/v1/tokens/{id_of(rotated)}/rotate", {"overlap_ms": 600_000}).json()["token"]
    before = operator.done("GET", "/v1/tokens").json()
    restart(operator)
    assert operator.done("GET", "/v1/tokens").json() == before
    assert [status_of(operator, token) for token in (kept, revoked, narrowed, rotated, renewed)] == [
        200, 401, 200, 200, 200,
    ]  # fmt: skip
    metrics = [
        operator.server.call("GET", "/v1/metrics", headers=bearer(token)).status for token in (kept, narrowed, renewed)
    ]
    assert metrics == [200, 403, 200]


def test_a_token_only_ever_loses_rights(operator):
    token = operator.new("produce:orders.*", ttl_ms=600_000)
    path = f"/v1/tokens/{id_of(token)}"
    for body in (
        {"grants": ["produce:*"]},
        {"grants": ["produce:orders.eu", "observe"]},
        {"grants": ["admin"]},
        {"grants": []},
        {"grants": ["produce"]},
        {"expires_at": "2999-01-01T00:00:00Z"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {},
    ):
        assert operator.call("PATCH", path, body).status == 400, body
    assert operator.done("GET", path).json()["grants"] == ["produce:orders.*"]
    operator.done("PATCH", path, {"grants": ["produce:orders.eu*"]})
    assert operator.done("GET", path).json()["grants"] == ["produce:orders.eu*"]


def test_a_rotated_token_has_two_secrets_for_as_long_as_asked_and_then_one(operator):
    token = operator.new("observe")
    path = f"/v1/tokens/{id_of(token)}/rotate"
    renewed = operator.done("POST", path, {"overlap_ms": 2_000}).json()["token"]
    assert id_of(renewed) == id_of(token)
    assert status_of(operator, renewed) == 200
    until_now(lambda: status_of(operator, token) == 401, 20)
    assert status_of(operator, renewed) == 200
    last = operator.done("POST", path).json()["token"]
    assert [status_of(operator, text) for text in (token, renewed, last)] == [401, 401, 200]


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def open_stream(operator: Operator, target: str, token: str, opened: contextlib.ExitStack) -> http.client.HTTPResponse:
    connection = opened.enter_context(contextlib.closing(operator.server.connect(20.0)))
    connection.request("GET", target, headers=bearer(token))
    response = opened.enter_context(contextlib.closing(connection.getresponse()))
    assert response.status == 200
    return response


@pytest.mark.parametrize("ending", ["revoked", "narrowed", "expired"])
def test_open_streams_end_with_their_token(operator, opened, ending):
    operator.done("POST", "/v1/topics", {"name": "t"})
    operator.done("PUT", "/v1/stream/s", b"", TEXT)
    grants = ("consume:t/g", "read:s", "read:t")
    token = operator.new(*grants, ttl_ms=3_000 if ending == "expired" else 600_000)
    other = operator.new(*grants)
    targets = ["/v1/consume?topic=t&group=g&owner=w", "/v1/stream/s?offset=-1&live=sse"]
    streams = [open_stream(operator, target, token, opened) for target in targets]
    kept = open_stream(operator, targets[1], other, opened)
    waiting = opened.enter_context(contextlib.closing(operator.server.connect(20.0)))
    claim = {"topic": "t", "group": "g", "owner": "w", "max": 1, "wait_ms": 60_000}
    waiting.request("POST", "/v1/claim", json.dumps(claim).encode(), bearer(token))
    polling = opened.enter_context(contextlib.closing(operator.server.connect(20.0)))
    polling.request("GET", "/v1/stream/s?offset=now&live=long-poll", headers=bearer(token))
    if ending == "revoked":
        operator.done("DELETE", f"/v1/tokens/{id_of(token)}")
    elif ending == "narrowed":
        operator.done("PATCH", f"/v1/tokens/{id_of(token)}", {"grants": ["read:t"]})
    started_s = time.monotonic()
    for stream in streams:
        stream.read()  # to its end
    for connection in (waiting, polling):
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            connection.getresponse()
    if ending != "expired":
        assert time.monotonic() - started_s < ENDS_S + BUSY_S
    operator.done("POST", "/v1/stream/s", b"news", TEXT)
    until_now(lambda: b"news" in kept.readline(), 20)
    claimed = operator.done("POST", "/v1/claim", {**claim, "wait_ms": 0}).json()
    assert claimed["messages"] == []


def test_wrong_credentials_are_slowed_down_by_address_and_valid_ones_are_not(operator):
    known, fresh = operator.new("observe"), operator.new("observe")
    assert status_of(operator, known) == 200
    statuses = [status_of(operator, f"dq_{n:016x}_{'0' * 64}") for n in range(FAILURES_MAX + 30)]
    assert statuses.count(401) >= FAILURES_MAX
    assert statuses.count(429) > 0, "the rest were not looked at"
    page = operator.done("GET", "/v1/metrics").body.decode()
    assert f'driftq_credentials_refused_total{{reason="wrong"}} {statuses.count(401)}' in page
    assert f'driftq_credentials_refused_total{{reason="limited"}} {statuses.count(429)}' in page
    assert status_of(operator, known) == 200, "a credential that was accepted before is recognised"
    limited = operator.server.call("GET", "/v1/version", headers=bearer("dq_x"))
    if limited.status == 429:
        assert limited.headers["retry-after"] == "1"
        assert limited.json()["reason"] == "failed_credentials"
    until_now(lambda: status_of(operator, fresh) == 200, 20)
    call = ExampleCall("", "GET", "/v1/version", ())
    assert from_anywhere(operator.server, call, bearer("dq_x")).status == 401, "another address has its own count"


def test_a_large_body_without_a_credential_is_not_read(operator):
    """The refusal comes although the body never does."""
    for framing in (b"Content-Length: 8000000", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", operator.server.port), timeout=20) as sock:
            sock.sendall(b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n")
            reply = b""
            while part := sock.recv(65_536):
                reply += part
        assert reply.startswith(b"HTTP/1.1 401 "), reply
        assert b"WWW-Authenticate: Bearer" in reply
    operator.done("POST", "/v1/topics", {"name": "t"})
    operator.done("POST", "/v1/produce", {"topic": "t", "value": "x" * 500_000})


def test_the_refusal_of_a_large_body_gives_the_true_reason(operator):
    expired = operator.new("admin", ttl_ms=1_000)
    until_now(lambda: status_of(operator, expired) == 401, 10)
    for token, reason in ((expired, "expired at"), ("dq_x", "is not valid"), ("", "is not valid")):
        small = operator.server.call("POST", "/v1/produce", {"topic": "t", "value": "x"}, bearer(token))
        large = operator.server.call("POST", "/v1/produce", {"topic": "t", "value": "x" * 500_000}, bearer(token))
        assert small.status == large.status == 401
        assert reason in small.json()["message"], small
        assert large.json()["message"] == small.json()["message"]


def test_a_folder_without_a_token_refuses_every_call_and_says_how_to_make_one(tmp_path):
    server = Server(str(tmp_path / "data"), TOKENS)
    assert server.call("GET", "/v1/version").status == 401
    assert server.call("GET", "/v1/healthz").status == 200
    assert server.stop() == 0
    assert "driftq auth init" in "".join(server.lines)


def test_a_bad_request_for_a_token_makes_none(operator):
    before = operator.done("GET", "/v1/tokens").json()
    for body in (
        {},
        {"name": "", "grants": ["admin"]},
        {"name": "a", "grants": []},
        {"name": "a", "grants": ["everything"]},
        {"name": "a", "grants": ["observe:x"]},
        {"name": "a", "grants": ["produce:a b"]},
        {"name": "a", "grants": ["produce:" + "x" * 600]},
        {"name": "a", "grants": ["produce:" + "*a" * 20]},
        {"name": "a", "grants": [f"produce:{n}" for n in range(65)]},
        {"name": "a\n", "grants": ["admin"]},
        {"name": "a", "grants": ["admin"], "ttl_ms": 0},
        {"name": "a", "grants": ["admin"], "ttl_ms": 5, "expires_at": "2999-01-01T00:00:00Z"},
        {"name": "a", "grants": ["admin"], "expires_at": "2001-01-01T00:00:00Z"},
        {"name": "a", "grants": ["admin"], "expires_at": "tomorrow"},
        {"name": "a", "grants": ["admin"], "secret": "x"},
    ):
        assert operator.call("POST", "/v1/tokens", body).status == 400, body
    assert operator.done("GET", "/v1/tokens").json() == before
