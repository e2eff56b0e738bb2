"""Durable streams over real sockets: behaviour that the published suite does not cover."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from driftq.wire.streams import offset_of, token
from tests.support.server import Reply, Server, running

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = ("streams.long_poll_ms=400", "streams.read_bytes_max=4096", "streams.park_ms=100")
    with running(str(tmp_path_factory.mktemp("data")), *settings) as process:
        yield process


class Path:
    """One stream of a server."""

    def __init__(self, server: Server, name: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.server = server
        self.path = f"/v1/stream/{name}"
        assert server.call("PUT", self.path, body, headers).status == 201
        self.kind = {"Content-Type": headers.get("Content-Type", "application/octet-stream")}

    def post(self, body: bytes, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.call("POST", self.path, body, {**self.kind, **named})

    def get(self, query: str = "", **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.server.call("GET", self.path + query, None, named)


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_json_is_returned_byte_for_byte(server):
    stream = Path(server, "exact", JSON)
    body = b'[ {"b":1, "a":12345678901234567890123456789} , 1.50, "\\u00e9\\ud83d" ,[1, 2]]'
    assert stream.post(body).status == 204
    assert stream.get().body == b'[{"b":1, "a":12345678901234567890123456789},1.50,"\\u00e9\\ud83d",[1, 2]]'


def test_a_body_that_is_not_json_changes_nothing(server):
    stream = Path(server, "strict", JSON)
    for body in (b"{", b"[1,]", b"[NaN]", b'"\xff"', b"[1] 2", b"[" * 100_000):
        assert stream.post(body).status == 400, body[:20]
    assert stream.get().body == b"[]"


def test_a_body_of_another_type_or_for_a_closed_stream_is_not_parsed(server):
    stream = Path(server, "mismatch", JSON)
    text = server.call("POST", stream.path, b"{", TEXT)
    assert text.status == 409
    stream.post(b"1", Stream_Closed="true")
    assert stream.post(b"{").headers["stream-closed"] == "true"
    other = Path(server, "mismatch/text", TEXT)
    assert server.call("POST", other.path, b"{", JSON).status == 409


def test_a_long_stream_is_read_in_capped_pieces_that_join_to_the_whole(server):
    stream = Path(server, "capped", BYTES)
    pieces = [bytes([65 + number]) * 1_500 for number in range(9)]
    for piece in pieces:
        stream.post(piece)
    offset, body, replies = "-1", b"", []
    while not replies or "stream-up-to-date" not in replies[-1].headers:
        replies.append(stream.get(f"?offset={offset}"))
        offset = replies[-1].headers["stream-next-offset"]
        body += replies[-1].body
    assert body == b"".join(pieces)
    assert len(replies) >= 3
    assert "max-age=60" in replies[0].headers["cache-control"]
    assert replies[-1].headers["cache-control"] == "public, no-cache"


def test_an_offset_the_stream_never_issued_is_refused(server):
    stream = Path(server, "beyond", TEXT, b"hello")
    for query in (f"?offset={token(7)}", f"?offset={token(7)}&live=long-poll", f"?offset={token(7)}&live=sse"):
        reply = stream.get(query)
        assert reply.status == 400
        assert reply.headers["stream-next-offset"] == token(1)


def test_every_answer_forbids_sniffing_and_allows_no_other_origin(server):
    for method, path in [("GET", "none"), ("PATCH", "none"), ("GET", "%zz"), ("OPTIONS", "none"), ("GET", "__ds/none")]:
        reply = server.call(method, f"/v1/stream/{path}")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in reply.headers


# --- producers --------------------------------------------------------------------------------------------------------


def x_producer(seq: int, **more: str) -> dict[str, str]:
    return {"X_Producer_Id": "p", "X_Producer_Seq": str(seq), **more}


def producer(seq: int, epoch: int = 0, **more: str) -> dict[str, str]:
    return {"Producer_Id": "p", "Producer_Epoch": str(epoch), "Producer_Seq": str(seq), **more}


def test_the_repeat_of_a_first_batch_is_a_duplicate_and_not_a_restart(server):
    stream = Path(server, "seed", JSON)
    first = stream.post(b"[1,2]", **x_producer(0))
    assert (first.status, first.headers["x-producer-epoch"]) == (201, "1")
    assert first.headers["x-stream-offset"] == first.headers["stream-next-offset"] == token(2)
    assert stream.post(b"[3]", **x_producer(1)).status == 201
    again = stream.post(b"[1,2]", **x_producer(0))
    assert (again.status, again.headers["stream-next-offset"]) == (204, token(2))
    restart = stream.post(b"[4]", **x_producer(0))
    assert (restart.status, restart.headers["x-producer-epoch"]) == (201, "2")
    zombie = stream.post(b"[5]", **x_producer(2, X_Producer_Epoch="1"))
    assert (zombie.status, zombie.headers["x-error"], zombie.headers["x-current-epoch"]) == (403, "stale-epoch", "2")
    gap = stream.post(b"[6]", **x_producer(7))
    assert (gap.status, gap.headers["x-expected-seq"], gap.headers["x-received-seq"]) == (409, "1", "7")
    assert stream.get().body == b"[1,2,3,4]"


def test_a_session_id_distinguishes_a_restart_from_a_repeat(server):
    stream = Path(server, "session", JSON)
    assert stream.post(b"1", **x_producer(0, X_Producer_Session="a")).status == 201
    assert stream.post(b"1", **x_producer(0, X_Producer_Session="a")).status == 204
    restart = stream.post(b"1", **x_producer(0, X_Producer_Session="b"))
    assert (restart.status, restart.headers["x-producer-epoch"]) == (201, "2")
    assert stream.get().body == b"[1,1]"


def test_the_two_dialects_share_one_state_and_exclude_each_other(server):
    stream = Path(server, "dialects", JSON)
    assert stream.post(b"1", **x_producer(0)).status == 201
    assert stream.post(b"2", **producer(1, epoch=1)).status == 200
    assert stream.post(b"2", **x_producer(1)).status == 204
    assert stream.post(b"3", **producer(2, epoch=1), **x_producer(2)).status == 400
    assert stream.get().body == b"[1,2]"


def test_other_bytes_under_an_old_number_are_refused(server):
    stream = Path(server, "digest", TEXT)
    assert stream.post(b"one", **producer(0)).status == 200
    assert stream.post(b"one", **producer(0)).status == 204
    assert stream.post(b"two", **producer(0)).status == 422
    assert stream.get().body == b"one"


def test_a_producer_can_read_its_last_sequence(server):
    stream = Path(server, "resume", JSON)
    assert stream.get("?producer=p").status == 404
    stream.post(b"[1,2]", **producer(0, epoch=3))
    stream.post(b"[3]", **producer(1, epoch=3))
    known = stream.get("?producer=p").json()
    assert (known["epoch"], known["seq"]) == (3, 1)
    assert (known["offset"], known["next_offset"]) == (token(2), token(3))


def test_a_stream_may_allow_gaps_for_producers_that_number_by_themselves(server):
    stream = Path(server, "gaps", {**JSON, "Stream-Producer-Gaps": "allow"})
    assert stream.post(b"1", **producer(17)).status == 200
    assert stream.post(b"2", **producer(40)).status == 200
    assert stream.post(b"2", **producer(40)).status == 204
    assert stream.post(b"9", **producer(39)).status == 204
    assert stream.get().body == b"[1,2]"
    assert server.call("PUT", stream.path, b"", JSON).status == 409


def test_batches_that_arrive_before_their_turn_wait_for_it(server):
    stream = Path(server, "early", JSON)
    statuses: dict[int, int] = {}

    def send(seq: int) -> None:
        statuses[seq] = stream.post(b"%d" % seq, **producer(seq)).status

    late = [threading.Thread(target=send, args=(seq,)) for seq in (4, 3, 2, 1)]
    for thread in late:
        thread.start()
    send(0)
    for thread in late:
        thread.join()
    assert statuses == dict.fromkeys(range(5), 200)
    assert stream.get().body == b"[0,1,2,3,4]"


def test_a_batch_whose_predecessor_never_arrives_gets_the_missing_number(server):
    stream = Path(server, "missing", JSON)
    gap = stream.post(b"1", **producer(1))
    assert (gap.status, gap.headers["producer-expected-seq"], gap.headers["producer-received-seq"]) == (409, "0", "1")


# --- conditions, listing, trimming ------------------------------------------------------------------------------------


def test_an_append_can_require_the_end_it_has_seen(server):
    stream = Path(server, "match", JSON, b"[1]")
    assert stream.post(b"2", If_Match=f'"{token(1)}"').headers["etag"] == f'"{token(2)}"'
    moved = stream.post(b"3", If_Match=token(1))
    assert (moved.status, moved.headers["stream-next-offset"], moved.headers["etag"]) == (
        412,
        token(2),
        f'"{token(2)}"',
    )
    assert stream.post(b"3", If_Match="*").status == 400
    assert stream.post(b"3", If_Match=token(2), **producer(0)).status == 200
    assert stream.post(b"3", If_Match=token(2), **producer(0)).status == 204, "a repeat is recognised at any end"


def test_streams_are_listed_by_prefix_in_pages(server):
    names = [f"listed/{letter}" for letter in "cabde"]
    for name in names:
        Path(server, name, JSON)
    server.call("DELETE", "/v1/stream/listed/d")
    page = server.call("GET", "/v1/streams?prefix=listed/&limit=3").json()
    assert [entry["stream"] for entry in page["streams"]] == ["listed/a", "listed/b", "listed/c"]
    rest = server.call("GET", f"/v1/streams?prefix=listed/&limit=3&after={page['after']}").json()
    assert [entry["stream"] for entry in rest["streams"]] == ["listed/e"]
    assert rest["after"] is None
    assert server.call("GET", "/v1/streams?limit=0").status == 400


def test_a_trimmed_stream_reports_its_new_start(server):
    stream = Path(server, "trimmed", JSON, b"[1,2,3,4]")
    done = server.call("POST", "/v1/streams/trim", {"stream": "trimmed", "before": token(2)})
    assert done.status == 200
    assert stream.get().body == b"[3,4]"
    gone = stream.get(f"?offset={token(1)}")
    assert (gone.status, gone.headers["stream-earliest-offset"]) == (410, token(2))
    assert server.call("HEAD", stream.path).headers["stream-earliest-offset"] == token(2)
    assert server.call("POST", "/v1/streams/trim", {"stream": "trimmed", "before": token(9)}).status == 400
    assert stream.post(b"5").headers["stream-next-offset"] == token(5)


def test_a_partition_of_a_topic_is_read_as_a_json_stream(server):
    server.call("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    for value in ("one", "two"):
        server.call("POST", "/v1/produce", {"topic": "orders", "value": value, "key": "k", "envelope": {"run_id": "r"}})
    values = [
        message for number in (0, 1) for message in server.call("GET", f"/v1/stream/__topics/orders/{number}").json()
    ]
    assert [(message["offset"], message["value"], message["key"]) for message in values] == [
        (0, "one", "k"),
        (1, "two", "k"),
    ]
    assert values[0]["envelope"]["run_id"] == "r"
    assert server.call("GET", "/v1/stream/__topics/orders/2").status == 404
    assert server.call("PUT", "/v1/stream/__topics/orders/0").status == 405
    assert server.call("PUT", "/v1/stream/__topics/else").status == 404


# --- live -------------------------------------------------------------------------------------------------------------


class Events:
    """An SSE connection, read event by event."""

    def __init__(self, server: Server, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self.socket.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            self.head += self.file.readline()

    def next(self) -> tuple[str, str] | None:
        kind, lines = "", []
        for raw in self.file:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line:
                return kind, "\n".join(lines)
        return None

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_readers_at_the_end_get_data_and_the_end_together(server):
    stream = Path(server, "ending", TEXT, b"old")
    events = Events(server, f"{stream.path}?offset=now&live=sse")
    assert json.loads(events.next()[1])["upToDate"] is True
    stream.post(b" new\r\nlines", Stream_Closed="true")
    assert events.next() == ("data", " new\nlines")
    control = json.loads(events.next()[1])
    assert control == {"streamNextOffset": token(2), "streamClosed": True}
    assert events.next() is None
    events.close()


def test_a_partition_of_a_topic_can_be_followed(server):
    server.call("POST", "/v1/topics", {"name": "followed"})
    events = Events(server, "/v1/stream/__topics/followed/0?offset=now&live=sse")
    events.next()
    server.call("POST", "/v1/produce", {"topic": "followed", "value": "hello"})
    assert json.loads(events.next()[1])[0]["value"] == "hello"
    events.close()


def test_a_deleted_stream_ends_its_readers(server):
    stream = Path(server, "deleted", TEXT, b"x")
    events = Events(server, f"{stream.path}?offset=now&live=sse")
    events.next()
    statuses: list[int] = []
    poll = threading.Thread(target=lambda: statuses.append(stream.get(f"?offset={token(1)}&live=long-poll").status))
    poll.start()
    server.call("DELETE", stream.path)
    assert events.next() is None
    poll.join()
    assert statuses == [404]
    events.close()


def test_an_incomplete_body_is_not_appended(server):
    stream = Path(server, "vanished", TEXT)
    for sent in (b"", b"half"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            lines = (f"POST {stream.path} HTTP/1.1", "Host: localhost", "Content-Type: text/plain", "Content-Length: 9")
            client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
    assert stream.post(b"whole").headers["stream-next-offset"] == token(1)
    assert stream.get().body == b"whole"


def test_a_fork_of_a_trimmed_source_reports_its_start(server):
    source = Path(server, "forked/source", JSON, b"[1,2,3]")
    server.call("POST", "/v1/streams/trim", {"stream": "forked/source", "before": token(1)})
    fork = Path(server, "forked/fork", {**JSON, "Stream-Forked-From": source.path})
    fork.post(b"4")
    assert fork.get().body == b"[2,3,4]"
    assert fork.get(f"?offset={token(0)}").status == 410
    assert offset_of(fork.get().headers["stream-next-offset"]) == 4


def test_a_fork_in_the_middle_of_an_append_has_its_first_part_only(server):
    source = Path(server, "cut/source", JSON, b"[1,2,3]")
    fork = Path(server, "cut/fork", {**JSON, "Stream-Forked-From": source.path, "Stream-Fork-Offset": token(2)})
    fork.post(b"[40,50]")
    assert fork.get().body == b"[1,2,40,50]"
    assert source.get().body == b"[1,2,3]"


def test_a_fork_that_was_trimmed_itself_begins_there(server):
    source = Path(server, "own/source", JSON, b"[1]")
    fork = Path(server, "own/fork", {**JSON, "Stream-Forked-From": source.path})
    fork.post(b"[2,3]")
    assert server.call("POST", "/v1/streams/trim", {"stream": "own/fork", "before": token(2)}).status == 200
    assert fork.get().body == b"[3]"
    assert fork.get(f"?offset={token(0)}").headers["stream-earliest-offset"] == token(2)
