"""A broker that runs out of file descriptors: it refuses connections, and everything else continues."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, running
from tests.support.wait import until_now

IDLE = 1_500


def limited(nofile: tuple[int, int]) -> Callable[[list[str], dict[str, str]], subprocess.Popen[str]]:
    """Starts a server as a shell with `ulimit -n` would."""

    def start(arguments: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        command = ["prlimit", f"--nofile={nofile[0]}:{nofile[1]}", sys.executable, "-m", "driftq.cli.main", *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)

    return start


@pytest.fixture
def many_sockets() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle_connections(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(count)]


def is_open(connection: socket.socket) -> bool:
    """True while the server has sent nothing and has not closed it."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@pytest.mark.parametrize("nofile", [256, 1_024])
def test_idle_connections_do_not_take_the_descriptors_of_files(
    tmp_path: Path, nofile: int, many_sockets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "launch", staticmethod(limited((nofile, nofile))))
    with running(str(tmp_path / "data")) as server:
        client = server.connect()
        client.connect()  # admitted before the others
        client.request("GET", "/v1/healthz")
        client.getresponse().read()
        idle = idle_connections(server.port, IDLE)
        try:
            until_now(lambda: sum(map(is_open, idle)) < nofile, 20)
            for number in range(40):
                client.request("POST", f"/v1/topics?name=t{number}&partitions=2")
                response = client.getresponse()
                assert response.status == 201, response.read()
                response.read()
                client.request("POST", f"/v1/produce?topic=t{number}&value=v")
                response = client.getresponse()
                assert response.status == 200, response.read()
                response.read()
                client.request("GET", f"/v1/topics/t{number}/partitions/0/messages")
                response = client.getresponse()
                assert response.status == 200, response.read()
                assert b'"value":"v"' in response.read()
            refused = [one for one in idle if not is_open(one)]
            assert len(refused) > IDLE - nofile
            client.request("GET", "/v1/metrics")
            page = client.getresponse().read().decode()
            cap = next(line for line in page.splitlines() if line.startswith("driftq_connections_max "))
            assert float(cap.split()[1]) == IDLE + 1 - len(refused)
        finally:
            for one in (client, *idle):
                one.close()
        assert server.stop() == 0
    assert any("connections_max" in line for line in server.lines)


def test_the_soft_limit_is_raised_at_the_start(
    tmp_path: Path, many_sockets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "launch", staticmethod(limited((256, 4_096))))
    with running(str(tmp_path / "data")) as server:
        idle = idle_connections(server.port, IDLE)
        assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
        assert all(map(is_open, idle))
        for one in idle:
            one.close()


def test_too_few_descriptors_for_a_broker_are_a_clear_error(tmp_path: Path) -> None:
    command = ["prlimit", "--nofile=64:64", sys.executable, "-m", "driftq.cli.main", "serve", "--data", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "ulimit -n" in ended.stderr
