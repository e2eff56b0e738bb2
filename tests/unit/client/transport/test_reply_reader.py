"""Replies parsed: in pieces of any size, in place, without a length, and what is not HTTP."""

from __future__ import annotations

import pytest

from driftq.client import errors
from driftq.client.transport.http import HttpReply
from driftq.client.transport.reply_reader import HEAD_BYTES_MAX, ReplyReader


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_reply_is_parsed_in_pieces_of_any_size(size):
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


def test_a_truncated_reply_is_not_complete():
    reader = ReplyReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
    reader.end()
    assert not reader.complete


@pytest.mark.parametrize("first_bytes", [0, 1, 200_000, 300_000])
def test_a_large_body_is_received_in_place_and_the_next_reply_is_parsed_as_usual(first_bytes):
    body = bytes(range(250)) * 1_200
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 206 OK\r\nContent-Length: 300000\r\n\r\n" + body[:first_bytes])
    at = first_bytes
    while (buffer := reader.body_buffer()) is not None:
        size = min(len(buffer), 70_000)
        buffer[:size] = body[at : at + size]
        reader.body_received(size)
        at += size
    assert (at, reader.complete, reader.keep_alive) == (300_000, True, True)
    assert (reader.reply().status, reader.reply().body) == (206, body)

    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    assert reader.body_buffer() is None
    assert reader.reply() == HttpReply(200, {"content-length": "5"}, b"hello")


def test_a_304_has_no_body_whatever_length_it_announces():
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 300000\r\n\r\n")
    assert (reader.complete, reader.body_buffer()) == (True, None)
    assert reader.reply() == HttpReply(304, {"content-length": "300000"}, b"")


def test_a_truncated_large_body_is_not_complete():
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\nhel")
    reader.body_received(7)
    reader.end()
    assert not reader.complete


@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: 99999999999"])
def test_a_body_without_a_usable_length_is_not_received_in_place(length):
    reader = ReplyReader()
    reader.reset(in_place=True)
    reader.feed(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n3\r\nabc\r\n")
    assert reader.body_buffer() is None
    assert b"abc" in reader.reply().body


def test_a_reply_to_head_has_no_body_and_its_connection_can_be_reused():
    reader = ReplyReader()
    reader.reset(bodiless=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert (reader.complete, reader.keep_alive) == (True, True)
    reader.reset()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
    assert reader.reply().body == b"x"


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_chunks_with_extensions_and_trailers_are_joined(size):
    data = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;name=value\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )
    reader = ReplyReader()
    for at in range(0, len(data), size):
        assert not reader.complete
        reader.feed(data[at : at + size])
    assert (reader.complete, reader.keep_alive, reader.reply().body) == (True, True, b"abc0123456789")


def test_pipelined_replies_in_one_piece_are_parsed_one_after_the_other():
    bodies: list[bytes | bytearray] = []

    class Collector(ReplyReader):
        def on_complete(self) -> None:
            super().on_complete()
            bodies.append(self.reply().body)
            self.reset()

    one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
    none = b"HTTP/1.1 204 No Content\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    Collector().feed(one + none + chunked + one)
    assert bodies == [b"one", b"", b"ok", b"one"]


def test_bytes_after_the_only_reply_end_the_connection():
    reader = ReplyReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n")
    assert (reader.complete, reader.keep_alive, reader.reply().body) == (True, False, b"x")


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive", True),
    ],
)
def test_whether_a_connection_is_kept_is_as_the_head_says(head, kept):
    reader = ReplyReader()
    reader.feed(head + b"\r\n\r\n")
    assert (reader.complete, reader.keep_alive) == (True, kept)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (HEAD_BYTES_MAX + 1),
    ],
)
def test_what_is_not_http_is_an_unknown_outcome(data):
    with pytest.raises(errors.OutcomeUnknown, match="the reply is not HTTP"):
        ReplyReader().feed(data)
