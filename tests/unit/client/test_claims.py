"""Claimed messages: how an attempt ends, how calls name messages, and how prefetched ones keep their leases."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from driftq.client import errors
from driftq.client.claims import (
    ACK,
    REASON_CHARACTERS_MAX,
    RENEW_S,
    LeaseHolder,
    PrefetchBuffer,
    Reject,
    Release,
    Retry,
    SettleAction,
    error_summary,
    settle,
    settle_one,
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
