"""HTTP as bytes: requests written, replies parsed."""

from __future__ import annotations

import pytest

from driftq.client import errors
from driftq.client.calls import admin, queue
from driftq.client.transport.http import HttpReply, ReplyReader, parse_address, request_bytes


def test_a_request_as_bytes():
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
def test_an_invalid_address_is_refused(url):
    with pytest.raises((errors.InvalidCall, ValueError)):
        parse_address(url)


def test_a_token_cannot_inject_headers():
    with pytest.raises(errors.InvalidCall):
        parse_address("http://x", "a\r\nX-Evil: 1")


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


def test_a_reply_to_head_has_no_body_and_its_connection_is_not_reused():
    reader = ReplyReader()
    reader.reset(bodiless=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert reader.complete
    assert not reader.keep_alive
