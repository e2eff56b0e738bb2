"""The queue over HTTP against a real server process: streams that stay open, restarts, kills, crowds and overload."""

from __future__ import annotations

import http.client
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.server import Server, running
from tests.support.wait import until_now


class Stream:
    """An open `/v1/consume`."""

    def __init__(self, server: Server, query: str, timeout_s: float = 20.0) -> None:
        self._connection = server.connect(timeout_s)
        self._connection.request("GET", f"/v1/consume?{query}")
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def next(self) -> dict[str, object]:
        while True:
            line = self.response.readline()
            assert line, "the stream ended"
            if line.strip():
                message: dict[str, object] = json.loads(line)
                return message

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with running(None, "queue.heartbeat_ms=200") as running_server:
        yield running_server


def produce(server: Server, topic: str, *values: str, **fields: object) -> None:
    messages = [{"value": value, **fields} for value in values]
    reply = server.call("POST", "/v1/produce/batch", {"topic": topic, "messages": messages})
    assert reply.status == 200, reply
    assert reply.json()["failed"] == 0, reply


def test_an_idle_stream_sends_its_headers_at_once_and_newlines_while_nothing_happens(server: Server) -> None:
    server.call("POST", "/v1/topics", {"name": "t"})
    stream = Stream(server, "topic=t&group=g&owner=o")
    assert [stream.response.readline() for _ in range(2)] == [b"\n", b"\n"]
    produce(server, "t", "hello")
    assert stream.next()["value"] == "hello"
    stream.close()


def test_each_message_goes_to_one_consumer_of_a_group_and_to_every_group(server: Server) -> None:
    server.call("POST", "/v1/topics", {"name": "t"})
    streams = [Stream(server, f"topic=t&group=g&owner=o{n}&lease_ms=60000") for n in (1, 2)]
    other = Stream(server, "topic=t&group=other&owner=o")
    received: list[list[object]] = [[], []]

    def collect(number: int) -> None:
        while len(received[number]) < 5:
            received[number].append(streams[number].next()["value"])

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(collect, number) for number in (0, 1)]
        for number in range(10):
            produce(server, "t", str(number))
            assert other.next()["value"] == str(number)
        for reader in readers:
            reader.result(timeout=10)
    assert sorted(received[0] + received[1], key=str) == [str(number) for number in range(10)], (
        "in turn, each message once"
    )
    for stream in (*streams, other):
        stream.close()


def test_a_client_can_read_one_line_disconnect_and_ack_within_the_lease(server: Server) -> None:
    """What command-line users do with curl: the lease outlives the connection."""
    server.call("POST", "/v1/topics", {"name": "t"})
    produce(server, "t", "a")
    stream = Stream(server, "topic=t&group=g&owner=o&lease_ms=60000")
    item = stream.next()
    stream.close()
    ack = {"topic": "t", "group": "g", "owner": "o", "partition": item["partition"], "offset": item["offset"]}
    assert server.call("POST", "/v1/ack", ack).status == 204
    assert server.call("GET", "/v1/topics/t/groups/g").json()["lag"] == 0


def test_an_expired_lease_redelivers_the_message_with_a_reason(server: Server) -> None:
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 10}})
    produce(server, "t", "a")
    stream = Stream(server, "topic=t&group=g&owner=o&lease_ms=150")
    first, second = stream.next(), stream.next()
    assert (first["attempts"], second["attempts"]) == (1, 2)
    assert second["last_error"] == "ack_timeout"
    assert second["token"] != first["token"]
    late = {"topic": "t", "group": "g", "partition": 0, "offset": 0, "token": first["token"]}
    assert server.call("POST", "/v1/ack", late).status == 409
    stream.close()


def test_a_consumer_that_does_not_read_is_given_no_more_than_its_socket_takes() -> None:
    with running(None, "queue.in_flight_max=1000000") as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        for _ in range(20):
            produce(server, "t", *("x" * 10_000 for _ in range(50)))
        stalled = socket.create_connection(("127.0.0.1", server.port))
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.sendall(
            b"GET /v1/consume?topic=t&group=g&owner=o&lease_ms=60000&prefetch=9999 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        held = _steady(lambda: int(server.call("GET", "/v1/topics/t/groups/g").json()["in_flight"]))
        assert 0 < held < 900, "10 MB must not be claimed for a socket that takes a few hundred kilobytes"
        rest = Stream(server, "topic=t&group=g&owner=quick&lease_ms=60000")
        assert rest.next()["offset"] == held, "the other consumer continues after it"
        rest.close()
        stalled.close()


def _steady(measure: object) -> int:
    """The value once it has stopped changing."""
    assert callable(measure)
    last, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < 0.5:
        value = measure()
        if value != last or value <= 0:
            last, since_s = value, time.monotonic()
    return last


def test_a_stop_ends_open_streams_cleanly_within_two_seconds(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "data"))
    server.call("POST", "/v1/topics", {"name": "t"})
    streams = [Stream(server, f"topic=t&group=g&owner=o{n}") for n in range(5)]
    produce(server, "t", "a")
    began_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began_s < 2.0
    for stream in streams:
        stream.response.read()  # a clean end: a reset or a cut chunk would raise
        stream.close()


