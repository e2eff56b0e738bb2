"""No secret leaves the server: what it logs, shows, stores and hands on is searched for every token and key of a long
and varied session."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from driftq.wire.records import Record, pack
from tests.support.access import BATCH, JSON, TEXT, TOKENS, Operator, bearer, first_token, id_of
from tests.support.server import Server
from tests.support.wait import until_now

DRIFTQ = str(Path(sys.executable).parent / "driftq")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    folder = str(tmp_path / "data")
    token = first_token(folder)
    server = Server(folder, TOKENS, "log.level=debug", "log.access=true", "log.format=json")
    server.read_lines()
    try:
        yield Operator(server, token)
    finally:
        if server.process.poll() is None:
            server.stop()


class Session:
    """Calls with every kind of credential, and everything that came back."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.secrets: set[str] = {operator.token.split("_")[2]}
        self.seen: list[bytes] = []

    def call(self, token: str, method: str, target: str, body: object = None, **headers: str) -> bytes:
        reply = self.operator.server.call(method, target, body, {**headers, **(bearer(token) if token else {})})
        self.seen.append(reply.body + repr(reply.headers).encode())
        return reply.body

    def token(self, *grants: str, **fields: object) -> str:
        token = self.operator.new(*grants, **fields)
        self.secrets.add(token.split("_")[2])
        return token

    def derived(self, parent: str, *grants: str) -> str:
        reply = self.operator.server.call("POST", "/v1/tokens/derive", {"grants": grants}, bearer(parent))
        text = reply.json()["token"]
        assert isinstance(text, str)
        self.secrets.add(text.split(".")[2])
        return text

    def run(self) -> None:
        """Good, bad, revoked and misplaced credentials, in headers, URLs, bodies and names."""
        operator, server = self.operator, self.operator.server
        worker = self.token("produce:*", "consume:*", "read:*", "append:*", "manage:*", "observe")
        short = self.derived(worker, "read:runs/*", "observe")
        self.call(worker, "POST", "/v1/topics", {"name": "t"})
        self.call(worker, "PUT", "/v1/stream/runs/1", b"text", **TEXT)
        for target in ("/v1/stream/runs/1?offset=-1", "/v1/stream/runs/2", "/v1/metrics"):
            self.call("", "GET", f"{target}{'&' if '?' in target else '?'}access_token={quote(short)}")
        for token in (worker, short, operator.token):
            wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
            self.secrets.add(wrong.split("_" if wrong.startswith("dq") else ".")[2])
            self.call(wrong, "GET", "/v1/topics")
            self.call("", "GET", f"/v1/topics?access_token={quote(token)}")
            self.call("", "POST", "/v1/produce", b"{", Authorization=f"Basic {token}")
            self.call("", "GET", "/v1/topics", Authorization=token)
        self.call(worker, "POST", "/v1/produce", {"topic": "t", "value": "v"})
        self.call(worker, "POST", "/v1/produce/packed?topic=t", pack([Record(b"v")]), **BATCH)
        self.call(worker, "POST", "/v1/produce", b"not json")
        self.call(worker, "DELETE", "/v1/tokens/none")
        self.call(short, "POST", "/v1/produce", {"topic": "t", "value": "v"})
        pull = {"type": "pull-wake", "streams": ["runs/1"], "wake_stream": "wakes"}
        self.call(worker, "PUT", "/v1/stream/__ds/subscriptions/s", pull, **JSON)
        rotated = operator.done("POST", f"/v1/tokens/{id_of(worker)}/rotate", {"overlap_ms": 0}).json()["token"]
        self.secrets.add(rotated.split("_")[2])
        self.call(worker, "GET", "/v1/topics")
        self.call(short, "GET", "/v1/stream/runs/1?offset=-1")
        operator.done("DELETE", f"/v1/tokens/{id_of(rotated)}")
        self.call(rotated, "GET", "/v1/topics")
        keys = Path(server.folder or "", "access.keys").read_text(encoding="ascii")
        seeds = re.findall(r'"([A-Za-z0-9+/]{43}=)"', keys)
        assert seeds, "what signs short-lived tokens"
        self.secrets |= {*seeds}

    def found_in(self, *places: bytes) -> list[str]:
        return [secret for secret in self.secrets if any(secret.encode() in place for place in places)]


def commands(operator: Operator) -> Iterator[tuple[str, bytes, bytes]]:
    """Commands of an operator: what each printed, and its arguments as the kernel shows them."""
    environment = {**os.environ, "DRIFTQ_URL": operator.server.url, "DRIFTQ_TOKEN": operator.token}
    folder = operator.server.folder or ""
    for command in (
        ["config", "show"], ["doctor", "--data", folder], ["status"], ["tokens", "list", "--json"],
        ["audit", "--json", "--limit", "1000"], ["inspect", "dump", folder],
    ):  # fmt: skip
        process = subprocess.Popen(
            [DRIFTQ, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        yield " ".join(command[:2]), process.communicate(timeout=60)[0], arguments


def test_no_secret_is_in_anything_that_leaves_the_server(operator: Operator) -> None:
    session = Session(operator)
    session.run()
    until_now(lambda: operator.done("GET", "/v1/audit?result=refused").json()["records"], 30)
    assert len(session.secrets) == 8
    assert not session.found_in(*session.seen), "replies and their errors"
    for name, printed, arguments in commands(operator):
        assert printed, name
        assert not session.found_in(printed, arguments), name
    for target in ("/v1/metrics", "/v1/audit?limit=1000", "/v1/config", "/v1/tokens", "/v1/openapi.json"):
        assert not session.found_in(operator.done("GET", target).body), target
    arguments = Path(f"/proc/{operator.server.process.pid}/cmdline").read_bytes()
    assert not session.found_in(arguments)

    backup = operator.done("GET", "/v1/backup").body
    with tarfile.open(fileobj=io.BytesIO(backup)) as archive:
        names = archive.getnames()
    assert names
    assert not [name for name in names if "keys" in name], "the keys of short-lived tokens are no part of a backup"
    assert not session.found_in(backup)

    operator.server.stop()
    printed = "".join(operator.server.lines).encode()
    assert b"/v1/stream/runs/1" in printed, "the access log is on"
    assert not session.found_in(printed), "the log"
    stored = [path for path in Path(operator.server.folder or "").rglob("*") if path.is_file()]
    kept = [path.read_bytes() for path in stored if path.name != "access.keys"]
    assert not session.found_in(*kept), "the data folder has digests only"
