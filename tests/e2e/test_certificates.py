"""Client certificates as identities: what a certificate allows, and that it allows it to its own connection only."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.access import JSON, TEXT, TOKENS, bearer, first_token
from tests.support.certificates import Authority, CertificateFiles
from tests.support.server import Reply, Server, running

RULES = [
    {"name": "CN=worker-*,O=Acme\\, Inc.", "grants": ["consume:orders/billing", "read:s", "append:s"]},
    {"name": "URI:spiffe://acme/boss", "grants": ["admin"]},
    {"name": "CN=tenant,O=Acme\\, Inc.", "grants": ["admin"], "tenant": "acme"},
]


def toml(rules: list[dict[str, object]]) -> str:
    """As `--set` takes it: strings of JSON are strings of TOML."""
    tables = ("{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in rule.items()) + "}" for rule in rules)
    return f"auth.certificates=[{', '.join(tables)}]"


class Office:
    """A server with TLS, its authority, and clients with and without certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.data = str(folder / "data")
        self.token = first_token(self.data)
        self.files = self.authority.server()
        self.server: Server | None = None

    def settings(self, rules: list[dict[str, object]] = RULES) -> list[str]:
        return [
            TOKENS, f"listen.tls_certificate={self.files.certificate}", f"listen.tls_key={self.files.key}",
            f"listen.tls_client_ca={self.authority.ca}", "listen.tls_client_auth=optional", toml(rules),
        ]  # fmt: skip

    @contextlib.contextmanager
    def open(self, rules: list[dict[str, object]] = RULES) -> Iterator[Server]:
        with running(self.data, *self.settings(rules)) as self.server:
            yield self.server

    @contextlib.contextmanager
    def connect(self, files: CertificateFiles | None) -> Iterator[http.client.HTTPSConnection]:
        assert self.server is not None
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        with contextlib.closing(
            http.client.HTTPSConnection("127.0.0.1", self.server.port, context=context, timeout=20)
        ) as connection:
            yield connection

    def call(
        self, files: CertificateFiles | None, method: str, target: str, body: object = None, token: str = ""
    ) -> Reply:
        with self.connect(files) as connection:
            return ask(connection, method, target, body, bearer(token) if token else {})


def ask(
    connection: http.client.HTTPSConnection,
    method: str,
    target: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, target, data, headers or {})
    response = connection.getresponse()
    return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_a_rule_gives_a_certificate_its_name_grants_and_tenant(office):
    client = office.authority.client
    worker, boss, other = client("worker-1"), client("boss"), client("stranger")
    evil, tenant = client("worker-1,O=Acme, Inc.", "Evil"), client("tenant")
    with office.open():
        assert office.call(worker, "GET", "/v1/version").status == 200
        assert office.call(worker, "POST", "/v1/topics", {"name": "orders"}).status == 403
        assert office.call(boss, "POST", "/v1/topics", {"name": "orders"}).status == 201
        claim = {"topic": "orders", "group": "billing", "owner": "w", "max": 1}
        assert office.call(worker, "POST", "/v1/claim", claim).status == 200
        assert office.call(worker, "POST", "/v1/claim", {**claim, "group": "g"}).status == 403
        for files in (None, other, evil):
            refused = office.call(files, "GET", "/v1/version")
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        created = office.call(boss, "POST", "/v1/tokens", {"name": "n", "grants": ["observe"]}).json()
        shown = office.call(boss, "GET", f"/v1/tokens/{created['id']}").json()
        assert shown["created_by"] == "URI:spiffe://acme/boss"
        assert "tenant" in office.call(tenant, "GET", "/v1/topics").json()["message"], "it does not exist yet"
        assert office.call(boss, "POST", "/v1/tenants", {"name": "acme"}).status == 201
        assert office.call(tenant, "GET", "/v1/topics").json()["topics"] == []
        assert office.call(boss, "DELETE", "/v1/tenants/acme").status < 300
        assert office.call(tenant, "GET", "/v1/topics").status == 401


def test_a_token_counts_and_not_the_certificate_that_comes_with_it(office):
    boss, worker = office.authority.client("boss"), office.authority.client("worker-1")
    with office.open():
        assert office.call(worker, "GET", "/v1/metrics", token=office.token).status == 200
        narrow = office.call(boss, "POST", "/v1/tokens", {"name": "n", "grants": ["read:s"]}).json()["token"]
        assert office.call(boss, "GET", "/v1/metrics", token=narrow).status == 403, "not what the certificate allows"
        for wrong in (narrow[:-2] + "xx", "dq_x", "eyJ.e30.AA"):
            assert office.call(boss, "GET", "/v1/metrics", token=wrong).status == 401
        assert office.call(boss, "GET", "/v1/metrics?access_token=x").status == 401
        assert office.call(boss, "GET", "/v1/metrics").status == 200


def test_connections_that_send_the_same_bytes_have_their_own_identities(office):
    """Heads are cached by their bytes, for all connections."""
    boss, worker = office.authority.client("boss"), office.authority.client("worker-1")
    expected = {"boss": 200, "worker": 403, "none": 401}
    with office.open(), contextlib.ExitStack() as stack:
        connections = {
            name: stack.enter_context(office.connect(files))
            for name, files in (("boss", boss), ("worker", worker), ("none", None))
        }
        for order in (("boss", "none", "worker"), ("none", "worker", "boss"), ("worker", "boss", "none")) * 2:
            statuses = {name: ask(connections[name], "GET", "/v1/metrics").status for name in order}
            assert statuses == expected
        large = {"topic": "t", "value": "x" * 500_000}
        assert ask(connections["boss"], "POST", "/v1/produce", large).status == 404
        assert ask(connections["worker"], "POST", "/v1/produce", large).status == 403
        assert ask(connections["none"], "POST", "/v1/produce", {"topic": "t", "value": "v"}, JSON).status == 401


def test_what_a_certificate_derives_ends_when_its_rule_is_changed(office):
    worker = office.authority.client("worker-1")
    with office.open():
        with office.connect(worker) as connection:
            assert ask(connection, "PUT", "/v1/stream/s", b"text", TEXT).status == 201
            reply = ask(connection, "POST", "/v1/tokens/derive", {"grants": ["read:s"]})
        assert reply.status == 201, reply
        derived = reply.json()["token"]
        assert office.call(None, "GET", "/v1/stream/s", token=derived).status == 200
        assert office.call(None, "GET", f"/v1/stream/s?access_token={derived}").status == 200
    with office.open(RULES[1:]):
        assert office.call(None, "GET", "/v1/stream/s", token=derived).status == 401
        assert office.call(worker, "GET", "/v1/stream/s").status == 401
