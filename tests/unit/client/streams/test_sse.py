"""Server-sent events: bytes in, chunks of a stream out."""

from __future__ import annotations

import base64

import pytest

from driftq.client.streams.sse import SseFollower, SseParser, join_parts

JSON = "application/json"


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_events_are_parsed_in_pieces_of_any_size(size):
    text = b"event: data\r\ndata:one\r\ndata: two\r\n\r\n: a comment\n\nevent: control\ndata:{}\n\ndata:last\n\n"
    events = SseParser()
    parsed = [event for at in range(0, len(text), size) for event in events.feed(text[at : at + size])]
    assert [(event.name, event.data) for event in parsed] == [
        ("data", b"one\ntwo"),
        ("control", b"{}"),
        ("message", b"last"),
    ]


def control(offset: str, fields: str = "") -> bytes:
    return f'event: control\ndata:{{"streamNextOffset":"{offset}"{fields}}}\n\n'.encode()


def test_a_chunk_is_complete_with_its_control_event():
    follower = SseFollower("0", "text/plain")
    assert list(follower.feed(b"event: data\ndata:one\n\n")) == []
    (chunk,) = follower.feed(control("1", ',"upToDate":true'))
    assert (chunk.data, chunk.next_offset, chunk.up_to_date, chunk.closed) == (b"one", "1", True, False)
    assert list(follower.feed(control("1", ',"streamClosed":true'))) == []
    assert follower.closed


def test_an_incomplete_chunk_is_forgotten_on_a_new_connection():
    follower = SseFollower("0", "text/plain")
    assert list(follower.feed(b"event: data\ndata:one\n\nevent: da")) == []
    follower.connected({})
    (chunk,) = follower.feed(b"event: data\ndata:one\n\n" + control("1"))
    assert chunk.data == b"one"


def test_binary_data_is_sent_as_base64():
    follower = SseFollower("0", "application/octet-stream")
    follower.connected({"stream-sse-data-encoding": "base64"})
    data = base64.b64encode(b"\x00\n\xff")
    (chunk,) = follower.feed(b"event: data\ndata:" + data + b"\n\n" + control("1"))
    assert chunk.data == b"\x00\n\xff"


def test_json_arrays_are_joined_to_one():
    assert join_parts(JSON, [b'[{"n":1}]', b"[]", b' [2, "x"] ']) == b'[{"n":1},2, "x"]'
    assert join_parts(JSON, []) == b"[]"
    assert join_parts("text/plain", [b"a", b"b"]) == b"ab"
