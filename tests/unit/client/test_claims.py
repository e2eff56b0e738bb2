"""Claimed messages: how an attempt ends, how calls name messages, and how prefetched ones keep their leases."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from driftq.client import errors
from driftq.client.claims import (
    ACK,
    CLAIM_ACKS_MAX,
    REASON_CHARACTERS_MAX,
    RENEW_S,
    RESULTS_BYTES_MAX,
    LeaseHolder,
    PrefetchBuffer,
    Reject,
    Release,
    Retry,
    SettleAction,
    acks_of_claim,
    error_summary,
    results_too_large,
    settle,
    settle_one,
    settle_parts,
    settlement_for,
    token_ranges,
)
from driftq.client.errors import Busy
from driftq.client.transport.http import HttpReply
from driftq.wire.claims import Delivered, RefusedItem, SettleReply


@pytest.mark.parametrize(
    ("error", "settlement"),
    [
        (None, ACK),
        (Retry(), SettleAction("nack/batch", "retry")),
        (Retry(after_ms=500, reason="later"), SettleAction("nack/batch", "later", 500)),
        (Reject("bad"), SettleAction("reject", "bad")),
        (Release(after_ms=7), SettleAction("release", delay_ms=7)),
        (Busy("held", retry_after_ms=900), SettleAction("release", delay_ms=900)),
        (ValueError("no"), SettleAction("nack/batch", "ValueError: no")),
        (KeyError(), SettleAction("nack/batch", "KeyError")),
    ],
)
def test_what_a_handler_raises_decides_the_settlement(error, settlement):
    assert settlement_for(error) == settlement


@pytest.mark.parametrize(
    ("settlement", "fields"),
    [
        (ACK, {}),
        (SettleAction("nack/batch", "why", 5), {"reason": "why", "delay_ms": 5}),
        (SettleAction("release", "ignored", 5), {"delay_ms": 5}),
        (SettleAction("reject", "why"), {"reason": "why"}),
    ],
)
def test_a_call_has_only_the_fields_of_its_verb(settlement, fields):
    assert settlement.fields() == fields


def test_a_long_error_is_shortened():
    summary = error_summary(RuntimeError("x" * 10_000))
    assert len(summary) == REASON_CHARACTERS_MAX
    assert summary.endswith("…")


class Claimed(NamedTuple):
    holder: LeaseHolder
    delivered: Delivered
    result_json: bytes = b""
    progress_json: bytes = b""

    @property
    def partition(self) -> int:
        return self.delivered.partition

    @property
    def offset(self) -> int:
        return self.delivered.offset

    @property
    def token(self) -> str:
        return self.delivered.token


def claimed(partition: int, offset: int, token: str = "t") -> Claimed:
    return Claimed(LeaseHolder("orders", "billing", "me"), Delivered(partition, offset, token=token))


def ranges(*messages: Claimed) -> list[tuple[int, int, int | None, str]]:
    body = json.loads(settle("ack/batch", messages).body)
    return [(item["partition"], item["offset"], item["end"], item["token"]) for item in body["messages"]]


def test_neighbours_under_one_token_are_one_range():
    assert ranges(claimed(0, 3), claimed(0, 4), claimed(0, 5)) == [(0, 3, 6, "t")]


def test_another_partition_token_or_gap_begins_a_new_range():
    messages = [claimed(0, 3), claimed(1, 4), claimed(1, 6), claimed(1, 7, "u"), claimed(1, 8, "u")]
    assert ranges(*messages) == [(0, 3, 4, "t"), (1, 4, 5, "t"), (1, 6, 7, "t"), (1, 7, 9, "u")]
    assert token_ranges([]) == []


def test_a_message_with_a_result_or_a_progress_is_named_by_itself():
    messages = [claimed(0, 3), claimed(0, 4)._replace(result_json=b"[7]", progress_json=b"0.5"), claimed(0, 5)]
    (first, second, third) = json.loads(settle("ack/batch", messages).body)["messages"]
    assert second == {"partition": 0, "offset": 4, "token": "t", "result": [7]}
    assert (first["end"], third["offset"]) == (4, 5)
    (_, reported, _) = json.loads(settle("extend", messages).body)["messages"]
    assert reported["progress"] == 0.5
    assert "result" not in reported
    assert len(token_ranges(messages)) == 1


def test_a_claim_acks_a_limited_number_of_messages_with_results_of_a_limited_size():
    plain = [claimed(0, offset) for offset in range(CLAIM_ACKS_MAX + 5)]
    assert acks_of_claim(plain) == plain[:CLAIM_ACKS_MAX]
    large = [message._replace(result_json=b"7" * (RESULTS_BYTES_MAX // 2)) for message in plain[:3]]
    assert acks_of_claim(large) == large[:2]
    assert list(settle_parts([*large, plain[0]], 100)) == [large[:2], [large[2], plain[0]]]
    assert list(settle_parts(plain[:5], 2)) == [plain[:2], plain[2:4], plain[4:5]]


def test_an_ack_that_is_refused_because_of_its_result_names_its_message():
    messages = [claimed(0, 3), claimed(0, 4)]
    refused = [RefusedItem(0, 3, "FAILED_PRECONDITION", "lost"), RefusedItem(0, 4, "TOO_LARGE", "too large")]
    assert results_too_large(messages, refused) == {messages[1]: "too large"}


def test_the_traceback_of_an_error_that_was_raised_is_sent():
    try:
        raise ValueError("no")
    except ValueError as error:
        settlement = settlement_for(error)
    assert settlement.traceback.splitlines()[-1] == "ValueError: no"
    assert "test_claims.py" in settlement.traceback
    assert settlement.fields()["traceback"] == settlement.traceback


def test_settling_one_message_raises_its_refusal():
    settled: list[bool] = []
    call = settle_one("ack/batch", claimed(0, 1), lambda: settled.append(True))
    refused = b'{"refused":[{"partition":0,"offset":1,"error":"FAILED_PRECONDITION","message":"lost"}]}'
    with pytest.raises(errors.LeaseLost, match="lost"):
        call.read(HttpReply(200, {}, refused))
    assert not settled
    call.read(HttpReply(200, {}, b'{"refused":[]}'))
    assert settled


def test_waiting_messages_are_extended_in_time():
    buffer = PrefetchBuffer([claimed(0, offset) for offset in range(3)], lease_ms=None, now_s=10.0)
    assert not buffer.is_due(10.0 + RENEW_S / 2)
    assert buffer.is_due(10.0 + RENEW_S)
    short = PrefetchBuffer([claimed(0, 0)], lease_ms=300, now_s=10.0)
    assert not short.is_due(10.05)
    assert short.is_due(10.2)


def test_lost_messages_are_not_handed_out():
    buffer = PrefetchBuffer([claimed(0, offset) for offset in range(3)], lease_ms=1_000, now_s=0.0)
    assert buffer.next().delivered.offset == 0
    buffer.renewed(SettleReply([RefusedItem(0, 1, "FAILED_PRECONDITION", "lost")]), 5.0)
    assert [message.delivered.offset for message in buffer.waiting] == [2]
    assert not buffer.is_due(5.1)
    buffer.next()
    assert not buffer.is_due(100.0)
