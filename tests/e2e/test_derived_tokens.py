"""Short-lived tokens on a real server: narrower than their parent, ended with it, and in a URL for reads only."""

from __future__ import annotations

import contextlib
import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

import driftq
from tests.support.access import TEXT, TOKENS, Operator, bearer, first_token, id_of
from tests.support.server import Server
from tests.support.wait import until_now

ENDS_S = 1.0 + 9.0  # the promise, and what a busy machine takes


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    folder = str(tmp_path / "data")
    token = first_token(folder)
    operator = Operator(Server(folder, TOKENS, "log.access=true"), token)
    operator.done("PUT", "/v1/stream/runs/42", b"text", TEXT)
    operator.done("PUT", "/v1/stream/runs/43", b"other", TEXT)
    operator.done("POST", "/v1/topics", {"name": "t"})
    try:
        yield operator
    finally:
        if operator.server.process.poll() is None:
            operator.server.stop()


def derive(operator: Operator, token: str, *grants: str, ttl_ms: int = 600_000) -> str:
    reply = operator.server.call("POST", "/v1/tokens/derive", {"grants": grants, "ttl_ms": ttl_ms}, bearer(token))
    assert reply.status == 201, reply
    assert reply.headers["cache-control"] == "no-store"
    text = reply.json()["token"]
    assert isinstance(text, str)
    return text


def read(operator: Operator, token: str, path: str = "runs/42") -> int:
    return operator.server.call("GET", f"/v1/stream/{path}", headers=bearer(token)).status


def read_by_url(operator: Operator, token: str, target: str = "/v1/stream/runs/42?offset=-1") -> int:
    return operator.server.call("GET", f"{target}{'&' if '?' in target else '?'}access_token={token}").status


def test_a_derived_token_has_its_grants_and_never_more_than_its_parent(operator):
    parent = operator.new("read:runs/*", "produce:t")
    token = derive(operator, parent, "read:runs/42")
    assert read(operator, token) == 200
    assert read(operator, token, "runs/43") == 403
    for grants in (["read:*"], ["append:runs/42"], ["admin"], ["read:runs/42", "manage:t"], [], ["nonsense"]):
        reply = operator.server.call("POST", "/v1/tokens/derive", {"grants": grants}, bearer(parent))
        assert reply.status in (400, 403), (grants, reply)
    wider = operator.server.call("POST", "/v1/tokens/derive", {"grants": ["read:runs/43"]}, bearer(token))
    assert wider.status == 403, "also not from a derived one"
    too_long = {"grants": ["read:runs/42"], "ttl_ms": 86_400_001}
    assert operator.server.call("POST", "/v1/tokens/derive", too_long, bearer(parent)).status == 400
    operator.done("PATCH", f"/v1/tokens/{id_of(parent)}", {"grants": ["produce:t"]})
    assert read(operator, token) == 403, "its parent lost the right"


def test_the_public_keys_verify_it(operator):
    token = derive(operator, operator.token, "read:runs/42")
    keys = jwt.PyJWKSet.from_dict(operator.server.call("GET", "/.well-known/jwks.json").json())
    kid = jwt.get_unverified_header(token)["kid"]
    claims = jwt.decode(token, keys[kid], algorithms=["EdDSA"], issuer="driftq")
    assert claims["grants"] == ["read:runs/42"]
    assert operator.token.split("_")[2] not in json.dumps(claims)


@pytest.mark.parametrize("ending", ["revoked", "rotated", "expired", "key dropped"])
def test_it_ends_with_its_parent_and_so_do_its_open_streams(operator, ending):
    parent = operator.new("read:runs/*", ttl_ms=3_000 if ending == "expired" else 600_000)
    token = derive(operator, parent, "read:runs/42")
    target = f"/v1/stream/runs/42?offset=-1&live=sse&access_token={token}"
    with contextlib.closing(operator.server.connect(20.0)) as connection:
        connection.request("GET", target)
        response = connection.getresponse()
        assert response.status == 200
        path = f"/v1/tokens/{id_of(parent)}"
        if ending == "revoked":
            operator.done("DELETE", path)
        elif ending == "rotated":
            operator.done("POST", f"{path}/rotate", {})
        elif ending == "key dropped":
            rotate_key(operator, "--drop")
        began_s = time.monotonic()
        response.read()  # to its end
        assert ending == "expired" or time.monotonic() - began_s < ENDS_S
    assert read(operator, token) == 401
    assert read_by_url(operator, token) == 401


def rotate_key(operator: Operator, *options: str) -> None:
    command = [sys.executable, "-m", "driftq.cli.main", "auth", "rotate-key", "--data", operator.server.folder or ""]
    subprocess.run([*command, *options], check=True, capture_output=True)


