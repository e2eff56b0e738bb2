"""The rules for request heads, and how a connection uses the cache of heads."""

from __future__ import annotations

import pytest

from driftq.server.http import HttpLimits
from driftq.server.http.request import RequestHead
from driftq.server.http.request_head import (
    HEAD_BYTES_MAX,
    HeadCache,
    HeadLookup,
    IncompleteHead,
    RequestRefused,
    check_chunked,
    check_version,
    expects_continue,
    is_cacheable,
    path_of,
)

CHUNKED = {b"transfer-encoding": b"chunked"}


def status_of(check, *arguments) -> int | None:
    try:
        check(*arguments)
    except RequestRefused as refused:
        return refused.status
    return None


def test_repeated_fields_are_joined_unless_only_one_is_allowed():
    head = IncompleteHead(HttpLimits())
    head.add_field(b"Accept", b"a ")
    head.add_field(b"ACCEPT", b"b")
    assert head.fields == {b"accept": b"a, b"}
    head.add_field(b"Host", b"a")
    assert status_of(head.add_field, b"host", b"b") == 400


def test_the_target_is_limited_however_it_is_cut():
    head = IncompleteHead(HttpLimits(target_bytes=4))
    for part in (b"/", b"ab", b"c"):
        head.add_target(part)
    assert status_of(head.add_target, b"d") == 414


@pytest.mark.parametrize(
    ("target", "method", "expected"),
    [
        (b"/a?b", "GET", b"/a?b"),
        (b"*", "OPTIONS", b"*"),
        (b"http://HOST/a?b", "GET", b"/a?b"),
        (b"https://host", "GET", b"/"),
        (b"*", "GET", 400),
        (b"http://other/", "GET", 400),
        (b"http://host?a", "GET", 400),
        (b"ftp://host/", "GET", 400),
        (b"host:80", "CONNECT", 400),
        (b"/a#b", "GET", 400),
    ],
)
def test_a_target_is_a_path_or_a_url_of_this_host(target, method, expected):
    if isinstance(expected, bytes):
        assert path_of(target, method, {b"host": b"host"}) == expected
    else:
        assert status_of(path_of, target, method, {b"host": b"host"}) == expected


def test_only_http_1_is_served_and_1_1_needs_a_host():
    assert status_of(check_version, "1.1", {b"host": b"a"}) is None
    assert status_of(check_version, "1.1", {}) == 400
    assert status_of(check_version, "1.0", {}) is None
    assert status_of(check_version, "2.0", {b"host": b"a"}) == 505


@pytest.mark.parametrize(
    "head",
    [
        RequestHead("POST", b"/", CHUNKED, content_length=3),
        RequestHead("POST", b"/", {b"transfer-encoding": b"gzip, chunked"}),
        RequestHead("POST", b"/", CHUNKED, "1.0"),
        RequestHead("POST", b"/", {**CHUNKED, b"upgrade": b"h2c"}),
    ],
)
def test_a_body_that_two_readers_could_end_differently_is_refused(head):
    assert status_of(check_chunked, RequestHead("POST", b"/", CHUNKED)) is None
    assert status_of(check_chunked, head) == 400


def test_a_client_expects_continue_only_before_a_body():
    fields = {b"expect": b"100-Continue "}
    assert expects_continue(RequestHead("POST", b"/", fields, content_length=3)) is True
    assert expects_continue(RequestHead("POST", b"/", fields, content_length=0)) is False
    assert expects_continue(RequestHead("POST", b"/", fields, "1.0", content_length=3)) is False
    assert status_of(expects_continue, RequestHead("POST", b"/", {b"expect": b"200-ok"})) == 417


def test_only_heads_of_requests_that_keep_the_connection_are_cached():
    cache = HeadCache()
    lookup = HeadLookup(cache)
    lookup.new_bytes = b"GET / HTTP/1.1\r\n\r\n"
    lookup.add(RequestHead("GET", b"/", {}, "1.0"))
    lookup.add(RequestHead("GET", b"/", {}, keep_alive=False))
    assert cache.by_bytes == {}
    head = RequestHead("GET", b"/", {})
    lookup.add(head)
    assert cache.by_bytes == {lookup.new_bytes: head}


def test_a_cacheable_head_is_short_and_begins_with_its_method():
    assert is_cacheable(b"GET /")
    assert not is_cacheable(b"\r\nGET /")
    assert not is_cacheable(b"G" * (HEAD_BYTES_MAX + 1))