def test_what_was_acknowledged_survives_kills_under_load(tmp_path: Path) -> None:
    """Five kills while four threads produce with keys and retry: every key once, none of the acknowledged lost."""
    folder = str(tmp_path / "data")
    server = Server(folder)
    port = server.port
    server.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
    acknowledged: dict[str, tuple[int, int]] = {}
    stop = threading.Event()

    def load(worker: int) -> None:
        number = 0
        while not stop.is_set():
            key = f"{worker}-{number}"
            body = json.dumps({"topic": "t", "key": key, "value": key, "envelope": {"idempotency_key": key}})
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                    connection.request("POST", "/v1/produce", body)
                    response = connection.getresponse()
                    reply = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                continue  # unknown: the same key again
            if response.status == 200:
                acknowledged[key] = (reply["partition"], reply["offset"])
                number += 1

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(load, worker) for worker in range(4)]
        for _ in range(5):
            until_now(partial(_more_than, acknowledged, len(acknowledged) + 100), 30)
            server.kill()
            server = Server(folder, port=port)
        stop.set()
        for worker in workers:
            worker.result()
    values: dict[tuple[int, int], str] = {}
    for partition in (0, 1):
        offset = 0
        while True:
            path = f"/v1/topics/t/partitions/{partition}/messages?offset={offset}&limit=1000"
            messages = server.call("GET", path).json()["messages"]
            values |= {(partition, item["offset"]): item["value"] for item in messages}
            if len(messages) < 1000:
                break
            offset = messages[-1]["offset"] + 1
    assert len(set(values.values())) == len(values), "a key was stored twice"
    assert all(values.get(place) == key for key, place in acknowledged.items())
    assert server.stop() == 0


def _more_than(things: dict[str, tuple[int, int]], count: int) -> bool:
    return len(things) > count


def test_leases_attempts_and_acks_survive_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    server = Server(folder)
    server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 20}})
    produce(server, "t", *(str(n) for n in range(5)))
    body = {"topic": "t", "group": "g", "owner": "o", "max": 5, "lease_ms": 60_000}
    token = server.call("POST", "/v1/claim", body).json()["token"]
    held = [{"partition": 0, "offset": offset, "token": token} for offset in (4, 2)]
    assert server.call("POST", "/v1/ack/batch", {"topic": "t", "group": "g", "messages": held}).status == 200
    nack = {"topic": "t", "group": "g", "partition": 0, "offset": 1, "token": token, "reason": "no luck"}
    assert server.call("POST", "/v1/nack", nack).status == 204
    server.kill()
    server = Server(folder)
    group = server.call("GET", "/v1/topics/t/groups/g").json()
    assert (group["lag"], group["in_flight"]) == (3, 2)
    again = server.call("POST", "/v1/claim", {**body, "wait_ms": 5_000}).json()["messages"]
    assert [(item["offset"], item["attempts"], item["last_error"]) for item in again] == [(1, 2, "no luck")]
    late = [{"partition": 0, "offset": offset, "token": token} for offset in (0, 3)]
    reply = server.call("POST", "/v1/ack/batch", {"topic": "t", "group": "g", "messages": late})
    assert reply.json()["refused"] == [], "the consumer that held them before the crash may still finish"
    assert server.stop() == 0


