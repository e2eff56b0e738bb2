"""Messages whose effect is committed are settled at dispatch; every other one is delivered."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Done, EffectBegun
from driftq.testing.clock import START_MS
from driftq.wire.message import Envelope, Head
from tests.support.broker_fixture import BrokerFixture, held, offsets, packed

TTL_MS = 1_000


def keyed(key: str, *, once: bool = True, tenant: str = "", value: str = "v") -> c.Produce:
    envelope = Envelope(idempotency_key=key, tenant_id=tenant)
    batch, count, payload_bytes = packed(value, head=Head(envelope=envelope))
    return c.Produce(
        "t", batch, count, payload_bytes, once=c.ProduceKey(tenant, "t", key, ttl_ms=TTL_MS) if once else None
    )


def commit(fixture: BrokerFixture, key: str, *, offset: int | None = None, tenant: str = "", group: str = "g") -> None:
    name = c.EffectKey(tenant, "t", group, key)
    partition = 0 if offset is not None else None
    begun = fixture.do(c.BeginEffect(name, "w", partition=partition, offset=offset))
    assert isinstance(begun, EffectBegun)
    assert fixture.do(c.CommitEffect(name, begun.fence, b"")) == Done()


@pytest.fixture
def fixture() -> BrokerFixture:
    fixture = BrokerFixture(BrokerLimits(lease_ms=1_000, effect_ttl_ms=60_000))
    fixture.topic()
    fixture.do(c.CreateGroup("t", "g"))
    return fixture


def skipped(fixture: BrokerFixture) -> list[int]:
    """What a state folded from the journal, and one from a snapshot, agree to be settled."""
    progresses = [
        broker.state.groups[1].progress[0] for broker in (fixture.broker, fixture.restarted(), fixture.replayed())
    ]
    settled = [[n for n in range(10) if progress.is_settled(n)] for progress in progresses]
    assert settled[0] == settled[1] == settled[2]
    return settled[0]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("once", [True, False])
def test_a_worker_that_committed_and_died_is_not_asked_again(fixture, named, once):
    fixture.do(keyed("k", once=once))
    fixture.do(keyed("other", once=once))
    claimed = fixture.claim(2)
    commit(fixture, "k", offset=0 if named else None)
    fixture.do(c.Nack("t", "g", "w", held(0, 1, token=claimed.token), "no", 0))
    assert offsets(fixture.claim(9)) == [1]
    assert skipped(fixture) == [0]


def test_a_first_delivery_is_skipped_when_the_commit_came_after_the_produce(fixture):
    fixture.do(keyed("a"))
    fixture.do(keyed("b"))
    fixture.do(keyed("c"))
    commit(fixture, "b")
    assert offsets(fixture.claim(9)) == [0, 2]
    assert skipped(fixture) == [1]


def test_a_first_delivery_is_skipped_when_the_commit_came_before_the_produce(fixture):
    commit(fixture, "b")
    fixture.do(keyed("a"))
    fixture.do(keyed("b"))
    assert offsets(fixture.claim(9)) == [0]


def test_a_second_message_under_the_key_is_skipped_too(fixture):
    fixture.do(keyed("k"))
    commit(fixture, "k", offset=0)
    assert offsets(fixture.claim(9)) == []
    fixture.advance(TTL_MS + 1)  # the produce is forgotten, the effect is not
    fixture.do(keyed("k"))
    assert offsets(fixture.claim(9)) == []
    assert skipped(fixture) == [0, 1]


def test_a_claim_that_only_skipped_is_repeated_at_once(fixture):
    fixture.do(keyed("k"))
    commit(fixture, "k")
    assert fixture.claim(1).next_ms == START_MS


@pytest.mark.parametrize(
    "other",
    [{"key": "other"}, {"tenant": "acme"}, {"group": "h"}],
    ids=["another key of the same message", "another tenant", "another group"],
)
def test_other_effects_do_not_count(fixture, other):
    fixture.do(c.CreateGroup("t", "h"))
    fixture.do(keyed("k"))
    commit(fixture, **{"key": "k", "offset": 0, **other})
    claimed = fixture.claim(1)
    assert offsets(claimed) == [0]
    fixture.do(c.Nack("t", "g", "w", held(0, token=claimed.token), "no", 0))
    assert offsets(fixture.claim(1)) == [0]


def test_an_effect_that_failed_or_is_pending_skips_nothing(fixture):
    fixture.do(keyed("k"))
    name = c.EffectKey("", "t", "g", "k")
    begun = fixture.do(c.BeginEffect(name, "w", partition=0, offset=0))
    assert isinstance(begun, EffectBegun)
    assert offsets(fixture.claim(1)) == [0]
    fixture.do(c.FailEffect(name, begun.fence, "no"))
    fixture.advance(1_000)
    fixture.do(c.Sweep((("group", 1, 1),)))
    fixture.advance(1_000)
    assert offsets(fixture.claim(1)) == [0]


def test_an_effect_that_is_over_skips_nothing(fixture):
    commit(fixture, "k")
    fixture.advance(60_001)
    fixture.do(keyed("k"))
    assert offsets(fixture.claim(1)) == [0]


def test_a_group_that_starts_over_skips_what_is_done(fixture):
    fixture.do(keyed("a"))
    fixture.do(keyed("b"))
    claimed = fixture.claim(2)
    commit(fixture, "a", offset=0)
    fixture.do(c.Ack("t", "g", "w", held(0, 1, token=claimed.token)))
    fixture.do(c.SeekGroup("t", "g", 0, 0))
    assert offsets(fixture.claim(9)) == [1]


def test_the_history_records_the_skip(fixture):
    fixture.do(c.ConfigureTopic("t", f.TopicConfig(history=True)))
    fixture.do(keyed("k"))
    commit(fixture, "k")
    decision = fixture.broker.decide(c.Claim("t", "g", "w", 1, None), fixture.now_ms)
    assert any(isinstance(fact, f.Appended) and b'"skipped"' in fact.batch for fact in decision.facts)
