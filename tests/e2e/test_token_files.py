"""A token that is replaced in its file while programs run: they continue with the new one when the old one ends."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import driftq
from driftq.client.errors import NotAllowed
from tests.support.access import TEXT, TOKENS, Operator, first_token, id_of
from tests.support.server import Server
from tests.support.wait import until, until_now

GRANTS = ("produce:*", "consume:*", "read:*", "append:*", "manage:*")


class TokenInFile:
    """A token in a file, which can be renewed: a new one in the file, and the old one revoked."""

    def __init__(self, operator: Operator, path: Path) -> None:
        self._operator = operator
        self.path = path
        self._token = ""
        self.renew()

    def renew(self) -> None:
        old, self._token = self._token, self._operator.new(*GRANTS)
        self.path.with_suffix(".next").write_text(self._token + "\n")
        self.path.with_suffix(".next").replace(self.path)
        if old:
            self._operator.done("DELETE", f"/v1/tokens/{id_of(old)}")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    folder = str(tmp_path / "data")
    token = first_token(folder)
    operator = Operator(Server(folder, TOKENS), token)
    operator.done("POST", "/v1/topics", {"name": "t"})
    try:
        yield operator
    finally:
        operator.server.stop()


@pytest.fixture
def token(operator: Operator, tmp_path: Path) -> TokenInFile:
    return TokenInFile(operator, tmp_path / "token")


def test_calls_consumers_and_producers_continue_with_the_new_token(operator, token):
    received: list[str] = []
    with driftq.connect(operator.server.url, token_file=str(token.path)) as broker:

        def consume() -> None:
            for message in broker.consume("t", group="g"):
                received.append(message.text)
                message.ack()
                if message.text == "last":
                    return

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            with broker.producer("t") as producer:
                for value in ("first", "second"):
                    producer.send(value)
                    producer.flush(20)
                    until_now(lambda value=value: value in received, 20)
                    token.renew()
                producer.send("last")
                producer.flush(20)
            assert broker.topics.list() == ["t"]
        finally:
            if "last" not in received:
                operator.done("POST", "/v1/produce", {"topic": "t", "value": "last"})
            consumer.join(30)
    assert not consumer.is_alive()
    assert received == ["first", "second", "last"]


def test_a_worker_and_a_follower_of_a_stream_continue_with_the_new_token(operator, token):
    operator.done("PUT", "/v1/stream/s", b"", TEXT)
    handled: list[str] = []
    read: list[str] = []

    @driftq.worker("t", group="w")
    async def handle(message: driftq.AsyncMessage) -> None:
        handled.append(message.text)

    async def follow(broker: driftq.AsyncDriftQ) -> None:
        async for chunk in broker.stream("s").follow():
            read.append(chunk.text)

    async def run() -> None:
        stop = asyncio.Event()
        async with driftq.connect_async(operator.server.url, token_file=str(token.path)) as broker:
            working = asyncio.create_task(handle.run_async(broker, stop=stop))
            following = asyncio.create_task(follow(broker))
            for number in range(3):
                await broker.send("t", str(number))
                await broker.stream("s", content_type="text/plain").append(str(number))

                async def arrived(count: int = number + 1) -> bool:
                    return len(handled) >= count and len("".join(read)) >= count

                await until(arrived, 30)
                await asyncio.to_thread(token.renew)
            stop.set()
            await working
            following.cancel()
            await asyncio.wait([following])

    asyncio.run(run())
    assert handled == ["0", "1", "2"]
    assert "".join(read) == "012"


def cli(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("DRIFTQ_")}
    command = [sys.executable, "-m", "driftq.cli.main", *arguments]
    environ |= {"XDG_CONFIG_HOME": str(folder), **env}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_takes_a_file_by_option_environment_and_context(operator, token, tmp_path):
    url, file = operator.server.url, str(token.path)
    for arguments, env in (
        (["--url", url, "--token-file", file, "topics", "list"], {}),
        (["topics", "list", "--url", url, "--token-file", file], {"DRIFTQ_TOKEN": "dq_other"}),
        (["topics", "list"], {"DRIFTQ_URL": url, "DRIFTQ_TOKEN_FILE": file}),
    ):
        done = cli(*arguments, folder=tmp_path, **env)
        assert (done.returncode, done.stdout.split()[-1:]) != (0, []), done
        assert done.returncode == 0, done.stderr
    (tmp_path / "jobs.py").write_text('import driftq\n@driftq.worker("t", group="g")\ndef work(message): ...\n')
    work = ("worker", "jobs", "--burst", "--url", url, "--token-file", file)
    done = cli(*work, folder=tmp_path, DRIFTQ_TOKEN="dq_other", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert done.returncode == 0, done.stderr
    added = cli("context", "add", "prod", url, "--token-file", os.path.relpath(file), "--use", folder=tmp_path)
    assert added.returncode == 0, added.stderr
    assert cli("topics", "list", folder=tmp_path).returncode == 0
    token.renew()
    assert cli("topics", "list", folder=tmp_path).returncode == 0
    assert json.loads(cli("context", "list", "--json", folder=tmp_path).stdout)[0]["has_token"] is True


def test_what_is_wrong_with_a_token_says_what_to_do(operator, token, tmp_path):
    url = operator.server.url
    missing = cli("topics", "list", "--url", url, folder=tmp_path)
    assert missing.returncode == 77
    assert "--token-file" in missing.stderr
    forbidden = cli("tokens", "list", "--url", url, "--token-file", str(token.path), folder=tmp_path)
    assert forbidden.returncode == 77
    assert "driftq tokens create --grant admin" in forbidden.stderr
    absent = cli("topics", "list", "--url", url, "--token-file", str(tmp_path / "none"), folder=tmp_path)
    assert absent.returncode == 2
    assert "cannot be read" in absent.stderr
    both = cli("context", "add", "x", url, "--token", "a", "--token-file", str(token.path), folder=tmp_path)
    assert both.returncode == 2
    with driftq.connect(url) as broker, pytest.raises(NotAllowed, match="DRIFTQ_TOKEN_FILE"):
        broker.topics.list()
    advice = "driftq tokens create --grant admin"
    with driftq.connect(url, token_file=str(token.path)) as broker, pytest.raises(NotAllowed, match=advice):
        broker.tokens.list()


def test_contexts_with_tokens_are_for_their_owner_only(operator, tmp_path):
    assert cli("context", "add", "a", operator.server.url, "--token", operator.token, folder=tmp_path).returncode == 0
    file = tmp_path / "driftq" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    refused = cli("topics", "list", folder=tmp_path)
    assert refused.returncode == 2
    assert f"chmod 600 {file}" in refused.stderr
    assert operator.token not in refused.stderr
    file.chmod(0o600)
    assert cli("topics", "list", folder=tmp_path).returncode == 0
