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


def create(fixture: BrokerFixture, path: str, *values: str) -> None:
    batch = packed(*values) if values else (b"", 0, 0)
    reply = fixture.do(c.CreateStream(path, "application/json", batch=batch[0], count=batch[1], payload_bytes=batch[2]))
    assert not isinstance(reply, Rejected), reply


def append(fixture: BrokerFixture, path: str, *values: str) -> list[f.Fact]:
    batch, count, payload_bytes = packed(*values)
    return fixture.take(c.AppendStream(path, "application/json", batch, count, payload_bytes)).facts


def subscribe(fixture: BrokerFixture, name: str = "s", **config: object) -> None:
    settings = {"kind": PULL_WAKE, "pattern": "events/*", "wake_stream": "wake", "lease_ms": 1_000, **config}
    reply = fixture.do(w.CreateSubscription(name, SubscriptionConfig(**settings), "http://here"))
    assert isinstance(reply, w.SubscriptionView), reply


def of(fixture: BrokerFixture, name: str = "s"):
    return fixture.broker.state.subscriptions.by_name[name]


@pytest.fixture
def fixture() -> BrokerFixture:
    fixture = BrokerFixture()
    create(fixture, "wake")
    return fixture


def reason(reply) -> str:
    assert isinstance(reply, Rejected), reply
    return reply.details["reason"]


def test_an_append_and_the_wake_it_causes_are_one_frame(fixture):
    subscribe(fixture)
    create(fixture, "events/a")
    facts = append(fixture, "events/a", "1")
    assert [type(fact) for fact in facts] == [f.Appended, WakeMade, f.Appended]
    assert facts[1].tails == (("events/a", 1),)
    assert b'"subscription_id":"s"' in facts[2].batch


def test_a_stream_that_exists_is_followed_from_its_end_and_a_new_one_from_its_start(fixture):
    create(fixture, "events/old", "1", "2")
    subscribe(fixture)
    create(fixture, "events/new", "3")
    shown = {stream.path: stream for stream in fixture.do(ReadSubscription("s")).streams}
    assert shown["events/old"].acked == 2
    assert (shown["events/new"].acked, shown["events/new"].end_offset) == (0, 1)
    assert dict(of(fixture).tails) == {"events/new": 1}


def test_an_awake_subscriber_is_not_woken_again(fixture):
    subscribe(fixture)
    create(fixture, "events/a", "1")
    generation = of(fixture).generation
    assert [type(fact) for fact in append(fixture, "events/a", "2")] == [f.Appended]
    assert of(fixture).generation == generation


def test_work_that_arrived_during_a_wake_starts_the_next_one(fixture):
    subscribe(fixture)
    create(fixture, "events/a", "1")
    claimed = fixture.do(w.ClaimWake("s", "worker"))
    append(fixture, "events/a", "2")
    done = fixture.do(w.AckWake("s", claimed.generation, claimed.wake_id, (("events/a", 1),), done=True))
    assert done == w.WakeAckReply(next_wake=True)
    again = fixture.do(w.ClaimWake("s", "worker"))
    assert [(stream.acked, stream.end_offset) for stream in again.streams] == [(1, 2)]
    done = fixture.do(w.AckWake("s", again.generation, again.wake_id, (("events/a", 2),), done=True))
    assert done == w.WakeAckReply(next_wake=False)
    assert reason(fixture.do(w.ClaimWake("s", "worker"))) == "NO_PENDING_WORK"


def test_one_worker_holds_a_wake_and_a_late_one_is_fenced_off(fixture):
    subscribe(fixture)
    create(fixture, "events/a", "1")
    first = fixture.do(w.ClaimWake("s", "one"))
    refused = fixture.do(w.ClaimWake("s", "two"))
    assert reason(refused) == "ALREADY_CLAIMED"
    assert refused.details["current_holder"] == "one"
    fixture.advance(1_001)
    second = fixture.do(w.ClaimWake("s", "two"))
    assert second.generation > first.generation
    late = w.AckWake("s", first.generation, first.wake_id, (("events/a", 1),), done=True)
    assert reason(fixture.do(late)) == "FENCED"
    assert of(fixture).links["events/a"].acked == 0


def test_a_heartbeat_keeps_the_lease_and_what_was_acked(fixture):
    subscribe(fixture)
    create(fixture, "events/a", "1", "2")
    held = fixture.do(w.ClaimWake("s", "one"))
    for _ in range(3):
        fixture.advance(900)
        assert fixture.do(w.AckWake("s", held.generation, held.wake_id, (("events/a", 1),))) == w.WakeAckReply(False)
    fixture.advance(1_001)
    assert not of(fixture).holder
    assert of(fixture).links["events/a"].acked == 1


