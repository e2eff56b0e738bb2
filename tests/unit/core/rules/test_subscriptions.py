"""Subscriptions: who is woken for what, who may still speak for a wake, and that none of it is lost in a restart."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import subscriptions as w
from driftq.core.model.queries import ReadSubscription
from driftq.core.model.replies import Rejected
from driftq.core.model.stream_facts import PULL_WAKE, WEBHOOK, SubscriptionConfig, WakeMade
from driftq.core.state.subscriptions import matches
from tests.support.broker_fixture import BrokerFixture, packed


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events/a/b", False),
        ("events/*", "events", False),
        ("**", "a/b/c", True),
        ("events/**", "events", True),
        ("events/**", "events/a/b", True),
        ("**/b", "a/x/b", True),
        ("**/b", "b", True),
        ("a/**/b/*", "a/b/b/c", True),
        ("a/**/b/*", "a/b", False),
        ("a/*/c", "a//c", False),
        ("/a/b/", "a/b", True),
    ],
)
def test_a_pattern_names_whole_segments(pattern, path, expected):
    assert matches(pattern, path) is expected


def create(desk: BrokerFixture, path: str, *values: str) -> None:
    batch = packed(*values) if values else (b"", 0, 0)
    reply = desk.do(c.CreateStream(path, "application/json", batch=batch[0], count=batch[1], payload_bytes=batch[2]))
    assert not isinstance(reply, Rejected), reply


def append(desk: BrokerFixture, path: str, *values: str) -> list[f.Fact]:
    batch, count, payload_bytes = packed(*values)
    return desk.take(c.AppendStream(path, "application/json", batch, count, payload_bytes)).facts


def subscribe(desk: BrokerFixture, name: str = "s", **config: object) -> None:
    settings = {"kind": PULL_WAKE, "pattern": "events/*", "wake_stream": "wake", "lease_ms": 1_000, **config}
    reply = desk.do(w.CreateSubscription(name, SubscriptionConfig(**settings), "http://here"))
    assert isinstance(reply, w.SubscriptionView), reply


def of(desk: BrokerFixture, name: str = "s"):
    return desk.broker.state.subscriptions.by_name[name]


@pytest.fixture
def desk() -> BrokerFixture:
    made = BrokerFixture()
    create(made, "wake")
    return made


def reason(reply) -> str:
    assert isinstance(reply, Rejected), reply
    return reply.details["reason"]


def test_an_append_and_the_wake_it_causes_are_one_frame(desk):
    subscribe(desk)
    create(desk, "events/a")
    facts = append(desk, "events/a", "1")
    assert [type(fact) for fact in facts] == [f.Appended, WakeMade, f.Appended]
    assert facts[1].tails == (("events/a", 1),)
    assert b'"subscription_id":"s"' in facts[2].batch


def test_a_stream_that_exists_is_followed_from_its_end_and_a_new_one_from_its_start(desk):
    create(desk, "events/old", "1", "2")
    subscribe(desk)
    create(desk, "events/new", "3")
    shown = {each.path: each for each in desk.do(ReadSubscription("s")).streams}
    assert shown["events/old"].acked == 2
    assert (shown["events/new"].acked, shown["events/new"].end_offset) == (0, 1)
    assert dict(of(desk).tails) == {"events/new": 1}


def test_somebody_who_is_awake_is_not_woken_again(desk):
    subscribe(desk)
    create(desk, "events/a", "1")
    generation = of(desk).generation
    assert [type(fact) for fact in append(desk, "events/a", "2")] == [f.Appended]
    assert of(desk).generation == generation


def test_work_that_came_meanwhile_is_woken_for_when_the_wake_is_done(desk):
    subscribe(desk)
    create(desk, "events/a", "1")
    claimed = desk.do(w.ClaimWake("s", "worker"))
    append(desk, "events/a", "2")
    done = desk.do(w.AckWake("s", claimed.generation, claimed.wake_id, (("events/a", 1),), done=True))
    assert done == w.WakeAckReply(next_wake=True)
    again = desk.do(w.ClaimWake("s", "worker"))
    assert [(each.acked, each.end_offset) for each in again.streams] == [(1, 2)]
    done = desk.do(w.AckWake("s", again.generation, again.wake_id, (("events/a", 2),), done=True))
    assert done == w.WakeAckReply(next_wake=False)
    assert reason(desk.do(w.ClaimWake("s", "worker"))) == "NO_PENDING_WORK"


def test_one_worker_holds_a_wake_and_a_late_one_is_fenced_off(desk):
    subscribe(desk)
    create(desk, "events/a", "1")
    first = desk.do(w.ClaimWake("s", "one"))
    refused = desk.do(w.ClaimWake("s", "two"))
    assert reason(refused) == "ALREADY_CLAIMED"
    assert refused.details["current_holder"] == "one"
    desk.advance(1_001)
    second = desk.do(w.ClaimWake("s", "two"))
    assert second.generation > first.generation
    late = w.AckWake("s", first.generation, first.wake_id, (("events/a", 1),), done=True)
    assert reason(desk.do(late)) == "FENCED"
    assert of(desk).links["events/a"].acked == 0


def test_a_heartbeat_keeps_the_lease_and_what_was_acked(desk):
    subscribe(desk)
    create(desk, "events/a", "1", "2")
    held = desk.do(w.ClaimWake("s", "one"))
    for _ in range(3):
        desk.advance(900)
        assert desk.do(w.AckWake("s", held.generation, held.wake_id, (("events/a", 1),))) == w.WakeAckReply(False)
    desk.advance(1_001)
    assert not of(desk).holder
    assert of(desk).links["events/a"].acked == 1


@pytest.mark.parametrize("ack", [("events/a", 3), ("events/b", 0), ("events/a", 0)])
def test_an_ack_names_a_followed_stream_and_an_offset_ahead(desk, ack):
    subscribe(desk)
    create(desk, "events/a", "1", "2")
    held = desk.do(w.ClaimWake("s", "one"))
    desk.do(w.AckWake("s", held.generation, held.wake_id, (("events/a", 1),)))
    assert reason(desk.do(w.AckWake("s", held.generation, held.wake_id, (ack,)))) == "INVALID_OFFSET"


def test_a_webhook_that_says_done_acks_what_it_was_shown_and_no_more(desk):
    subscribe(desk, kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    create(desk, "events/a", "1")
    append(desk, "events/a", "2")
    assert desk.do(w.FinishWake("s", of(desk).generation)) == w.WakeAckReply(next_wake=True)
    assert of(desk).links["events/a"].acked == 1
    assert dict(of(desk).tails) == {"events/a": 2}


def test_a_webhook_that_does_not_answer_is_woken_again_when_its_lease_ends(desk):
    subscribe(desk, kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    create(desk, "events/a", "1")
    first = of(desk).generation
    desk.advance(1_001)
    assert of(desk).generation == first + 1
    assert of(desk).wake_id


def test_a_deleted_stream_is_forgotten_and_its_successor_followed_from_the_start(desk):
    create(desk, "named", "1", "2")
    subscribe(desk, streams=("named",))
    create(desk, "events/a")
    for path in ("named", "events/a"):
        desk.do(c.DeleteStream(path))
    assert set(of(desk).links) == {"named"}
    create(desk, "named", "3")
    assert dict(of(desk).tails) == {"named": 1}


def test_an_expired_stream_and_its_successor_in_one_frame_wake_those_who_named_it(desk):
    desk.do(c.CreateStream("named", "application/json", ttl_s=1))
    append(desk, "named", "1", "2")
    subscribe(desk, pattern="", streams=("named",))
    desk.advance(2_000, sweep=False)
    create(desk, "named", "3")
    assert dict(of(desk).tails) == {"named": 1}


def test_events_on_a_wake_stream_wake_nobody(desk):
    subscribe(desk, pattern="**")
    facts = append(desk, "wake", "mine")
    assert [type(fact) for fact in facts] == [f.Appended]


def test_the_same_configuration_is_confirmed_and_another_refused(desk):
    subscribe(desk)
    subscribe(desk)
    other = SubscriptionConfig(PULL_WAKE, "else/*", wake_stream="wake")
    assert reason(desk.do(w.CreateSubscription("s", other, "http://here"))) == "SUBSCRIPTION_ALREADY_EXISTS"


def test_links_by_name_come_and_go_and_a_pattern_keeps_its_own(desk):
    create(desk, "events/a")
    subscribe(desk)
    desk.do(w.LinkStreams("s", ("events/a", "else")))
    assert {path: (link.by_name, link.by_pattern) for path, link in of(desk).links.items()} == {
        "events/a": (True, True),
        "else": (True, False),
    }
    for path in ("events/a", "else", "never"):
        desk.do(w.UnlinkStream("s", path))
    assert {path: (link.by_name, link.by_pattern) for path, link in of(desk).links.items()} == {
        "events/a": (False, True)
    }


def test_a_secret_is_made_once(desk):
    desk.do(w.MakeSigningKey(b"first"))
    assert not desk.do(w.MakeSigningKey(b"second")).changed
    assert desk.broker.state.subscriptions.seed == b"first"


def test_a_restart_knows_subscriptions_wakes_and_leases(desk):
    desk.do(w.MakeSigningKey(b"secret"))
    subscribe(desk)
    subscribe(desk, "hook", kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    subscribe(desk, "gone")
    desk.do(w.DeleteSubscription("gone"))
    create(desk, "events/a", "1")
    desk.do(w.ClaimWake("s", "worker"))
    here = desk.broker
    for there in (desk.restarted(), desk.replayed()):
        assert list(there.state.subscriptions.snapshot()) == list(here.state.subscriptions.snapshot())
        assert there.state.subscriptions.by_path.keys() == here.state.subscriptions.by_path.keys()
        assert there.next_deadline_ms() == here.next_deadline_ms()
