"""The programs "before" of the pages that lead over from another queue run against that queue, where it can be
installed, and print what the programs "after" print. There is no package of Kafka for that."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.peers.installation import MissingError, peers_folder, python_packages
from bench.peers.peer import Peer
from bench.peers.rabbitmq import RabbitPeer
from bench.peers.redis_streams import RedisPeer
from bench.peers.server_process import ServerProcess
from tests.support.node import give_up

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
ENDS_S = 60.0


def blocks(name: str) -> tuple[str, str]:
    """The program before, and what the program after prints."""
    text = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    (before,) = re.findall(r"^```python before\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return before, printed


def installed(peer: Peer, profile: str) -> Path:
    """Where the clients of the peers are. Several workers of one test run may install at the same time."""
    folder = peers_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            peer.install(download=True)
            return python_packages()
        except MissingError as error:
            give_up(profile, str(error))
            raise


@contextlib.contextmanager
def started(peer: Peer, folder: Path, profile: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The port of a server that runs in a folder, and the environment in which its clients are found."""
    packages = installed(peer, profile)
    sys.path.append(str(packages))
    try:
        yield peer.start(folder), {**os.environ, "PYTHONPATH": str(packages)}
    finally:
        sys.path.remove(str(packages))
        peer.stop()


def printed_by(program: Path, env: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, program],
        cwd=program.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def write(folder: Path, name: str, before: str, *addresses: tuple[str, str]) -> Path:
    """The program with the address of the server that runs here."""
    for usual, here in addresses:
        assert usual in before
        before = before.replace(usual, here)
    program = folder / name
    program.write_text(before, encoding="utf-8")
    return program


def test_the_program_of_celery_prints_what_ours_prints(tmp_path: Path, profile: str) -> None:
    before, printed = blocks("from-celery")
    with started(RedisPeer(), tmp_path, profile) as (port, env):
        program = write(tmp_path, "shop.py", before, ("redis://localhost", f"redis://localhost:{port}"))
        command = [sys.executable, "-m", "celery", "--app", "shop", "worker", "--pool", "solo", "--without-mingle"]
        worker = ServerProcess([*command, "--loglevel", "WARNING"], tmp_path, name="worker", env=env)
        try:
            assert printed_by(program, env) == printed
        finally:
            worker.stop()


def test_the_program_of_redis_streams_prints_what_ours_prints(tmp_path: Path, profile: str) -> None:
    before, printed = blocks("from-redis-streams")
    with started(RedisPeer(), tmp_path, profile) as (port, env):
        program = write(tmp_path, "program.py", before, ("redis.Redis()", f"redis.Redis(port={port})"))
        assert printed_by(program, env) == printed


def test_the_program_of_rabbitmq_prints_what_ours_prints(tmp_path: Path, profile: str) -> None:
    before, printed = blocks("from-rabbitmq")
    with started(RabbitPeer(), tmp_path, profile) as (port, env):
        here = f"pika.BlockingConnection(pika.ConnectionParameters(port={port}))"
        program = write(tmp_path, "program.py", before, ("pika.BlockingConnection()", here))
        assert printed_by(program, env) == printed
