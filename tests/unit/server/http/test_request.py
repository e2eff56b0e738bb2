"""Strict decoding of targets, queries and headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.server.http import BadRequest, Request, query_pairs
from driftq.server.http.request import RequestHead, percent_decoded


def request(target: bytes, fields: dict[bytes, bytes] | None = None) -> Request:
    return Request(RequestHead("GET", target, fields or {}), b"", "127.0.0.1")


@given(st.text())
def test_escaped_text_is_decoded_to_itself(text):
    assert percent_decoded(b"".join(b"%%%02X" % octet for octet in text.encode())) == text


@pytest.mark.parametrize("raw", [b"%", b"%4", b"a%zz", b"%+1", b"% 1", b"%%41", b"%0x"])
def test_a_broken_escape_is_refused(raw):
    with pytest.raises(BadRequest):
        percent_decoded(raw)


@pytest.mark.parametrize("raw", [b"%ff", b"%c0%80", b"%ed%a0%80", b"%f4%90%80%80", b"\xff"])
def test_bytes_that_are_not_utf8_are_refused(raw):
    with pytest.raises(BadRequest):
        percent_decoded(raw)


def test_a_target_is_split_at_the_first_question_mark_and_decoded_lazily():
    received = request(b"/v1/a%20b?x=1?2&x=3&y=%C3%A9+z&flag&&=e")
    assert received.raw_path == b"/v1/a%20b"
    assert received.path == "/v1/a b"
    assert dict(received.query) == {"x": "1?2", "y": "é z", "flag": "", "": "e"}
    assert query_pairs(received.raw_query)[:2] == [("x", "1?2"), ("x", "3")]


def test_a_broken_query_does_not_affect_the_path():
    received = request(b"/ok?x=%zz")
    assert received.path == "/ok"
    with pytest.raises(BadRequest):
        _ = received.query


@pytest.mark.parametrize("path", [b"/%00", b"/a%0ab", b"/%7f", b"/%1b"])
def test_control_characters_in_a_path_are_refused(path):
    with pytest.raises(BadRequest):
        _ = request(path).path


def test_a_value_in_the_query_may_hold_any_character():
    assert request(b"/?v=%00%0a").query["v"] == "\0\n"


def test_more_query_fields_than_allowed_are_refused():
    assert len(query_pairs(b"&".join([b"a=1"] * 1000))) == 1000
    with pytest.raises(BadRequest):
        query_pairs(b"&".join([b"a=1"] * 1001))


def test_headers_and_query_cannot_be_changed_because_requests_share_them():
    received = request(b"/?a=1", {b"host": b"x "})
    assert received.headers["host"] == "x"
    with pytest.raises(TypeError):
        received.headers["host"] = "y"  # type: ignore[index]
    with pytest.raises(TypeError):
        received.query["a"] = "2"  # type: ignore[index]


def test_a_disconnect_calls_back_once_and_a_late_callback_at_once():
    calls = []
    received = request(b"/")
    received.on_gone(lambda: calls.append(1))
    received.mark_gone()
    received.mark_gone()
    received.on_gone(lambda: calls.append(2))
    assert calls == [1, 2]
