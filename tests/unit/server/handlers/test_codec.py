"""Requests as typed bodies: JSON if there is a body, else query parameters, with the same bounds."""

from __future__ import annotations

import re

import pytest

from driftq.server.handlers.codec import any_of, number, page_cursor, page_limit, read, read_json, start_of
from driftq.server.http import BadRequest, Request
from driftq.server.http.request import RequestHead
from driftq.wire.claims import ClaimRequest, NackRequest
from driftq.wire.produce import ProduceRequest
from driftq.wire.topics import TopicRequest


def request(query: str = "", body: bytes = b"") -> Request:
    return Request(RequestHead("POST", b"/v1/x" + (f"?{query}".encode() if query else b""), {}), body, "127.0.0.1")


def test_a_body_and_a_query_give_the_same_request():
    in_body = read(request(body=b'{"topic":"t","group":"g","owner":"o","max":5}'), ClaimRequest, frozenset({"max"}))
    in_query = read(request("topic=t&group=g&owner=o&max=5&unknown=1"), ClaimRequest, frozenset({"max"}))
    assert in_body == in_query == ClaimRequest("t", "g", "o", 5)


def test_aliases_and_flags_are_read_from_a_query():
    assert read(request("error=boom"), NackRequest, frozenset(), {"error": "reason"}).reason == "boom"
    assert read(request("history=true"), TopicRequest, frozenset(), flags=frozenset({"history"})).history is True


@pytest.mark.parametrize("query", ["topic=t&group=g&owner=o&max=0", "topic=t&group=g&owner=o&max=x", "topic=t"])
def test_a_query_has_the_bounds_of_the_body(query):
    with pytest.raises(BadRequest):
        read(request(query), ClaimRequest, frozenset({"max"}))


@pytest.mark.parametrize("body", [b"", b"{", b'{"topic":1}', b'{"unknown":1}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_the_request_is_refused(body):
    with pytest.raises(BadRequest, match="invalid json body"):
        read_json(body, ClaimRequest)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "٣", "9" * 17])
def test_a_number_has_digits_only(text):
    with pytest.raises(BadRequest):
        number("offset", text)


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_a_page_has_a_limit(limit):
    assert page_limit(request()) == 100
    assert page_limit(request("limit=1000")) == 1_000
    with pytest.raises(BadRequest):
        page_limit(request(f"limit={limit}"))


def test_a_group_starts_at_an_end_or_at_a_time():
    assert [start_of("earliest"), start_of("latest"), start_of("1970-01-01T00:00:01Z")] == ["earliest", "latest", 1_000]
    with pytest.raises(BadRequest):
        start_of("soon")


def test_a_partition_of_a_batch_is_any_or_none():
    assert (any_of(None), any_of("any")) == (None, "any")
    with pytest.raises(BadRequest):
        any_of("3")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'{"topic":"t","values":"x"}', "unknown field `values`; did you mean value?"),
        (
            b'{"topic":"t","envelope":{"tenant":"a"}}',
            "unknown field `tenant` - at `$.envelope`; did you mean tenant_id?",
        ),
        (b'{"topic":"t","envelope":{"retry_policy":{"backof_ms":1}}}', "did you mean backoff_ms?"),
        (b'{"topic":"t","retention":1}', "unknown field `retention`"),
        (b'{"topic":"t","qqqq":1}', "unknown field `qqqq`"),
        (b'{"topic":"t","envelope":{"qqqq":1}}', "unknown field `qqqq` - at `$.envelope`"),
        (b'{"topic":"t","' + b"v" * 100_000 + b'":1}', "`"),
        (b'{"topic":"\xff"}', "invalid json body: it is not UTF-8"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_one_that_was_meant(body, hint):
    with pytest.raises(BadRequest) as refused:
        read_json(body, ProduceRequest)
    assert refused.value.message.endswith(hint)


@pytest.mark.parametrize("after", ["x", "1", "1:", ":1", "-1:1", "1:2:3", "٣:1"])
def test_a_cursor_that_no_page_gave_is_refused(after):
    place = re.compile("([0-9]+):([0-9]+)", re.ASCII)
    assert page_cursor(place, "") is None
    assert page_cursor(place, "1:2").groups() == ("1", "2")
    with pytest.raises(BadRequest, match="use that of the page before"):
        page_cursor(place, after)
