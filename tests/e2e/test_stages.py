"""Staged appends over HTTP: unseen until published, published once, also across a kill."""

from __future__ import annotations

from pathlib import Path

from driftq.wire.records import Record, pack
from tests.support.server import Reply, Server, running

BATCH = {"Content-Type": "application/x-driftq-batch"}


def stage(server: Server, handle: str, *values: bytes) -> Reply:
    batch = pack([Record(value) for value in values])
    return server.call("POST", f"/v1/stages?writer=w&handle={handle}&topic=t&partition=0", batch, BATCH)


def publish(server: Server, number: int, *handles: str) -> Reply:
    return server.call("POST", "/v1/stages/publish", {"writer": "w", "batch": number, "handles": list(handles)})


def seen(server: Server) -> list[str]:
    messages = server.call("GET", "/v1/topics/t/partitions/0/messages?offset=0&limit=1000").json()["messages"]
    return [message["value"] for message in messages]


def test_staged_batches_appear_together_once_and_in_the_order_named_whatever_is_killed(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    server = Server(folder)
    server.call("POST", "/v1/topics", {"name": "t"})
    assert stage(server, "a", b"a1", b"a2").status == 201
    assert stage(server, "left-over", b"never").status == 201
    assert stage(server, "b", b"b1").status == 201
    assert seen(server) == []
    server.kill()
    server = Server(folder)
    assert seen(server) == [], "staged is not visible, before and after a restart"
    first = publish(server, 0, "b", "a")
    assert first.status == 200
    assert seen(server) == ["b1", "a1", "a2"]
    server.kill()
    server = Server(folder)
    again = publish(server, 0, "b", "a")
    assert again.json() == {**first.json(), "duplicate": True}
    assert seen(server) == ["b1", "a1", "a2"]
    assert publish(server, 1, "left-over").status == 404, "what a publication does not name is forgotten"
    assert stage(server, "c", b"c1").status == 201
    assert publish(server, 1, "c").json()["parts"] == [{"offset": 3, "count": 1, "topic": "t", "partition": 0}]
    assert server.stop() == 0


def test_a_chunk_that_is_staged_again_after_a_lost_reply_is_there_once(tmp_path: Path) -> None:
    with running(str(tmp_path / "data")) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        path = "/v1/stages?writer=w&handle=h&topic=t&partition=0&chunk="
        statuses = [
            server.call("POST", path + str(chunk), pack([Record(b"%d" % chunk)]), BATCH).status
            for chunk in (0, 0, 1, 3, 0, 2)
        ]
        assert statuses == [201, 200, 201, 409, 200, 201]
        assert publish(server, 0, "h").status == 200
        assert seen(server) == ["0", "1", "2"]


def test_other_content_under_a_published_number_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")

    def publish_content(server: Server, content: str, *handles: str) -> Reply:
        body = {"writer": "w", "batch": 0, "handles": list(handles), "content": content}
        return server.call("POST", "/v1/stages/publish", body)

    server = Server(folder)
    server.call("POST", "/v1/topics", {"name": "t"})
    stage(server, "a", b"a1")
    assert publish_content(server, "one", "a").status == 200
    server.kill()
    server = Server(folder)
    stage(server, "b", b"b1")
    refused = publish_content(server, "two", "b")
    assert (refused.status, refused.json()["error"], refused.json()["batch_number"]) == (409, "CONTENT_MISMATCH", 0)
    assert publish_content(server, "one", "b").json()["duplicate"]
    assert publish(server, 0, "b").json()["duplicate"], "a client that does not name its content is answered as before"
    assert seen(server) == ["a1"]
    assert publish_content(server, "x" * 257).status == 400
    assert server.stop() == 0
