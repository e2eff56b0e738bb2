"""The table of codes: complete, and read back by the client as the broker meant it."""

from __future__ import annotations

import pytest

from driftq.client.errors import refused
from driftq.wire.errors import CODES, Code, Remedy, code_of, fingerprint, retry_after_s, stream_code_of


def test_every_code_has_a_row_and_an_exception():
    assert set(CODES) == set(Code)
    for code, spec in CODES.items():
        assert refused(code, "no", spec.status).code is code


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.NOT_DELIVERED])
def test_a_code_of_the_queue_api_is_read_back(code):
    assert code_of(CODES[code].error, CODES[code].status) is code


def test_a_message_that_was_not_delivered_is_an_invalid_argument_on_the_wire():
    assert code_of(CODES[Code.NOT_DELIVERED].error, 400) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, Code.NOT_FOUND), (429, Code.OVERLOADED), (502, Code.DATA_CORRUPT), (418, Code.INVALID_ARGUMENT)],
)
def test_an_unknown_word_is_read_by_its_status(status, code):
    assert code_of("<html>", status) is code


@pytest.mark.parametrize(
    "code",
    [Code.INVALID_ARGUMENT, Code.STALE_EPOCH, Code.NOT_FOUND, Code.CONFLICT, Code.GONE, Code.TAIL_MOVED, Code.TOO_LARGE,
     Code.SEQUENCE_MISMATCH, Code.OVERLOADED, Code.DATA_CORRUPT, Code.UNAVAILABLE, Code.DISK_FULL],
)  # fmt: skip
def test_a_code_of_the_streams_api_is_read_back_from_its_status(code):
    assert stream_code_of(CODES[code].stream_status) is code


@pytest.mark.parametrize("code", Code)
def test_a_fault_of_the_server_is_no_fault_of_the_caller_in_any_protocol(code):
    spec = CODES[code]
    assert {status >= 500 for status in (spec.status, spec.stream_status, spec.subscription_status)} == {
        code in (Code.DATA_CORRUPT, Code.UNAVAILABLE, Code.DISK_FULL)
    }


def test_a_code_is_retryable_if_a_retry_is_its_remedy():
    assert {code for code in Code if CODES[code].retryable} == {
        Code.BUSY, Code.SEQUENCE_GAP, Code.OVERLOADED, Code.UNAVAILABLE, Code.DISK_FULL,
    }  # fmt: skip
    assert Code.NOT_OWNER.remedy is Remedy.CLAIM_AGAIN


@pytest.mark.parametrize(("retry_after_ms", "seconds"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2)])
def test_a_retry_after_header_has_whole_seconds_and_never_none(retry_after_ms, seconds):
    assert retry_after_s(retry_after_ms) == seconds


def test_errors_of_one_kind_have_one_fingerprint():
    assert fingerprint("timeout after 30 ms at 'a'\nTraceback") == fingerprint("timeout after 7 ms at 'b'")
    assert fingerprint("timeout") != fingerprint("refused")


def test_a_traceback_is_known_by_its_exception():
    text = 'Traceback (most recent call last):\n  File "a.py", line {}, in f\n{}: no answer from {}\n'
    assert fingerprint(text.format(1, "Timeout", 7)) == fingerprint(text.format(2, "Timeout", 8))
    assert fingerprint(text.format(1, "Timeout", 7)) == "Timeout: no answer from …"
    assert fingerprint(text.format(1, "KeyError", 7)) != fingerprint(text.format(1, "Timeout", 7))