def test_it_survives_a_restart_and_a_new_key(operator):
    token = derive(operator, operator.token, "read:runs/42")
    file = Path(operator.server.folder or "") / "access.keys"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    operator.server.kill()
    operator.server = Server(operator.server.folder, TOKENS)
    assert read(operator, token) == 200
    rotate_key(operator)
    until_now(lambda: len(operator.server.call("GET", "/.well-known/jwks.json").json()["keys"]) == 2, 10)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    newer = derive(operator, operator.token, "read:runs/42")
    assert jwt.get_unverified_header(newer)["kid"] != jwt.get_unverified_header(token)["kid"]
    assert [read(operator, token), read(operator, newer)] == [200, 200]


def test_a_url_carries_a_short_lived_token_for_reads_only(operator):
    token = derive(operator, operator.token, "read:*", "consume:t", "append:runs/42", "produce:t")
    assert read_by_url(operator, token) == 200
    assert read_by_url(operator, token, "/v1/topics") == 200
    assert read_by_url(operator, operator.token) == 401, "an access token is never in a URL"
    for method, target in (
        ("POST", "/v1/stream/runs/42"), ("GET", "/v1/consume?topic=t&group=g&owner=w"), ("POST", "/v1/produce"),
        ("POST", "/v1/tokens/derive"), ("DELETE", "/v1/topics/t"),
    ):  # fmt: skip
        separator = "&" if "?" in target else "?"
        reply = operator.server.call(method, f"{target}{separator}access_token={token}", headers=TEXT)
        assert reply.status == 401, (target, reply)
        assert b"access_token" in reply.body
    assert "private" in operator.server.call("GET", f"/v1/stream/runs/42?access_token={token}").headers["cache-control"]


def test_tokens_that_were_tampered_with_or_signed_by_others_are_refused(operator):
    token = derive(operator, operator.token, "read:runs/42")
    claims, header = jwt.decode(token, options={"verify_signature": False}), jwt.get_unverified_header(token)
    public = operator.server.call("GET", "/.well-known/jwks.json").json()["keys"][0]["x"]
    claims["grants"] = ["admin"]
    head, body, signature = token.split(".")
    forged = jwt.encode(claims, "k" * 32, "HS256", {"kid": header["kid"]})
    attempts = [
        jwt.encode(claims, None, "none", {"kid": header["kid"]}),
        jwt.encode(claims, public, "HS256", {"kid": header["kid"]}),
        f"{head}.{forged.split('.')[1]}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        token[:-4] + "AAAA",
        "ey" + "x" * 9_000,
        "eyJhbGciOiJFZERTQSIsImtpZCI6W119.e30.AA",
    ]
    for attempt in attempts:
        assert read(operator, attempt) == 401, attempt


def test_nothing_that_the_server_prints_or_stores_has_its_text(operator):
    token = derive(operator, operator.token, "read:runs/42", "observe")
    assert read_by_url(operator, token) == 200
    assert read_by_url(operator, token + "x") == 401
    page = operator.done("GET", "/v1/metrics").body.decode()
    operator.server.stop()
    printed = "".join(operator.server.lines)
    assert "/v1/stream/runs/42" in printed, "the access log is on"
    signature = token.split(".")[2]
    assert signature not in printed + page
    assert "access_token" not in printed
    files = [path for path in Path(operator.server.folder or "").rglob("*") if path.is_file()]
    assert not [path for path in files if signature.encode() in path.read_bytes()]


def test_a_server_without_credentials_says_that_there_is_nothing_to_derive_from(tmp_path):
    server = Server(str(tmp_path / "data"))
    try:
        assert server.call("POST", "/v1/tokens/derive", {"grants": ["read:a"]}).status == 400
        assert server.call("GET", "/.well-known/jwks.json").json() == {"keys": []}
    finally:
        server.stop()


def test_the_client_and_the_command_line_derive(operator, tmp_path):
    url = f"http://127.0.0.1:{operator.server.port}"
    with driftq.connect(url, token=operator.token) as broker:
        reply = broker.tokens.derive(["read:runs/42"], ttl_ms=60_000)
    assert read_by_url(operator, reply.token) == 200
    command = [sys.executable, "-m", "driftq.cli.main", "tokens", "derive", "--grant", "read:runs/42", "--ttl", "1m"]
    environment = {"DRIFTQ_URL": url, "DRIFTQ_TOKEN": operator.token, "HOME": str(tmp_path), "PATH": ""}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert read(operator, printed.strip()) == 200
