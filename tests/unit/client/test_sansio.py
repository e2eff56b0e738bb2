"""When to ask again and when to give up, decided without a network and without waiting."""

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


class Story:
    """One call and what happens to it, with time by hand."""

    def __init__(self, call, *, met: bool = True) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        peer = PeerHistory()
        peer.ever_connected = met
        self.flow = retrying_call(call, RETRY, peer, now_s=lambda: self.now_s, jitter=lambda: 0.0)
        self.step = start(self.flow)

    def happens(self, what) -> Story:
        assert isinstance(self.step, Exchange)
        self.step = throw(self.flow, what) if isinstance(what, Exception) else resume(self.flow, what)
        if isinstance(self.step, Sleep):
            self.pauses.append(self.step.seconds)
            self.now_s += self.step.seconds
            self.step = resume(self.flow, None)
        return self

    def keeps_happening(self, what) -> None:
        for _ in range(100):
            self.happens(what)

    @property
    def result(self):
        assert isinstance(self.step, FlowResult)
        return self.step.value


def busy(seconds: int | None = None) -> HttpReply:
    headers = {"retry-after": str(seconds)} if seconds else {}
    return HttpReply(429, headers, b'{"error":"RESOURCE_EXHAUSTED","message":"full"}')


PLAIN = queue.send("t", "x")
KEYED = queue.send("t", "x", idempotency_key="k")


def test_an_answer_ends_it():
    assert Story(PLAIN).happens(GOOD).result.offset == 1


@pytest.mark.parametrize(
    "what",
    [
        errors.NotConnected("nobody"),
        busy(),
        HttpReply(503, {}, b""),
        HttpReply(507, {}, b'{"error":"DISK_FULL","message":""}'),
    ],
)
def test_what_was_certainly_not_done_is_tried_again(what):
    assert Story(PLAIN).happens(what).happens(GOOD).result.offset == 1


@pytest.mark.parametrize(
    "what", [errors.OutcomeUnknown("reset"), HttpReply(500, {}, b""), HttpReply(502, {}, b""), HttpReply(504, {}, b"")]
)
def test_what_may_have_been_done_is_tried_again_only_if_that_does_no_harm(what):
    assert Story(KEYED).happens(what).happens(GOOD).result.offset == 1
    with pytest.raises(errors.DriftQError):
        Story(PLAIN).happens(what)


@pytest.mark.parametrize("status", [400, 404, 409, 410, 412, 413])
def test_what_will_be_refused_again_is_not_tried_again(status):
    with pytest.raises(errors.Refused):
        Story(KEYED).happens(HttpReply(status, {}, b""))


def test_pauses_grow_to_a_bound_and_obey_the_broker():
    story = Story(KEYED)
    for _ in range(6):
        story.happens(errors.OutcomeUnknown("reset"))
    assert story.pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    story = Story(PLAIN)
    story.happens(busy(2))
    assert story.pauses == [2.0]


def test_the_deadline_holds_for_all_attempts_together():
    story = Story(PLAIN)
    with pytest.raises(errors.Overloaded):
        story.keeps_happening(busy(1))
    assert story.now_s <= 5.0
    assert len(story.pauses) == 5
    with pytest.raises(errors.Overloaded):
        Story(PLAIN).happens(busy(60))


def test_an_attempt_never_outlasts_the_deadline():
    story = Story(PLAIN)
    assert isinstance(story.step, Exchange)
    assert story.step.timeout_s == 1.0
    story.now_s = 4.5
    story.happens(busy())
    assert isinstance(story.step, Exchange)
    assert story.step.timeout_s < 0.5


def test_nobody_at_the_first_contact_is_said_soon():
    story = Story(PLAIN, met=False)
    with pytest.raises(errors.NotConnected):
        story.keeps_happening(errors.NotConnected("nobody"))
    assert story.now_s <= 0.5
    story = Story(PLAIN, met=True)
    for _ in range(6):
        story.happens(errors.NotConnected("restarting"))
    assert story.happens(GOOD).result.offset == 1
