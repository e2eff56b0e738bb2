"""HTTP as bytes: addresses, and requests as they are written."""

from __future__ import annotations

import pytest

from driftq.client import errors
from driftq.client.calls import admin, queue
from driftq.client.transport.http import parse_address, request_bytes


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
