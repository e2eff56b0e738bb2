"""A broker with an archive: everything comes back, points in time, and what is wrong with an archive is reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.wait import until_now

QUICK = "archive.interval_ms=20"


def driftq(*arguments, env=None):
    command = [sys.executable, "-m", "driftq.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)


def archive_of(server):
    return server.call("GET", "/v1/readyz").json()["archive"]


def wait_shipped(server):
    """Until everything that is durable is in the archive."""

    def is_shipped():
        archive = archive_of(server)
        return archive["state"] == "shipping" and not archive["lag_bytes"]

    until_now(is_shipped, 30)
    return archive_of(server)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "archive").mkdir()
    return tmp_path


@pytest.fixture
def start(place):
    servers = []

    def begin(folder, *settings, url=None, env=None):
        server = Server(str(place / folder), f"archive.url={url or place / 'archive'}", QUICK, *settings, env=env)
        servers.append(server)
        return server

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.kill()


def test_everything_that_a_broker_remembers_comes_back_on_another_machine(place, start):
    server = start("one")
    call = server.call
    call("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    for number in range(20):
        call("POST", "/v1/produce", {"topic": "orders", "key": f"k{number}", "value": f"v{number}"})
    body = {"topic": "orders", "value": "once", "envelope": {"idempotency_key": "i1"}}
    first = call("POST", "/v1/produce", body).json()
    claim = {"topic": "orders", "group": "g", "owner": "w", "max": 6, "lease_ms": 600_000}
    held = call("POST", "/v1/claim", claim).json()["messages"]
    for message in held[1::2]:
        ack = {"topic": "orders", "group": "g", "owner": "w"} | {key: message[key] for key in ("partition", "offset")}
        assert call("POST", "/v1/ack", ack).status == 204
    call("PUT", "/v1/stream/chat", b"", {"Content-Type": "text/plain"})
    call("POST", "/v1/stream/chat", b"hello", {"Content-Type": "text/plain"})
    call("POST", "/v1/jobs", {"topic": "orders", "task": "mail", "id": "job-1", "delay_ms": 600_000, "value": "{}"})
    before = [call("GET", path).json() for path in ("/v1/topics/orders", "/v1/topics/orders/groups/g/states")]
    wait_shipped(server)
    server.kill()
    shutil.rmtree(place / "one")

    done = driftq("restore", str(place / "archive"), str(place / "two"))
    assert done.returncode == 0, done.stderr
    assert "no gap" in done.stdout
    call = start("two").call
    after = [call("GET", path).json() for path in ("/v1/topics/orders", "/v1/topics/orders/groups/g/states")]
    assert _without_times(after) == _without_times(before)
    assert call("GET", "/v1/stream/chat?offset=-1").body == b"hello"
    again = call("POST", "/v1/produce", body).json()
    assert (again["duplicate"], again["offset"]) == (True, first["offset"])
    offered = call("POST", "/v1/claim", {**claim, "owner": "other", "max": 100}).json()["messages"]
    taken = {(message["partition"], message["offset"]) for message in held}
    assert not taken & {(message["partition"], message["offset"]) for message in offered}, "its lease is still held"


def _without_times(value):
    if isinstance(value, dict):
        skipped = ("lag_ms", "oldest_ms", "age_ms", "retained_until")
        return {key: _without_times(part) for key, part in value.items() if key not in skipped}
    return [_without_times(part) for part in value] if isinstance(value, list) else value


def test_an_earlier_point_is_restored_by_lsn_and_by_time_and_becomes_a_branch(place, start):
    server = start("one")
    server.call("POST", "/v1/topics", {"name": "t"})
    server.call("POST", "/v1/produce", {"topic": "t", "value": "first"})
    lsn = wait_shipped(server)["shipped_lsn"]
    at = server.call("GET", "/v1/clock").json()["broker_at"]
    until_now(lambda: server.call("GET", "/v1/clock").json()["broker_at"] > at, 10)
    server.call("POST", "/v1/produce", {"topic": "t", "value": "second"})
    wait_shipped(server)
    assert server.stop() == 0
    url = str(place / "archive")
    for number, option in enumerate((("--lsn", str(lsn)), ("--time", at))):
        folder = f"past{number}"
        done = driftq("restore", url, str(place / folder), *option)
        assert done.returncode == 0, done.stderr
    branch = start("past0")
    read = "/v1/topics/t/partitions/0/messages?offset=0"
    assert [message["value"] for message in branch.call("GET", read).json()["messages"]] == ["first"]
    branch.call("POST", "/v1/produce", {"topic": "t", "value": "another"})
    wait_shipped(branch)
    assert branch.stop() == 0
    # Both histories are there.
    listed = json.loads(driftq("archive", "list", url, "--json").stdout)
    first, second = (row["generation"] for row in listed["generations"])
    for generation, values in ((first, ["first", "second"]), (second, ["first", "another"])):
        folder = str(place / generation)
        assert driftq("restore", url, folder, "--generation", generation).returncode == 0
        shutil.rmtree(place / "copy", ignore_errors=True)
        shutil.copytree(folder, place / "copy")
        reader = Server(str(place / "copy"))
        assert [message["value"] for message in reader.call("GET", read).json()["messages"]] == values
        reader.stop()
    assert driftq("archive", "verify", url).returncode == 0


def test_a_time_before_the_archive_begins_is_refused_with_the_first_one_that_works(place, start):
    server = start("one")
    server.call("POST", "/v1/topics", {"name": "t"})
    wait_shipped(server)
    assert server.stop() == 0
    url, folder = str(place / "archive"), str(place / "past")
    done = driftq("restore", url, folder, "--time", "2020-01-01T00:00:00Z")
    assert done.returncode == 66
    assert "does not reach back to this point" in done.stderr
    first = re.search(r"it begins with lsn 1, at (\S+)", done.stderr)
    assert first is not None, done.stderr
    # Nothing of it is left in the way.
    done = driftq("restore", url, folder, "--time", first[1])
    assert done.returncode == 0, done.stderr
    assert not driftq("restore", url, str(place / "late"), "--time", "2120-01-01T00:00:00Z").returncode


def test_a_second_broker_on_the_same_prefix_is_refused_and_serves(place, start):
    first = start("one")
    first.call("POST", "/v1/topics", {"name": "t"})
    wait_shipped(first)
    shutil.copytree(place / "one", place / "copy", ignore=shutil.ignore_patterns("LOCK"))
    second = start("copy")
    until_now(lambda: archive_of(second)["state"] == "waiting", 20)
    reply = second.call("GET", "/v1/readyz")
    assert reply.status == 200
    assert "another broker writes to" in reply.json()["warnings"][0]
    assert second.call("POST", "/v1/produce", {"topic": "t", "value": "v"}).status == 200
    assert 'driftq_archive_up{state="waiting"} 1' in second.call("GET", "/v1/metrics").body.decode()
    assert archive_of(first)["state"] == "shipping"
    # The first one ends: the second takes over, with a history of its own.
    assert first.stop() == 0
    wait_shipped(second)
    assert second.stop() == 0
    assert any("another broker writes to" in line for line in second.lines)


def test_a_prefix_of_another_store_is_refused_and_nothing_is_written_to_it(place, start):
    first = start("one")
    first.call("POST", "/v1/topics", {"name": "t"})
    wait_shipped(first)
    assert first.stop() == 0
    before = sorted(path.name for path in (place / "archive").rglob("*"))
    other = start("other")
    until_now(lambda: archive_of(other)["state"] == "failing", 20)
    assert "is the archive of another store" in other.call("GET", "/v1/readyz").json()["warnings"][0]
    assert other.call("POST", "/v1/topics", {"name": "t"}).status in (200, 201)
    assert other.stop(40) == 0
    assert sorted(path.name for path in (place / "archive").rglob("*")) == before


def test_in_mode_sync_a_broker_does_not_start_without_its_archive(place):
    url = str(place / "not-mounted")
    done = driftq("serve", "--data", str(place / "one"), "--archive", url, "--set", "archive.mode=sync", "--set",
                  "listen.port=0")  # fmt: skip
    assert done.returncode == 69
    assert "there is no such bucket, container or folder" in done.stderr
    assert f"mkdir -p {url}" in done.stderr


def test_a_store_that_goes_away_and_returns_costs_nothing_and_is_reported(place, start):
    server = start("one")
    server.call("POST", "/v1/topics", {"name": "t"})
    wait_shipped(server)
    (place / "archive").rename(place / "away")
    assert server.call("POST", "/v1/produce", {"topic": "t", "value": "v"}).status == 200
    until_now(lambda: archive_of(server)["state"] == "failing", 20)
    archive = archive_of(server)
    assert archive["lag_bytes"] > 0
    assert archive["lag_ms"] > 0
    assert 'driftq_archive_up{state="failing"} 1' in server.call("GET", "/v1/metrics").body.decode()
    (place / "away").rename(place / "archive")
    wait_shipped(server)
    assert "warnings" not in server.call("GET", "/v1/readyz").json()
    assert server.stop() == 0
    assert any("no such bucket, container or folder" in line for line in server.lines)


def test_damage_in_an_archive_is_found_by_verify_and_by_restore(place, start):
    server = start("one")
    server.call("POST", "/v1/topics", {"name": "t"})
    wait_shipped(server)
    server.call("POST", "/v1/produce", {"topic": "t", "value": "v" * 1_000})
    wait_shipped(server)
    assert server.stop() == 0
    url = str(place / "archive")
    chunk = max((place / "archive").rglob("journal/*"), key=lambda path: path.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[-300] ^= 1
    chunk.write_bytes(data)
    for command in (("archive", "verify", url), ("restore", url, str(place / "two"))):
        done = driftq(*command)
        assert done.returncode == 74, done.stdout + done.stderr
        assert "checksum mismatch" in done.stdout + done.stderr
    chunk.unlink()
    done = driftq("archive", "verify", url)
    assert done.returncode == 74
    assert "are missing" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("restore", "{empty}", "{place}/x"), 66, "there is no archive at"),
        (("restore", "{place}/none", "{place}/x"), 66, "there is no archive at"),
        (("restore", "s3:/typo", "{place}/x"), 2, "no address of an archive"),
        (("restore", "{empty}", "{full}"), 2, "is not empty"),
        (("restore", "{empty}", "{place}/x", "--lsn", "1", "--time", "2026-01-01T00:00:00Z"), 2, "exclude each other"),
        (("restore", "{empty}", "{place}/x", "--time", "yesterday"), 2, "--time takes a time like"),
        (("archive", "list", "{empty}"), 66, "there is no archive at"),
        (("serve", "--memory", "--archive", "{empty}"), 2, "nothing to archive"),
    ],
)
def test_bad_input_is_explained(place, arguments, code, text):
    (place / "full").mkdir()
    (place / "full" / "file").touch()
    names = {"place": place, "empty": place / "archive", "full": place / "full"}
    done = driftq(*(argument.format(**names) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert text in done.stderr


def test_the_drill_of_the_guide_works_as_it_is_written(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "guides" / "disaster-recovery.md").read_text(encoding="utf-8")
    drill = text.partition("## The drill")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", drill, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = "set -m\n" + "\n".join(blocks).replace("8099", port) + "\nkill %%\nwait\n"
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert '"state":"shipping"' in done.stdout, done.stdout + done.stderr
    assert "no gap" in done.stdout
    assert "the first order" in done.stdout, done.stdout + done.stderr
