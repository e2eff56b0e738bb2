"""Calls: the requests that are built and how replies are read, without a network."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from driftq.client import errors
from driftq.client.calls import admin, interventions, queue, streams
from driftq.client.claims import Claiming, LeaseHolder
from driftq.client.transport.http import HttpReply
from driftq.wire.effects import CommitRequest, OutcomeAck
from driftq.wire.errors import Code, Remedy
from driftq.wire.message import Envelope, RetryPolicy

CLAIMING = Claiming(LeaseHolder("t", "g", "o"), 1)


def body(call) -> dict:
    return json.loads(call.body)


def refusal(status: int, body: bytes, headers: dict[str, str] | None = None) -> errors.Refused:
    return queue.refusal(HttpReply(status, headers or {}, body))


def test_a_send_contains_only_the_given_fields():
    call = queue.send("orders", "text", key="k")
    assert (call.method, call.path, body(call)) == (
        "POST",
        "/v1/produce",
        {"topic": "orders", "value": "text", "key": "k"},
    )


def test_single_fields_win_over_those_of_the_envelope():
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    call = queue.send(
        "t",
        b"\xff",
        envelope=Envelope(run_id="r", tenant_id="old"),
        tenant="new",
        deadline=at,
        retry=RetryPolicy(3, 10),
    )
    assert body(call) == {
        "topic": "t",
        "value_base64": "/w==",
        "partition": "any",
        "envelope": {
            "run_id": "r",
            "tenant_id": "new",
            "deadline": "2030-01-02T03:04:05.000+00:00",
            "retry_policy": {"max_attempts": 3, "backoff_ms": 10},
        },
    }
    with pytest.raises(errors.InvalidCall):
        queue.send("t", "x", deadline=datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("call", "idempotent"),
    [
        (queue.send("t", "x"), False),
        (queue.send("t", "x", idempotency_key="k"), True),
        (queue.send("t", "x", id="job"), True),
        (queue.send_many("t", ["a", "b"]), False),
        (queue.send_many("t", [queue.item("a", id="1")]), True),
        (queue.send_packed("t", 0, b"", has_producer=True), True),
        (CLAIMING.call(0), True),
        (queue.outcome(produce=[("t", queue.item("a"))]), False),
        (queue.outcome(produce=[("t", queue.item("a", idempotency_key="k"))]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], acks=[OutcomeAck("t", "g", [])]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], commits=[CommitRequest("t", "g", "k", fence=1)]), True),
        (queue.outcome(produce=[("t", queue.item("a"))], idempotency_key="k"), True),
        (queue.begin_effect("t", "g", "k", "o"), False),
        (queue.begin_effect("t", "g", "k", "o", token="t1"), True),
        (admin.create_topic("t"), True),
        (streams.append("p", b"x", "text/plain"), False),
        (streams.append("p", b"x", "text/plain", if_match="0_1"), False),
        (streams.append("p", b"x", "text/plain", producer=("p", 0, 0)), True),
        (streams.append("p", b"", "", close=True), True),
    ],
    ids=lambda value: value.path if hasattr(value, "path") else str(value),
)
def test_only_calls_without_a_further_effect_are_idempotent(call, idempotent):
    assert call.idempotent is idempotent


def test_a_name_is_quoted_in_the_path():
    assert admin.describe_topic("a/b?c").path == "/v1/topics/a%2Fb%3Fc"
    assert streams.read("a b/c?d").path.startswith("/v1/stream/a%20b/c%3Fd?")


def test_a_claim_adds_its_wait_to_the_timeout():
    assert CLAIMING.call(20_000).wait_ms == 20_000


@pytest.mark.parametrize(
    ("status", "word", "kind", "retryable"),
    [
        (400, "INVALID_ARGUMENT", errors.InvalidCall, False),
        (404, "NOT_FOUND", errors.NotFound, False),
        (409, "FAILED_PRECONDITION", errors.LeaseLost, False),
        (409, "SEQUENCE_GAP", errors.SequenceGap, True),
        (409, "BUSY", errors.Busy, True),
        (410, "GONE", errors.Gone, False),
        (413, "TOO_LARGE", errors.TooLarge, False),
        (429, "RESOURCE_EXHAUSTED", errors.Overloaded, True),
        (503, "UNAVAILABLE", errors.Unavailable, True),
        (507, "DISK_FULL", errors.Unavailable, True),
        (401, "UNAUTHENTICATED", errors.NotAllowed, False),
        (500, "INTERNAL", errors.ServerFailed, False),
        (502, "", errors.ServerFailed, False),
        (404, "", errors.NotFound, False),
    ],
)
def test_every_refusal_becomes_its_exception(status, word, kind, retryable):
    error = refusal(status, json.dumps({"error": word, "message": "so"}).encode())
    assert type(error) is kind
    assert error.retryable is retryable
    assert (error.status, error.message) == (status, "so")
    assert error.remedy in Remedy


def test_every_code_has_an_exception():
    for code in Code:
        assert isinstance(errors.refused(code, "so", 409), errors.Refused)


def test_an_error_of_a_proxy_is_a_refusal_too():
    error = refusal(502, b"<html>bad gateway</html>")
    assert isinstance(error, errors.ServerFailed)
    assert "bad gateway" in error.message
    assert refusal(503, b"").message == "no reason given"


def test_retry_after_is_read_from_the_body_the_seconds_or_the_date():
    assert refusal(429, b'{"error":"RESOURCE_EXHAUSTED","message":"m","retry_after_ms":250}').retry_after_ms == 250
    assert refusal(503, b"", {"retry-after": "2"}).retry_after_ms == 2_000
    late = refusal(503, b"", {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert late.retry_after_ms == 0
    assert refusal(503, b"", {"retry-after": "soon"}).retry_after_ms is None


def test_refusals_of_streams_are_read_from_headers():
    gap = streams.refusal(HttpReply(409, {"producer-expected-seq": "4", "producer-received-seq": "6"}, b"gap"))
    assert isinstance(gap, errors.SequenceGap)
    assert gap.expected_seq == 4
    stale = streams.refusal(HttpReply(403, {"producer-epoch": "7"}, b"stale"))
    assert isinstance(stale, errors.StaleEpoch)
    assert stale.epoch == 7
    closed = streams.refusal(
        HttpReply(409, {"stream-closed": "true", "producer-expected-seq": "3", "stream-next-offset": "x"}, b"closed")
    )
    assert isinstance(closed, errors.StreamClosed)
    moved = streams.refusal(HttpReply(412, {"stream-next-offset": "0_5"}, b"moved"))
    assert isinstance(moved, errors.TailMoved)
    assert moved.offset == "0_5"


# --- filters of calls in bulk ---

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_filter_becomes_a_body():
    call = interventions.retry_jobs("t", ids=("a", "b"), tenant="acme", since=SINCE, limit=5)
    assert body(call) == {
        "topic": "t", "ids": ["a", "b"], "tenant_id": "acme", "since": "2026-01-02T03:04:05.000+00:00", "limit": 5,
    }  # fmt: skip
    call = interventions.delete_letters("t", offsets=iter([(0, 1)]), reason="rejected", dry_run=True)
    assert body(call) == {"offsets": [[0, 1]], "reason": "rejected", "dry_run": True}
    assert interventions.redrive("t", limit=100, rate_per_s=10).wait_ms == 10_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: interventions.retry_jobs("t", reason="x"),
        lambda: interventions.move_messages("t", "u", state="x"),
        lambda: interventions.delete_letters("t", task="x"),
        lambda: admin.list_letters("t", dry_run=True),
    ],
)
def test_an_unknown_filter_is_a_type_error(call):
    with pytest.raises(TypeError):
        call()