def test_two_thousand_idle_consumers_cost_little_and_delay_no_delivery() -> None:
    with running(None, "listen.connections_max=5000", "queue.heartbeat_ms=60000") as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.call("POST", "/v1/topics", {"name": "busy"})
        before = _resident(server)
        request = b"GET /v1/consume?topic=t&group=g&owner=o HTTP/1.1\r\nHost: localhost\r\n\r\n"
        crowd = []
        for _ in range(2_000):
            idle = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            idle.sendall(request)
            crowd.append(idle)
        for idle in crowd:
            assert idle.recv(16).startswith(b"HTTP/1.1 200")
        bytes_each = (_resident(server) - before) / len(crowd)
        assert bytes_each < 32_768, f"{bytes_each:.0f} bytes for an idle consumer"
        took = []
        for number in range(20):
            began_s = time.monotonic()
            produce(server, "busy", str(number))
            took.append(time.monotonic() - began_s)
        assert sorted(took)[len(took) // 2] < 0.25
        produce(server, "t", "one", "two", "three")
        assert _lines(crowd, 3) == 3, "three messages: three lines in all, whichever consumer got them"
        for idle in crowd:
            idle.close()


def _lines(crowd: list[socket.socket], expected: int) -> int:
    """How many messages arrive at all consumers together: waits for the expected number, then for any too many."""
    count = 0
    with selectors.DefaultSelector() as selector:
        for idle in crowd:
            selector.register(idle, selectors.EVENT_READ)
        deadline_s = time.monotonic() + 10
        while count < expected and time.monotonic() < deadline_s:
            count += sum(key.fileobj.recv(65_536).count(b'"value"') for key, _ in selector.select(0.5))  # type: ignore[union-attr]
        count += sum(key.fileobj.recv(65_536).count(b'"value"') for key, _ in selector.select(0.5))  # type: ignore[union-attr]
    return count


def _resident(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_overload_is_answered_with_429_in_bounded_memory_and_ends_by_itself(tmp_path: Path) -> None:
    """Ten times more than a partition may hold: the excess is refused with a hint, nothing accepted is lost."""
    with running(str(tmp_path / "data"), "limits.partition_messages=500", "limits.partition_bytes=10000000") as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.call("POST", "/v1/claim", {"topic": "t", "group": "g", "owner": "o"})
        before = _resident(server)

        def push(worker: int) -> tuple[int, int]:
            accepted = refused = 0
            connection = server.connect()
            for number in range(500):
                body = json.dumps({"topic": "t", "value": f"{worker}-{number}" + "x" * 1_000})
                connection.request("POST", "/v1/produce", body)
                response = connection.getresponse()
                reply = json.loads(response.read())
                if response.status == 200:
                    accepted += 1
                else:
                    assert (response.status, reply["reason"]) == (429, "partition_buffer_full"), reply
                    assert int(response.getheader("Retry-After", "0")) >= 1
                    refused += 1
            connection.close()
            return accepted, refused

        with ThreadPoolExecutor(10) as pool:
            results = list(pool.map(push, range(10)))
        accepted = sum(result[0] for result in results)
        assert (accepted, sum(result[1] for result in results)) == (500, 4_500)
        assert _resident(server) - before < 64 << 20
        drained = 0
        while drained < accepted:
            body = {"topic": "t", "group": "g", "owner": "o", "max": 100, "wait_ms": 5_000}
            messages = server.call("POST", "/v1/claim", body).json()["messages"]
            assert messages
            held = [{"partition": 0, "offset": item["offset"], "token": item["token"]} for item in messages]
            server.call("POST", "/v1/ack/batch", {"topic": "t", "group": "g", "messages": held})
            drained += len(messages)
        assert server.call("POST", "/v1/produce", {"topic": "t", "value": "again"}).status == 200


def test_a_second_server_on_the_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with running(folder) as server:
        with pytest.raises(AssertionError) as refused:
            Server(folder)
        assert str(server.process.pid) in str(refused.value)


def test_a_server_that_was_suspended_past_a_lease_keeps_one_holder(tmp_path: Path) -> None:
    """SIGSTOP on the server itself, longer than the lease: on waking it still keeps one holder for each message."""
    with running(str(tmp_path / "data")) as server:
        server.call("POST", "/v1/topics", {"name": "t", "retry": {"backoff_ms": 1}})
        produce(server, "t", "a")
        body = {"topic": "t", "group": "g", "owner": "o", "lease_ms": 300}
        token = server.call("POST", "/v1/claim", body).json()["token"]
        server.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(0.6)
        server.process.send_signal(signal.SIGCONT)
        again = server.call("POST", "/v1/claim", {**body, "owner": "p", "wait_ms": 5_000}).json()["messages"]
        assert again[0]["lease_version"] == 2
        late = {"topic": "t", "group": "g", "partition": 0, "offset": 0, "token": token}
        assert server.call("POST", "/v1/ack", late).status == 409
