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


def commit(desk: BrokerFixture, key: str, *, offset: int | None = None, tenant: str = "", group: str = "g") -> None:
    name = c.EffectKey(tenant, "t", group, key)
    partition = 0 if offset is not None else None
    begun = desk.do(c.BeginEffect(name, "w", partition=partition, offset=offset))
    assert isinstance(begun, EffectBegun)
    assert desk.do(c.CommitEffect(name, begun.fence, b"")) == Done()


@pytest.fixture
def desk() -> BrokerFixture:
    desk = BrokerFixture(BrokerLimits(lease_ms=1_000, effect_ttl_ms=60_000))
    desk.topic()
    desk.do(c.CreateGroup("t", "g"))
    return desk


def skipped(desk: BrokerFixture) -> list[int]:
    """What a state folded from the journal, and one from a snapshot, agree to be settled."""
    found = [broker.state.groups[1].progress[0] for broker in (desk.broker, desk.restarted(), desk.replayed())]
    settled = [[n for n in range(10) if progress.is_settled(n)] for progress in found]
    assert settled[0] == settled[1] == settled[2]
    return settled[0]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("once", [True, False])
def test_a_worker_that_committed_and_died_is_not_asked_again(desk, named, once):
    desk.do(keyed("k", once=once))
    desk.do(keyed("other", once=once))
    claimed = desk.claim(2)
    commit(desk, "k", offset=0 if named else None)
    desk.do(c.Nack("t", "g", "w", held(0, 1, token=claimed.token), "no", 0))
    assert offsets(desk.claim(9)) == [1]
    assert skipped(desk) == [0]


def test_a_first_delivery_is_skipped_when_the_commit_came_after_the_produce(desk):
    desk.do(keyed("a"))
    desk.do(keyed("b"))
    desk.do(keyed("c"))
    commit(desk, "b")
    assert offsets(desk.claim(9)) == [0, 2]
    assert skipped(desk) == [1]


def test_a_first_delivery_is_skipped_when_the_commit_came_before_the_produce(desk):
    commit(desk, "b")
    desk.do(keyed("a"))
    desk.do(keyed("b"))
    assert offsets(desk.claim(9)) == [0]


def test_a_second_message_under_the_key_is_skipped_too(desk):
    desk.do(keyed("k"))
    commit(desk, "k", offset=0)
    assert offsets(desk.claim(9)) == []
    desk.advance(TTL_MS + 1)  # the produce is forgotten, the effect is not
    desk.do(keyed("k"))
    assert offsets(desk.claim(9)) == []
    assert skipped(desk) == [0, 1]


def test_a_claim_that_only_skipped_comes_again_at_once(desk):
    desk.do(keyed("k"))
    commit(desk, "k")
    assert desk.claim(1).next_ms == START_MS


@pytest.mark.parametrize(
    "other",
    [{"key": "other"}, {"tenant": "acme"}, {"group": "h"}],
    ids=["another key of the same message", "another tenant", "another group"],
)
def test_other_effects_do_not_count(desk, other):
    desk.do(c.CreateGroup("t", "h"))
    desk.do(keyed("k"))
    commit(desk, **{"key": "k", "offset": 0, **other})
    claimed = desk.claim(1)
    assert offsets(claimed) == [0]
    desk.do(c.Nack("t", "g", "w", held(0, token=claimed.token), "no", 0))
    assert offsets(desk.claim(1)) == [0]


def test_an_effect_that_failed_or_is_pending_skips_nothing(desk):
    desk.do(keyed("k"))
    name = c.EffectKey("", "t", "g", "k")
    begun = desk.do(c.BeginEffect(name, "w", partition=0, offset=0))
    assert isinstance(begun, EffectBegun)
    assert offsets(desk.claim(1)) == [0]
    desk.do(c.FailEffect(name, begun.fence, "no"))
    desk.advance(1_000)
    desk.do(c.Sweep((("group", 1, 1),)))
    desk.advance(1_000)
    assert offsets(desk.claim(1)) == [0]


def test_an_effect_that_is_over_skips_nothing(desk):
    commit(desk, "k")
    desk.advance(60_001)
    desk.do(keyed("k"))
    assert offsets(desk.claim(1)) == [0]


def test_a_group_that_starts_over_skips_what_is_done(desk):
    desk.do(keyed("a"))
    desk.do(keyed("b"))
    claimed = desk.claim(2)
    commit(desk, "a", offset=0)
    desk.do(c.Ack("t", "g", "w", held(0, 1, token=claimed.token)))
    desk.do(c.SeekGroup("t", "g", 0, 0))
    assert offsets(desk.claim(9)) == [1]


def test_the_history_tells_of_it(desk):
    desk.do(c.ConfigureTopic("t", f.TopicConfig(history=True)))
    desk.do(keyed("k"))
    commit(desk, "k")
    decision = desk.broker.decide(c.Claim("t", "g", "w", 1, None), desk.now_ms)
    assert any(isinstance(fact, f.Appended) and b'"skipped"' in fact.batch for fact in decision.facts)
