"""Retries: when a call is sent again and when it fails, without a network and without waiting."""

from __future__ import annotations

import pytest

from driftq.client import errors
from driftq.client.calls import queue
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import (
    Exchange,
    FlowResult,
    PeerHistory,
    RetryOptions,
    Sleep,
    resume,
    retrying_call,
    start,
    throw,
)

GOOD = HttpReply(200, {}, b'{"status":"produced","topic":"t","routed_topic":"t","partition":0,"offset":1}')
RETRY = RetryOptions(timeout_ms=1_000, deadline_ms=5_000, backoff_ms=100, backoff_max_ms=1_000, first_contact_ms=500)


class Driver:
    """Drives the flow of one call, with a clock of its own."""

    def __init__(self, call, *, ever_connected: bool = True) -> None:
        self.now_s = 0.0
        self.backoffs: list[float] = []
        peer = PeerHistory()
        peer.ever_connected = ever_connected
        self.flow = retrying_call(call, RETRY, peer, now_s=lambda: self.now_s, jitter=lambda: 0.0)
        self.step = start(self.flow)

    def answer(self, result) -> Driver:
        assert isinstance(self.step, Exchange)
        self.step = throw(self.flow, result) if isinstance(result, Exception) else resume(self.flow, result)
        if isinstance(self.step, Sleep):
            self.backoffs.append(self.step.seconds)
            self.now_s += self.step.seconds
            self.step = resume(self.flow, None)
        return self

    def keep_answering(self, result) -> None:
        for _ in range(100):
            self.answer(result)

    @property
    def result(self):
        assert isinstance(self.step, FlowResult)
        return self.step.value


def busy(seconds: int | None = None) -> HttpReply:
    headers = {"retry-after": str(seconds)} if seconds else {}
    return HttpReply(429, headers, b'{"error":"RESOURCE_EXHAUSTED","message":"full"}')


PLAIN = queue.send("t", "x")
KEYED = queue.send("t", "x", idempotency_key="k")


def test_a_reply_ends_the_flow():
    assert Driver(PLAIN).answer(GOOD).result.offset == 1


@pytest.mark.parametrize(
    "failure",
    [
        errors.NotConnected("refused"),
        busy(),
        HttpReply(503, {}, b""),
        HttpReply(507, {}, b'{"error":"DISK_FULL","message":""}'),
    ],
)
def test_a_call_that_was_certainly_not_executed_is_retried(failure):
    assert Driver(PLAIN).answer(failure).answer(GOOD).result.offset == 1


@pytest.mark.parametrize(
    "failure",
    [errors.OutcomeUnknown("reset"), HttpReply(500, {}, b""), HttpReply(502, {}, b""), HttpReply(504, {}, b"")],
)
def test_a_call_that_may_have_been_executed_is_retried_only_if_it_is_idempotent(failure):
    assert Driver(KEYED).answer(failure).answer(GOOD).result.offset == 1
    with pytest.raises(errors.DriftQError):
        Driver(PLAIN).answer(failure)


@pytest.mark.parametrize("status", [400, 404, 409, 410, 412, 413])
def test_a_permanent_refusal_is_not_retried(status):
    with pytest.raises(errors.Refused):
        Driver(KEYED).answer(HttpReply(status, {}, b""))


def test_backoff_grows_to_a_limit_and_respects_retry_after():
    driver = Driver(KEYED)
    for _ in range(6):
        driver.answer(errors.OutcomeUnknown("reset"))
    assert driver.backoffs == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    driver = Driver(PLAIN)
    driver.answer(busy(2))
    assert driver.backoffs == [2.0]


def test_the_deadline_holds_for_all_attempts_together():
    driver = Driver(PLAIN)
    with pytest.raises(errors.Overloaded):
        driver.keep_answering(busy(1))
    assert driver.now_s <= 5.0
    assert len(driver.backoffs) == 5
    with pytest.raises(errors.Overloaded):
        Driver(PLAIN).answer(busy(60))


def test_an_attempt_never_outlasts_the_deadline():
    driver = Driver(PLAIN)
    assert isinstance(driver.step, Exchange)
    assert driver.step.timeout_s == 1.0
    driver.now_s = 4.5
    driver.answer(busy())
    assert isinstance(driver.step, Exchange)
    assert driver.step.timeout_s < 0.5


def test_an_unreachable_broker_at_the_first_call_is_reported_soon():
    driver = Driver(PLAIN, ever_connected=False)
    with pytest.raises(errors.NotConnected):
        driver.keep_answering(errors.NotConnected("refused"))
    assert driver.now_s <= 0.5
    driver = Driver(PLAIN, ever_connected=True)
    for _ in range(6):
        driver.answer(errors.NotConnected("restarting"))
    assert driver.answer(GOOD).result.offset == 1
