"""What a response head may contain."""

from __future__ import annotations

import pytest

from driftq.server.http import Response
from driftq.server.http.response import length_head, prefix


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb", "a\0b", "\x7f", "\x1b", "€"])
def test_nothing_that_could_end_a_line_gets_into_a_header(value):
    with pytest.raises(ValueError, match="header value"):
        Response(200, b"", headers=[("X-Test", value)])
    with pytest.raises(ValueError, match="header value"):
        Response(200, b"x", content_type=value)


@pytest.mark.parametrize("name", ["", "X Y", "X:", "X\r\n", "Ä"])
def test_only_tokens_are_header_names(name):
    with pytest.raises(ValueError, match="header name"):
        Response(200, headers=[(name, "v")])


@pytest.mark.parametrize(
    "name", ["Content-Length", "content-length", "Transfer-Encoding", "Connection", "Date", "Content-Type"]
)
def test_a_handler_cannot_set_the_headers_of_the_connection(name):
    with pytest.raises(ValueError, match="itself"):
        Response(200, headers=[(name, "1")])


def test_a_header_given_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        Response(200, headers=[("ETag", "1"), ("etag", "2")])


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_body_have_neither_body_nor_length_nor_type(status):
    with pytest.raises(ValueError, match="no body"):
        Response(status, b"x")
    head = length_head(Response(status, headers=[("ETag", '"1"')]), b"", b"")
    assert head.endswith(b'\r\nETag: "1"\r\n\r\n')
    assert b"Content-" not in head


def test_an_empty_body_has_a_length_of_zero():
    assert b"Content-Length: 0\r\n" in length_head(Response(200), b"", b"")


def test_a_list_of_buffers_counts_as_its_sum():
    assert Response(200, [b"ab", memoryview(b"cde"), bytearray(b"f")]).size_bytes() == 6


def test_the_cache_of_content_types_is_bounded():
    from driftq.server.http import response

    for number in range(5_000):
        prefix(200, f"text/x-{number}")
    assert len(response._PREFIXES) <= response._PREFIXES_MAX
