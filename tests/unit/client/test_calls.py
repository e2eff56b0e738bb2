"""Requests as they go out and replies as they are read, without any network."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from driftq.client import errors
from driftq.client.calls import admin, queue, streams
from driftq.client.streams.sse import SseParser
from driftq.client.transport.http import HttpReply, ReplyReader, parse_address, request_bytes
from driftq.wire.effects import CommitRequest, OutcomeAck
from driftq.wire.errors import Code, Remedy
from driftq.wire.message import Envelope, RetryPolicy


def body(call) -> dict:
    return json.loads(call.body)


def refusal(status: int, body: bytes, headers: dict[str, str] | None = None) -> errors.Refused:
    return queue.refusal(HttpReply(status, headers or {}, body))


def test_a_send_says_only_what_was_said():
    call = queue.send("orders", "text", key="k")
    assert (call.method, call.path, body(call)) == (
        "POST",
        "/v1/produce",
        {"topic": "orders", "value": "text", "key": "k"},
    )


def test_the_words_of_an_envelope_go_over_an_envelope():
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    call = queue.send(
        "t",
        b"\xff",
        envelope=Envelope(run_id="r", tenant_id="old"),
        tenant="new",
        deadline=at,
        retry=RetryPolicy(3, 10),
    )
    assert body(call) == {
        "topic": "t",
        "value_base64": "/w==",
        "partition": "any",
        "envelope": {
            "run_id": "r",
            "tenant_id": "new",
            "deadline": "2030-01-02T03:04:05.000+00:00",
            "retry_policy": {"max_attempts": 3, "backoff_ms": 10},
        },
    }
    with pytest.raises(errors.InvalidCall):
        queue.send("t", "x", deadline=datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("call", "idempotent"),
    [
        (queue.send("t", "x"), False),
        (queue.send("t", "x", idempotency_key="k"), True),
        (queue.send("t", "x", id="job"), True),
        (queue.send_many("t", ["a", "b"]), False),
        (queue.send_many("t", [queue.item("a", id="1")]), True),
        (queue.send_packed("t", 0, b"", has_producer=True), True),
        (queue.claim("t", "g", "o"), True),
        (queue.outcome(produce=[("t", queue.item("a"))]), False),
        (queue.outcome(produce=[("t", queue.item("a", idempotency_key="k"))]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], acks=[OutcomeAck("t", "g", [])]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], commits=[CommitRequest("t", "g", "k", fence=1)]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], idempotency_key="k"), True),
        (queue.begin_effect("t", "g", "k", "o"), False),
        (queue.begin_effect("t", "g", "k", "o", token="t1"), True),
        (admin.create_topic("t"), True),
        (streams.append("p", b"x", "text/plain"), False),
        (streams.append("p", b"x", "text/plain", if_match="0_1"), False),
        (streams.append("p", b"x", "text/plain", producer=("p", 0, 0)), True),
        (streams.append("p", b"", "", close=True), True),
    ],
    ids=lambda value: value.path if hasattr(value, "path") else str(value),
)
def test_only_what_twice_is_as_good_as_once_is_repeatable(call, idempotent):
    assert call.idempotent is idempotent


def test_a_name_cannot_leave_its_place_in_the_path():
    assert admin.describe_topic("a/b?c").path == "/v1/topics/a%2Fb%3Fc"
    assert streams.read("a b/c?d").path.startswith("/v1/stream/a%20b/c%3Fd?")


def test_a_claim_allows_the_broker_its_wait():
    assert queue.claim("t", "g", "o", wait_ms=20_000).wait_ms == 20_000


@pytest.mark.parametrize(
    ("status", "word", "kind", "retryable"),
    [
        (400, "INVALID_ARGUMENT", errors.InvalidCall, False),
        (404, "NOT_FOUND", errors.NotFound, False),
        (409, "FAILED_PRECONDITION", errors.LeaseLost, False),
        (409, "SEQUENCE_GAP", errors.SequenceGap, True),
        (409, "BUSY", errors.Busy, True),
        (410, "GONE", errors.Gone, False),
        (413, "TOO_LARGE", errors.TooLarge, False),
        (429, "RESOURCE_EXHAUSTED", errors.Overloaded, True),
        (503, "UNAVAILABLE", errors.Unavailable, True),
        (507, "DISK_FULL", errors.Unavailable, True),
        (401, "UNAUTHENTICATED", errors.NotAllowed, False),
        (500, "INTERNAL", errors.ServerFailed, False),
        (502, "", errors.ServerFailed, False),
        (404, "", errors.NotFound, False),
    ],
)
def test_every_refusal_becomes_the_exception_that_says_what_to_do(status, word, kind, retryable):
    error = refusal(status, json.dumps({"error": word, "message": "so"}).encode())
    assert type(error) is kind
    assert error.retryable is retryable
    assert (error.status, error.message) == (status, "so")
    assert error.remedy in Remedy


def test_a_code_of_the_wire_always_has_an_exception():
    for code in Code:
        assert isinstance(errors.refused(code, "so", 409), errors.Refused)


def test_what_stands_between_may_answer_with_anything():
    error = refusal(502, b"<html>bad gateway</html>")
    assert isinstance(error, errors.ServerFailed)
    assert "bad gateway" in error.message
    assert refusal(503, b"").message == "no reason given"


def test_a_pause_is_read_from_the_body_the_seconds_or_the_date():
    assert refusal(429, b'{"error":"RESOURCE_EXHAUSTED","message":"m","retry_after_ms":250}').retry_after_ms == 250
    assert refusal(503, b"", {"retry-after": "2"}).retry_after_ms == 2_000
    late = refusal(503, b"", {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert late.retry_after_ms == 0
    assert refusal(503, b"", {"retry-after": "soon"}).retry_after_ms is None


def test_the_refusals_of_streams_are_in_their_headers():
    gap = streams.refusal(HttpReply(409, {"producer-expected-seq": "4", "producer-received-seq": "6"}, b"gap"))
    assert isinstance(gap, errors.SequenceGap)
    assert gap.expected_seq == 4
    stale = streams.refusal(HttpReply(403, {"producer-epoch": "7"}, b"stale"))
    assert isinstance(stale, errors.StaleEpoch)
    assert stale.epoch == 7
    closed = streams.refusal(
        HttpReply(409, {"stream-closed": "true", "producer-expected-seq": "3", "stream-next-offset": "x"}, b"closed")
    )
    assert isinstance(closed, errors.StreamClosed)
    moved = streams.refusal(HttpReply(412, {"stream-next-offset": "0_5"}, b"moved"))
    assert isinstance(moved, errors.TailMoved)
    assert moved.offset == "0_5"


def test_a_request_is_the_bytes_that_the_protocol_wants():
    address = parse_address("http://:secret@example.org:81/base/")
    text = request_bytes(address, queue.send("t", "x")).decode()
    head, _, content = text.partition("\r\n\r\n")
    assert head.splitlines() == [
        "POST /base/v1/produce HTTP/1.1",
        f"Content-Length: {len(content)}",
        "Content-Type: application/json",
        "Host: example.org:81",
        "User-Agent: driftq-python/1",
        "Authorization: Bearer secret",
    ]
    assert b"Content-Length: 0" in request_bytes(address, admin.pause_group("t", "g"))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises((errors.InvalidCall, ValueError)):
        parse_address(url)


def test_a_token_cannot_bring_headers_with_it():
    with pytest.raises(errors.InvalidCall):
        parse_address("http://x", "a\r\nX-Evil: 1")


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_reply_is_whole_however_it_arrives(size):
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: a\r\n\r\nhello"
    reader = ReplyReader()
    for at in range(0, len(data), size):
        assert not reader.complete
        reader.feed(data[at : at + size])
    assert reader.complete
    assert reader.keep_alive
    assert reader.reply() == HttpReply(200, {"content-length": "5", "x-one": "a"}, b"hello")


def test_a_reply_without_a_length_ends_with_its_connection():
    reader = ReplyReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhel")
    assert not reader.complete
    reader.feed(b"lo")
    reader.end()
    assert reader.complete
    assert not reader.keep_alive
    assert reader.reply().body == b"hello"


def test_a_cut_reply_is_not_whole():
    reader = ReplyReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
    reader.end()
    assert not reader.complete


@pytest.mark.parametrize("seen", [0, 1, 200_000, 300_000])
def test_a_long_body_is_received_in_place_and_the_next_reply_is_read_as_ever(seen):
    body = bytes(range(250)) * 1_200
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 206 OK\r\nContent-Length: 300000\r\n\r\n" + body[:seen])
    at = seen
    while (room := reader.body_buffer()) is not None:
        size = min(len(room), 70_000)
        room[:size] = body[at : at + size]
        reader.body_received(size)
        at += size
    assert (at, reader.complete, reader.keep_alive) == (300_000, True, True)
    assert (reader.reply().status, reader.reply().body) == (206, body)

    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    assert reader.body_buffer() is None
    assert reader.reply() == HttpReply(200, {"content-length": "5"}, b"hello")


def test_a_status_without_a_body_has_none_whatever_length_it_speaks_of():
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 300000\r\n\r\n")
    assert (reader.complete, reader.body_buffer()) == (True, None)
    assert reader.reply() == HttpReply(304, {"content-length": "300000"}, b"")


def test_a_long_body_that_is_cut_off_is_not_whole():
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\nhel")
    reader.body_received(7)
    reader.end()
    assert not reader.complete


@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: 99999999999"])
def test_a_body_without_a_length_that_can_be_trusted_is_read_piece_by_piece(length):
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n3\r\nabc\r\n")
    assert reader.body_buffer() is None
    assert b"abc" in reader.reply().body


def test_an_answer_to_head_has_no_body_and_ends_the_connection():
    reader = ReplyReader()
    reader.reset(bodiless=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert reader.complete
    assert not reader.keep_alive


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_events_are_found_however_they_arrive(size):
    text = b"event: data\r\ndata:one\r\ndata: two\r\n\r\n: a comment\n\nevent: control\ndata:{}\n\ndata:last\n\n"
    events = SseParser()
    found = [event for at in range(0, len(text), size) for event in events.feed(text[at : at + size])]
    assert [(event.name, event.data) for event in found] == [
        ("data", b"one\ntwo"),
        ("control", b"{}"),
        ("message", b"last"),
    ]
