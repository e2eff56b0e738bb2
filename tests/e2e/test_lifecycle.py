"""How a broker starts, notices that its files are gone, and ends: clear errors and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from driftq.cli.exit_codes import Exit
from tests.support.server import Server, from_scratch, running
from tests.support.wait import until_now

PROGRAM = [sys.executable, "-m", "driftq.cli.main"]
END_S = 60.0


def serve(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    command = [*PROGRAM, "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False, env=env)


# Addresses and folders.


@pytest.mark.parametrize("command", [["serve", "--memory"], ["demo", "--for-s", "1"]])
def test_a_port_in_use_is_a_clear_error_with_the_address(tmp_path: Path, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [*PROGRAM, *command, "--listen", address],
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
            cwd=tmp_path,
        )
    assert ended.returncode == Exit.UNREACHABLE
    output = ended.stdout + ended.stderr
    assert f"cannot listen on {address}: another program uses this port" in output
    assert "--listen" in output
    assert "Errno" not in output


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    ended = serve("--memory", "--listen", "203.0.113.7:0", "--set", "auth.mode=tokens")
    assert ended.returncode == Exit.UNREACHABLE
    assert "this machine has no such address" in ended.stderr


def test_an_unusable_folder_is_reported_with_reason_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for place in (file, file / "below", Path("/proc/nodata")):
        ended = serve("--data", str(place), "--listen", "127.0.0.1:0")
        assert ended.returncode == Exit.CANNOT_CREATE, ended.stderr
        assert f"the data folder {place} cannot be used" in ended.stderr
        assert "--data" in ended.stderr
        assert "Errno" not in ended.stderr


def test_a_folder_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "important.txt").write_text("mine")
    ended = serve("--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert ended.returncode == Exit.CANNOT_CREATE
    assert "is no data folder of driftq and is not empty (important.txt)" in ended.stderr
    assert os.listdir(tmp_path) == ["important.txt"]


def test_a_fresh_volume_is_no_foreign_folder_and_becomes_private(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    (folder / "lost+found").mkdir(parents=True)
    folder.chmod(0o755)
    with running(str(folder)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "notes.txt").write_text("a data folder stays one, whatever lies beside its files")
    with running(str(folder)):
        pass


# Files that go away.


def remove_lock(folder: Path) -> str:
    (folder / "LOCK").unlink()
    return "LOCK"


def remove_segment(folder: Path) -> str:
    (segment,) = (folder / "journal").glob("*.journal")
    segment.unlink()
    return segment.name


def replace_segment(folder: Path) -> str:
    (segment,) = (folder / "journal").glob("*.journal")
    shutil.copy(segment, folder / "journal" / "copy")
    os.replace(folder / "journal" / "copy", segment)
    return segment.name


def remove_watermark(folder: Path) -> str:
    (folder / "journal" / "watermark").unlink()
    return "watermark"


def move_folder(folder: Path) -> str:
    folder.rename(folder.parent / "elsewhere")
    return "journal"


@pytest.mark.parametrize("harm", [remove_lock, remove_segment, replace_segment, remove_watermark, move_folder])
def test_files_that_are_removed_or_replaced_stop_the_broker(tmp_path: Path, harm: Callable[[Path], str]) -> None:
    folder = tmp_path / "data"
    server = Server(str(folder))
    try:
        assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
        name = harm(folder)
        assert server.process.wait(20) == Exit.FILES_MOVED
    finally:
        server.kill()
    output = "".join(server.lines)
    assert name in output
    assert "removed or replaced while the broker was running" in output


def test_after_a_lock_was_removed_only_the_second_broker_survives(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = Server(str(folder))
    second = None
    try:
        assert first.call("POST", "/v1/topics?name=t&partitions=1").status == 201
        remove_lock(folder)
        second = Server(str(folder))
        assert first.process.wait(20) == Exit.FILES_MOVED
        assert second.call("POST", "/v1/produce?topic=t&value=v").status == 200
        assert second.stop() == 0
    finally:
        first.kill()
        if second is not None and second.process.poll() is None:
            second.kill()


# Readiness.


def test_requests_that_arrive_during_recovery_wait_for_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with running(folder) as server:
        assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
        connection = server.connect()
        body = json.dumps({"topic": "t", "messages": [{"value": "x" * 50}] * 1_000}).encode()
        for _ in range(20):
            connection.request("POST", "/v1/produce/batch", body)
            assert connection.getresponse().read()
        connection.close()
        server.kill()
    for _ in range(4):
        port = free_port()
        process = from_scratch(["serve", "--data", folder, "--listen", f"127.0.0.1:{port}"], dict(os.environ))
        drain = threading.Thread(target=process.stderr.read)  # type: ignore[union-attr]
        drain.start()
        try:
            assert first_statuses(port) == (200, 200)
        finally:
            process.kill()
            process.wait()
            drain.join()
            assert process.stderr is not None
            process.stderr.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def first_statuses(port: int) -> tuple[int, int]:
    """The first answer of healthz, and the one to a produce right after it."""
    from http.client import HTTPConnection

    deadline_s = time.monotonic() + END_S
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/v1/healthz")
            health = connection.getresponse()
        except OSError:
            assert time.monotonic() < deadline_s
            continue
        health.read()
        connection.request("POST", "/v1/produce?topic=t&value=v")
        produced = connection.getresponse()
        produced.read()
        connection.close()
        return health.status, produced.status


def test_head_is_answered_on_health_readiness_and_metrics(server: Server) -> None:
    for path in ("/v1/healthz", "/v1/readyz", "/v1/metrics"):
        reply = server.call("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
        assert int(reply.headers["content-length"]) > 0
    refused = server.call("HEAD", "/v1/topics")
    assert refused.status == 405


# JSON logs.


def test_json_logs_hold_nothing_but_json(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server = Server(str(folder), "log.format=json")
    assert server.stop() == 0
    messages = [json.loads(line)["message"] for line in server.lines]
    assert any(message.startswith("driftq ") for message in messages)
    assert "stopping" in messages
    server = Server(str(folder), "log.format=json")
    try:
        remove_segment(folder)
        assert server.process.wait(20) == Exit.FILES_MOVED
    finally:
        server.kill()
    lines = [json.loads(line) for line in server.lines]
    assert "removed or replaced" in lines[-1]["message"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = serve("--memory", "--listen", address, "--set", "log.format=json")
    assert all(json.loads(line) for line in ended.stderr.splitlines())


# Retention.


def test_retention_drops_the_last_message_of_a_quiet_topic(tmp_path: Path) -> None:
    with running(str(tmp_path / "data")) as server:
        assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
        assert server.call("PATCH", "/v1/topics/t", {"retention_ms": 1_000}).status == 200
        assert server.call("POST", "/v1/produce?topic=t&value=v").status == 200
        began_s = time.monotonic()

        def is_gone() -> bool:
            return server.call("GET", "/v1/topics/t").json()["partitions"][0]["messages"] == 0

        until_now(is_gone, 60, pause_s=0.2)
        assert 1 <= time.monotonic() - began_s <= 31
        assert server.call("POST", "/v1/produce?topic=t&value=w").json()["offset"] == 1
