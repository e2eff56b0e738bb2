"""The words of the streams protocol: tokens, numbers, media types, JSON mode."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.wire import streams as w

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))
def test_tokens_are_ordered_like_their_offsets(one, two):
    assert w.offset_of(w.token(one)) == one
    assert (w.token(one) < w.token(two)) == (one < two)


@pytest.mark.parametrize(
    "text",
    ["", "-1", "now", "0", "1_1", w.token(1) + "\n", " " + w.token(1), w.token(1).replace("0", "０"), w.token(1)[:-1]],
)
def test_anything_else_is_no_token(text):
    assert w.offset_of(text) is None


def test_the_token_of_all_nines_lies_behind_every_other():
    assert w.offset_of("9999999999999999_9999999999999999") > w.offset_of(w.token(10**16 - 1))


@pytest.mark.parametrize("text", ["", "01", "+1", "1.0", "1e3", "-1", " 1", "1\n", "１"])
def test_a_lifetime_is_plain_digits(text):
    assert w.plain_number(text) is None


def test_epochs_stay_within_what_a_double_holds():
    assert w.safe_integer(str(2**53 - 1)) == 2**53 - 1
    assert w.safe_integer(str(2**53)) is None
    assert w.safe_integer("1abc") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [("text/plain", True), ("Text/Plain; charset=utf-8", True), ("text", False), ("a/b\r\n", False), ("/", False)],
)
def test_a_media_type_has_two_halves(given, expected):
    assert w.is_media_type(given) is expected


def split(body: bytes) -> list[bytes]:
    return [bytes(message) for message in w.json_messages(body)]


@given(st.lists(values, min_size=1), st.sampled_from([None, 1]))
def test_an_array_is_cut_one_level_and_joins_to_the_same(messages, indent):
    body = json.dumps(messages, indent=indent).encode()
    cut = split(body)
    assert [json.loads(message) for message in cut] == messages
    assert json.loads(w.join_json(cut)) == messages


@given(values.filter(lambda value: not isinstance(value, list)))
def test_anything_but_an_array_is_one_message(value):
    body = json.dumps(value)
    assert split(f" {body}\n".encode()) == [body.encode()]


def test_half_a_surrogate_pair_survives_as_the_escape_it_was():
    assert split(b'[ "\\ud83d" , {"a":[ 1 ]} ]') == [b'"\\ud83d"', b'{"a":[ 1 ]}']
    assert split(b'["\\ud83d"]') == [b'"\\ud83d"']


@pytest.mark.parametrize(
    "body", [b"", b" ", b"[", b"[1,]", b'["\\ud83d",]', b'["\\ud83d" 1]', b'["\\ud83d"] 1', b"[NaN]", b'"\xff"', b"01"]
)
def test_what_is_not_json_is_refused(body):
    with pytest.raises(w.NotJson):
        w.json_messages(body)


def test_nesting_has_an_end():
    with pytest.raises(w.NotJson):
        w.json_messages(b"[" * 100_000)
    with pytest.raises(w.NotJson):
        w.json_messages(b'{"\\ud83d":' + b"[" * 100_000)


@given(st.lists(values.map(lambda value: json.dumps(value).encode()), max_size=5))
def test_records_that_are_json_each_can_stand_in_a_json_stream(messages):
    w.check_messages(messages)


@pytest.mark.parametrize(
    "messages", [[b"{bad"], [b"1", b""], [b"[1", b"2],3"], [b"1,2"], [b'"\xff"'], [b"1", b"NaN"], [b"1", b"[" * 5_000]]
)
def test_a_record_that_is_not_one_json_value_is_named(messages):
    with pytest.raises(w.NotJson, match=f"record {max(0, len(messages) - 1) if messages[0] == b'1' else 0}"):
        w.check_messages(messages)
