"""A broker whose old segments are only in the archive: every door reads them, and says so when the archive is away."""

from __future__ import annotations

import os
import shutil
from urllib.parse import quote

import pytest

from tests.e2e.test_archive import driftq, wait_shipped
from tests.support.cold_segments import LOCAL, SMALL_FILES, VALUE, fill, move, tiers_of
from tests.support.server import running
from tests.support.wait import until_now

COUNT = 150


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """One folder and its archive, made once."""
    place = tmp_path_factory.mktemp("tiers")
    url = f"archive.url={place / 'archive'}"
    (place / "archive").mkdir()
    with running(str(place / "data"), url, LOCAL, *SMALL_FILES) as server:
        call = server.call
        call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        fill(server, "orders", COUNT)
        call("PUT", "/v1/stream/chat", b"", {"Content-Type": "text/plain"})
        for number in range(60):
            call("POST", "/v1/stream/chat", f"{number} {VALUE * 2}\n".encode(), {"Content-Type": "text/plain"})
        job = call("POST", "/v1/jobs", {"topic": "orders", "task": "mail", "id": "job-1", "value": VALUE})
        assert job.status == 201, job.body
        claim = {"topic": "orders", "group": "dead", "owner": "w", "max": 3}
        for message in call("POST", "/v1/claim", claim).json()["messages"]:
            held = {key: message[key] for key in ("partition", "offset", "token")}
            body = {"topic": "orders", "group": "dead", "owner": "w", "reason": "no", "messages": [held]}
            assert call("POST", "/v1/reject", body).status == 200
        move(server, 600_000)
        wait_shipped(server)
    return place


@pytest.fixture
def place(origin, tmp_path):
    shutil.copytree(origin / "data", tmp_path / "data")
    return tmp_path


def values(messages):
    return [int(message["value"].partition(" ")[0]) for message in messages]


def test_every_door_reads_what_is_only_in_the_archive(origin, place):
    with running(str(place / "data"), f"archive.url={origin / 'archive'}", *SMALL_FILES) as server:
        call = server.call
        read = "/v1/topics/orders/partitions/0/messages"
        assert values(call("GET", f"{read}?offset=0&limit=100").json()["messages"]) == list(range(100))
        assert tiers_of(server)["downloads"] > 0
        matches = call("GET", f"/v1/topics/orders/messages?text={quote('17 v')}&limit=200").json()
        assert {17, 117} <= set(values(matches["messages"]))
        assert call("GET", "/v1/stream/chat?offset=-1").body.startswith(b"0 vvv")
        offsets = call("GET", "/v1/topics/orders/offsets?at=2001-01-01T00:00:00Z&last=true").json()["partitions"]
        assert (offsets[0]["start"], offsets[0]["at"]) == (0, 0)
        taken = []
        while len(taken) < COUNT:
            claim = {"topic": "orders", "group": "late", "owner": "w", "max": 40, "lease_ms": 600_000}
            messages = call("POST", "/v1/claim", claim).json()["messages"]
            assert messages, f"only {len(taken)} of {COUNT} messages were offered"
            taken += [message for message in messages if not message.get("job")]
        assert values(taken)[:COUNT] == list(range(COUNT))
        explained = call("GET", "/v1/explain?topic=orders&partition=0&offset=5")
        assert explained.status == 200
        assert len(call("GET", "/v1/dlq/orders").json()["messages"]) == 3
        assert call("POST", "/v1/dlq/orders/redrive", {"limit": 10}).json()["redriven"] == 3
        jobs = call("GET", "/v1/jobs?topic=orders").json()["jobs"]
        assert [job["id"] for job in jobs] == ["job-1"]


def test_a_stream_is_followed_from_its_beginning(origin, place):
    with running(str(place / "data"), f"archive.url={origin / 'archive'}", *SMALL_FILES) as server:
        connection = server.connect()
        connection.request("GET", "/v1/stream/chat?offset=-1&live=sse")
        reply = connection.getresponse()
        text = b""
        while b"59 vvv" not in text:
            text += reply.read1(1 << 16)
        assert text.index(b"data:0 vvv" if b"data:0 vvv" in text else b"0 vvv") < text.index(b"59 vvv")
        connection.close()


def test_while_the_archive_is_away_old_records_are_503_and_the_rest_is_served(origin, place):
    shutil.copytree(origin / "archive", place / "archive")
    url = place / "archive"
    os.rename(url, place / "gone")
    with running(str(place / "data"), f"archive.url={url}", *SMALL_FILES) as server:
        call = server.call
        old = call("GET", "/v1/topics/orders/partitions/0/messages?offset=60")
        assert old.status == 503
        assert "only in the archive" in old.json()["message"]
        claim = {"topic": "orders", "group": "late", "owner": "w", "max": 60}
        assert call("POST", "/v1/claim", claim).status == 503
        chat = call("GET", "/v1/stream/chat?offset=-1")  # its first records are in a shared segment
        chat = call("GET", f"/v1/stream/chat?offset={chat.headers['stream-next-offset']}")
        assert chat.status == 503
        assert call("POST", "/v1/produce", {"topic": "orders", "value": "new"}).status == 200
        last = call("GET", "/v1/topics/orders/partitions/0/messages?limit=1").json()["messages"]
        assert last[0]["value"] == "new"
        assert any("only in the archive" in text for text in call("GET", "/v1/readyz").json()["warnings"])
        kinds = [row["kind"] for row in call("GET", "/v1/overview").json()["attention"]]
        assert "cold_reads_failing" in kinds
        metrics = call("GET", "/v1/metrics").body.decode()
        assert 'driftq_tier_bytes{place="archive"}' in metrics
        assert 'driftq_cold_reads_total{result="failure"}' in metrics
        os.rename(place / "gone", url)

        def is_back():
            return call("GET", "/v1/topics/orders/partitions/0/messages?offset=60").status == 200

        until_now(is_back, 20)
        assert call("POST", "/v1/claim", claim).json()["messages"][0]["attempts"] == 1


def test_a_backup_a_verification_and_a_restore_have_all_of_it(origin, place):
    data = str(place / "data")
    verified = driftq("inspect", "verify", data)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    copied = driftq("backup", str(place / "copy"), "--data", data)
    assert copied.returncode == 0, copied.stdout + copied.stderr
    restored = driftq("restore", str(origin / "archive"), str(place / "restored"))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    for folder in ("copy", "restored"):
        names = [name for _, _, files in os.walk(place / folder) for name in files]
        assert not [name for name in names if name.endswith(".tier")]
        with running(str(place / folder)) as server:
            read = "/v1/topics/orders/partitions/0/messages?offset=0&limit=100"
            assert values(server.call("GET", read).json()["messages"]) == list(range(100))


def test_without_an_archive_segments_may_not_leave_the_disk(tmp_path):
    refused = driftq(
        "serve", "--data", str(tmp_path / "data"), "--set", "storage.local_bytes=1", "--set", "listen.port=0"
    )
    assert refused.returncode != 0
    assert "archive.url" in refused.stderr
