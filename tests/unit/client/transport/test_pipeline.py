"""Requests that are sent ahead: their replies are read in order, also when some of them have to be retried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from driftq.client.calls.queue import refusal
from driftq.client.errors import InvalidCall
from driftq.client.transport.http import parse_address
from driftq.client.transport.pipeline import Pipeline
from driftq.client.transport.sansio import Call, PeerHistory, RetryOptions, retrying_call
from driftq.client.transport.sync_transport import Transport

LARGE = 300_000  # received in place


def ok(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


FULL = ok('{"error":"OVERLOADED","message":"try again"}', "429 Too Many Requests")
WRONG = ok('{"error":"INVALID_ARGUMENT","message":"wrong"}', "400 Bad Request")
NONE = b""


@contextmanager
def scripted(*connections: Sequence[bytes]) -> Iterator[tuple[Transport, list[str]]]:
    """A server that answers the requests of each connection with these replies, and closes it after the last one."""
    listener = socket.create_server(("127.0.0.1", 0))
    paths: list[str] = []

    def serve() -> None:
        for replies in connections:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as requests:
                for reply in replies:
                    paths.append(requests.readline().decode().split()[1])
                    while requests.readline().strip():
                        pass
                    connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    transport = Transport(parse_address(f"http://127.0.0.1:{listener.getsockname()[1]}"), RetryOptions(backoff_ms=1))
    try:
        yield transport, paths
    finally:
        transport.close()
        thread.join(30)
        listener.close()


def call(path: str):
    get: Call[str] = Call("GET", path, lambda reply: bytes(reply.body).decode(), refusal=refusal, idempotent=True)
    return retrying_call(get, RetryOptions(backoff_ms=1), PeerHistory())


def test_replies_are_read_in_the_order_of_the_requests():
    with scripted([NONE, ok("one") + ok("x" * LARGE), ok(""), ok("four"), ok("five")]) as (transport, paths):
        pipeline = Pipeline(transport)
        first, second = pipeline.begin(call("/1")), pipeline.begin(call("/2"))
        assert first.finish() == "one"
        third = pipeline.begin(call("/3"))
        assert (second.finish(), third.finish()) == ("x" * LARGE, "")
        assert pipeline.begin(call("/4")).finish() == "four"
        assert transport.execute(call("/5")) == "five", "the connection is in the pool"
    assert paths == ["/1", "/2", "/3", "/4", "/5"]


def test_a_refusal_that_is_retried_does_not_end_when_the_next_one_does():
    with scripted([FULL, ok("two"), ok("one")]) as (transport, paths):
        pipeline = Pipeline(transport)
        first, second = pipeline.begin(call("/1")), pipeline.begin(call("/2"))
        assert not first.has_ended()
        assert second.has_ended()
        assert (second.finish(), first.finish()) == ("two", "one")
    assert paths == ["/1", "/2", "/1"]


def test_requests_on_a_connection_that_breaks_are_sent_again():
    with scripted([ok("one"), NONE, NONE], [ok("two"), ok("three")]) as (transport, paths):
        pipeline = Pipeline(transport)
        begun = [pipeline.begin(call(f"/{number}")) for number in (1, 2, 3)]
        assert [flow.finish() for flow in begun] == ["one", "two", "three"]
    assert paths == ["/1", "/2", "/3", "/2", "/3"]


def test_a_refusal_is_raised_where_the_result_is_asked_for():
    with scripted([WRONG, ok("two")]) as (transport, _):
        pipeline = Pipeline(transport)
        first, second = pipeline.begin(call("/1")), pipeline.begin(call("/2"))
        with pytest.raises(InvalidCall, match="wrong"):
            first.finish()
        assert second.finish() == "two"


def test_a_flow_that_is_abandoned_is_not_retried():
    with scripted([FULL, ok("two")]) as (transport, paths):
        pipeline = Pipeline(transport)
        first, second = pipeline.begin(call("/1")), pipeline.begin(call("/2"))
        assert (first.abandon(), second.abandon()) == (None, "two")
    assert paths == ["/1", "/2"]
