"""Batches of claims: what is acked with the next claim, and in how many calls, by what the broker understands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driftq.client.calls.queue import refusal
from driftq.client.claims import Claiming, LeaseHolder, claim_flow
from driftq.client.errors import InvalidCall
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import Exchange, FlowResult, PeerHistory, RetryOptions, resume, start
from driftq.wire.claims import HeldItem
from driftq.wire.packed_claim import CLAIM_TYPE, PackedClaimHead, PackedRun, pack_claim
from driftq.wire.records import Record, pack, stamp

CLAIMING = Claiming(LeaseHolder("orders", "billing", "me"), 10)
ACKS = [HeldItem(0, 3, 5, "t1")]


def in_json(**body: object) -> HttpReply:
    return HttpReply(200, {"content-type": "application/json"}, json.dumps(body).encode())


def in_packed() -> HttpReply:
    batch = stamp(pack([Record(b"a"), Record(b"b")]), 5, 0)
    body = pack_claim(PackedClaimHead("t2", [PackedRun(0, 5, 7, 1, 1, 99, len(batch))]), [batch])
    return HttpReply(200, {"content-type": CLAIM_TYPE}, body)


CLAIMED = in_json(messages=[], token="", lease_until="")
SETTLED = in_json(refused=[{"partition": 0, "offset": 3, "error": "FAILED_PRECONDITION", "message": "lost"}])
UNKNOWN_FIELD = HttpReply(400, {}, b'{"error":"INVALID_ARGUMENT","message":"unknown field `acks`"}')


def run(peer: PeerHistory, *replies: HttpReply, wait_ms: int = 500) -> tuple[list[tuple[str, dict[str, Any]]], Any]:
    """The calls that a flow makes, and what it returns."""
    flow = claim_flow(CLAIMING, wait_ms, ACKS, RetryOptions(), peer)
    calls = []
    step = start(flow)
    for reply in replies:
        assert isinstance(step, Exchange)
        calls.append((step.call.path, json.loads(step.call.body)))
        step = resume(flow, reply)
    assert isinstance(step, FlowResult)
    return calls, step.value


def test_an_older_broker_gets_the_acks_in_a_call_of_their_own():
    peer = PeerHistory()
    calls, result = run(peer, SETTLED, CLAIMED)
    assert [path for path, _ in calls] == ["/v1/ack/batch", "/v1/claim"]
    assert calls[0][1]["messages"] == [{"partition": 0, "offset": 3, "end": 5, "token": "t1"}]
    assert "acks" not in calls[1][1]
    assert "wait_ms" not in calls[1][1], "the caller must learn which acks were refused"
    assert [refused.offset for refused in result.refused] == [3]
    assert not peer.takes_acks


def test_a_broker_that_packs_claims_gets_the_acks_with_the_claim():
    peer = PeerHistory()
    run(peer, SETTLED, in_packed())
    assert peer.takes_acks
    calls, result = run(peer, in_packed())
    assert [path for path, _ in calls] == ["/v1/claim"]
    assert calls[0][1]["acks"] == [{"partition": 0, "offset": 3, "end": 5, "token": "t1"}]
    assert [run.held() for run in result.runs] == [HeldItem(0, 5, 7, "t2")]


def test_a_broker_that_was_replaced_by_an_older_one_gets_two_calls_again():
    peer = PeerHistory()
    peer.takes_acks = True
    calls, _ = run(peer, UNKNOWN_FIELD, SETTLED, CLAIMED)
    assert [path for path, _ in calls] == ["/v1/claim", "/v1/ack/batch", "/v1/claim"]
    assert not peer.takes_acks


def test_a_claim_that_is_wrong_in_itself_is_refused_after_the_acks():
    peer = PeerHistory()
    peer.takes_acks = True
    flow = claim_flow(CLAIMING, 0, ACKS, RetryOptions(), peer)
    start(flow)
    resume(flow, UNKNOWN_FIELD)
    resume(flow, SETTLED)
    with pytest.raises(InvalidCall, match="acks"):
        resume(flow, UNKNOWN_FIELD)
    assert isinstance(refusal(UNKNOWN_FIELD), InvalidCall)