@pytest.mark.parametrize("ack", [("events/a", 3), ("events/b", 0), ("events/a", 0)])
def test_an_ack_names_a_followed_stream_and_an_offset_ahead(fixture, ack):
    subscribe(fixture)
    create(fixture, "events/a", "1", "2")
    held = fixture.do(w.ClaimWake("s", "one"))
    fixture.do(w.AckWake("s", held.generation, held.wake_id, (("events/a", 1),)))
    assert reason(fixture.do(w.AckWake("s", held.generation, held.wake_id, (ack,)))) == "INVALID_OFFSET"


def test_a_webhook_that_says_done_acks_what_it_was_shown_and_no_more(fixture):
    subscribe(fixture, kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    create(fixture, "events/a", "1")
    append(fixture, "events/a", "2")
    assert fixture.do(w.FinishWake("s", of(fixture).generation)) == w.WakeAckReply(next_wake=True)
    assert of(fixture).links["events/a"].acked == 1
    assert dict(of(fixture).tails) == {"events/a": 2}


def test_a_webhook_that_does_not_answer_is_woken_again_when_its_lease_ends(fixture):
    subscribe(fixture, kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    create(fixture, "events/a", "1")
    first = of(fixture).generation
    fixture.advance(1_001)
    assert of(fixture).generation == first + 1
    assert of(fixture).wake_id


def test_a_deleted_stream_is_forgotten_and_its_successor_followed_from_the_start(fixture):
    create(fixture, "named", "1", "2")
    subscribe(fixture, streams=("named",))
    create(fixture, "events/a")
    for path in ("named", "events/a"):
        fixture.do(c.DeleteStream(path))
    assert set(of(fixture).links) == {"named"}
    create(fixture, "named", "3")
    assert dict(of(fixture).tails) == {"named": 1}


def test_an_expired_stream_and_its_successor_in_one_frame_wake_their_subscribers(fixture):
    fixture.do(c.CreateStream("named", "application/json", ttl_s=1))
    append(fixture, "named", "1", "2")
    subscribe(fixture, pattern="", streams=("named",))
    fixture.advance(2_000, sweep=False)
    create(fixture, "named", "3")
    assert dict(of(fixture).tails) == {"named": 1}


def test_events_on_a_wake_stream_wake_no_subscriber(fixture):
    subscribe(fixture, pattern="**")
    facts = append(fixture, "wake", "mine")
    assert [type(fact) for fact in facts] == [f.Appended]


def test_the_same_configuration_is_confirmed_and_another_refused(fixture):
    subscribe(fixture)
    subscribe(fixture)
    other = SubscriptionConfig(PULL_WAKE, "else/*", wake_stream="wake")
    assert reason(fixture.do(w.CreateSubscription("s", other, "http://here"))) == "SUBSCRIPTION_ALREADY_EXISTS"


def test_links_by_name_come_and_go_and_a_pattern_keeps_its_own(fixture):
    create(fixture, "events/a")
    subscribe(fixture)
    fixture.do(w.LinkStreams("s", ("events/a", "else")))
    assert {path: (link.by_name, link.by_pattern) for path, link in of(fixture).links.items()} == {
        "events/a": (True, True),
        "else": (True, False),
    }
    for path in ("events/a", "else", "never"):
        fixture.do(w.UnlinkStream("s", path))
    assert {path: (link.by_name, link.by_pattern) for path, link in of(fixture).links.items()} == {
        "events/a": (False, True)
    }


def test_a_secret_is_made_once(fixture):
    fixture.do(w.MakeSigningKey(b"first"))
    assert not fixture.do(w.MakeSigningKey(b"second")).changed
    assert fixture.broker.state.subscriptions.seed == b"first"


def test_a_restart_knows_subscriptions_wakes_and_leases(fixture):
    fixture.do(w.MakeSigningKey(b"secret"))
    subscribe(fixture)
    subscribe(fixture, "hook", kind=WEBHOOK, url="https://example.org/hook", wake_stream="")
    subscribe(fixture, "gone")
    fixture.do(w.DeleteSubscription("gone"))
    create(fixture, "events/a", "1")
    fixture.do(w.ClaimWake("s", "worker"))
    here = fixture.broker
    for there in (fixture.restarted(), fixture.replayed()):
        assert list(there.state.subscriptions.snapshot()) == list(here.state.subscriptions.snapshot())
        assert there.state.subscriptions.by_path.keys() == here.state.subscriptions.by_path.keys()
        assert there.next_deadline_ms() == here.next_deadline_ms()
