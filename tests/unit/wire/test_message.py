"""Heads of records: what rides beside key and value, and what happens to text that is none."""

from __future__ import annotations

import msgspec
import pytest

from driftq.wire.message import (
    DeadLetter,
    Envelope,
    Head,
    Job,
    RetryPolicy,
    Routing,
    decode_head,
    encode_head,
    read_head,
)

LETTER = DeadLetter("t", 0, 7, "g", 3, 1, "boom", "max_attempts", "2023-11-14T22:13:20.000+00:00")
FULL = Head(
    Envelope(
        "r", "s", "p", "acme", "k", "other", 3, "2030-01-01T00:00:00Z", RetryPolicy(3, 100, 1000, "full"), {"a": "b"}
    ),
    Routing("label", {"source": "router"}),
    Job("id", "mail", 5, 10, 20),
    LETTER,
)  # fmt: skip


def test_a_head_comes_back_as_it_was():
    assert decode_head(encode_head(FULL)) == FULL


def test_an_empty_head_costs_nothing():
    assert encode_head(Head()) == b""
    assert decode_head(b"") == Head()


def test_defaults_are_left_out_but_not_from_dead_letters():
    assert encode_head(Head(job=Job(task="mail"))) == b'{"job":{"task":"mail"}}'
    zero = msgspec.structs.replace(LETTER, lease_losses=0, last_error="")
    assert msgspec.json.decode(encode_head(Head(dlq=zero)))["dlq"]["lease_losses"] == 0


@pytest.mark.parametrize("text", [b"{", b"[]", b'"x"', b'{"envelope": 3}', b'{"envelope": {"unknown": 1}}', b"\xff"])
def test_text_that_is_no_head_is_an_error_for_writers_and_nothing_for_readers(text):
    with pytest.raises(msgspec.MsgspecError):
        decode_head(text)
    assert read_head(text) == Head()


def test_text_nested_without_end_is_no_head():
    assert read_head(b'{"x":' + b"[" * 100_000) == Head()


def test_a_policy_says_nothing_by_default():
    assert RetryPolicy() == RetryPolicy(max_attempts=0, backoff_ms=0, max_backoff_ms=0, jitter="none")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"jitter": "wild"}, RetryPolicy)
