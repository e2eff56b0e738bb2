"""Damaged files under a real server: what is readable is served, what is not is reported, and a torn tail is cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import driftq
from driftq.storage import blocks
from driftq.wire.streams import token
from tests.crash.mounts import tmpfs
from tests.support.server import Server, running
from tests.support.wait import until_now

SMALL = ("limits.batch_bytes=65536", "limits.message_bytes=65536", "storage.segment_bytes=262144")
TEXT = {"Content-Type": "text/plain"}


def flip(folder: Path, needle: bytes) -> None:
    """Change one byte of the only log file that holds `needle`."""
    [path] = [path for path in folder.glob("logs/**/*.log") if needle in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(needle)] ^= 0x20
    path.write_bytes(data)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder with a sound topic and stream, and a damaged one of each, all below a snapshot: a start then does not
    write these logs again from the journal."""
    with running(str(tmp_path), *SMALL) as server:
        for topic in ("good", "bad"):
            assert server.call("POST", "/v1/topics", {"name": topic}).status == 201
            server.call("PUT", f"/v1/stream/{topic}", None, TEXT)
            server.call("POST", f"/v1/stream/{topic}", f"stream-{topic}".encode(), TEXT)
            server.call("POST", "/v1/produce", {"topic": topic, "value": f"topic-{topic}"})
        for number in range(12):
            value = f"{number}" + "." * 50_000
            assert server.call("POST", "/v1/produce", {"topic": "good", "value": value}).status == 200
        until_now(lambda: any(tmp_path.glob("snapshots/*.snapshot")), 30)
        assert server.stop() == 0
    flip(tmp_path, b"topic-bad")
    flip(tmp_path, b"stream-bad")
    return tmp_path


def test_a_claim_that_meets_damage_reports_it_and_everything_else_is_served(damaged):
    with running(str(damaged), *SMALL) as server:
        ask = {"topic": "bad", "group": "g", "owner": "w", "max": 10}
        reply = server.call("POST", "/v1/claim", ask)
        assert (reply.status, reply.json()["error"]) == (500, "DATA_CORRUPT")
        assert "driftq inspect verify" in reply.json()["message"]
        states = server.call("GET", "/v1/topics/bad/groups/g/states").json()
        assert states["pending"]["state"] == ["retrying"], "it is in backoff; it is not claimed again and again"
        good = server.call("POST", "/v1/claim", {**ask, "topic": "good"}).json()["messages"]
        assert [message["value"][:10] for message in good][:2] == ["topic-good", "0........."]
        assert server.call("POST", "/v1/produce", {"topic": "bad", "value": "another"}).status == 200
        assert [m["value"] for m in server.call("POST", "/v1/claim", ask).json()["messages"]] == ["another"]


def test_a_claim_returns_what_is_readable_around_the_damage(damaged):
    with running(str(damaged), *SMALL) as server:
        assert server.call("POST", "/v1/produce", {"topic": "bad", "value": "another"}).status == 200
        reply = server.call("POST", "/v1/claim", {"topic": "bad", "group": "g", "owner": "w", "max": 10})
        assert reply.status == 200
        assert [message["value"] for message in reply.json()["messages"]] == ["another"]


def test_a_packed_claim_returns_what_is_readable_around_the_damage(damaged):
    with running(str(damaged), *SMALL) as server, driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.send("bad", "another")
        assert [message.text for message in broker.claim("bad", "g", max=10)] == ["another"]


def test_a_read_of_a_damaged_stream_fails_and_the_others_are_served(damaged):
    with running(str(damaged), *SMALL) as server:
        reply = server.call("GET", "/v1/stream/bad?offset=-1")
        assert reply.status == 500
        assert b"driftq inspect verify" in reply.body
        assert server.call("GET", "/v1/stream/good?offset=-1").body == b"stream-good"
        assert server.call("POST", "/v1/stream/bad", b"more", TEXT).status == 204
        assert server.call("GET", f"/v1/stream/bad?offset={token(1)}").body == b"more"


def test_a_torn_tail_costs_no_acknowledged_append_of_a_stream(tmp_path):
    """There is an incomplete block after the last one: the next start cuts it and continues from there."""
    server = Server(str(tmp_path))
    server.call("PUT", "/v1/stream/s", None, TEXT)
    for number in range(20):
        assert server.call("POST", "/v1/stream/s", b"<%d>" % number, TEXT).status == 204
    server.kill()
    [journal] = tmp_path.glob("journal/*.journal")
    data = bytearray(journal.read_bytes())
    end = len(data.rstrip(b"\0"))
    at = -(-end // blocks.ALIGNMENT) * blocks.ALIGNMENT
    torn = blocks.encode(1, 2, 3, [b"half a frame" * 20])[0]
    data[at : at + 100] = torn[:100]
    journal.write_bytes(data)
    with running(str(tmp_path)) as again:
        assert "a torn tail was cut off" in "".join(again.lines)
        assert again.call("GET", "/v1/stream/s?offset=-1").body == b"".join(b"<%d>" % number for number in range(20))
        reply = again.call("POST", "/v1/stream/s", b"<more>", TEXT)
        assert (reply.status, reply.headers["stream-next-offset"]) == (204, token(21))
        assert again.stop() == 0
    with running(str(tmp_path)) as healed:
        assert "cut off" not in "".join(healed.lines)
        assert healed.call("GET", f"/v1/stream/s?offset={token(20)}").body == b"<more>"


def test_a_full_disk_refuses_appends_to_streams_serves_reads_and_recovers(tmp_path, profile):
    with tmpfs(tmp_path / "small", 4 << 20, profile) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        with running(str(folder / "data"), *SMALL) as server:
            server.call("PUT", "/v1/stream/s", None, TEXT)
            taken = 0
            while (reply := server.call("POST", "/v1/stream/s", b"<%06d>" % taken + b"." * 4_000, TEXT)).status == 204:
                taken += 1
                assert taken < 2_000, "the disk was never full"
            assert reply.status == 507, reply
            assert taken > 20
            assert server.call("GET", f"/v1/stream/s?offset={token(taken - 1)}").body.startswith(
                b"<%06d>" % (taken - 1)
            )
            assert server.call("PUT", "/v1/stream/other", None, TEXT).status == 507
            os.unlink(ballast)
            until_now(lambda: server.call("POST", "/v1/stream/s", b"<again>", TEXT).status == 204, 20)
            server.kill()
        with running(str(folder / "data"), *SMALL) as server:
            reply = server.call("GET", f"/v1/stream/s?offset={token(taken - 1)}")
            assert reply.body.startswith(b"<%06d>" % (taken - 1))
            assert reply.body.endswith(b"<again>")
            assert server.stop() == 0
