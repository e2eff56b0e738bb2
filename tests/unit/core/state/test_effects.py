"""Effect keys: told apart from keys of produces, and forgotten without ever looking at all of them."""

from __future__ import annotations

import pytest

from driftq.core.model.commands import EffectKey, ProduceKey
from driftq.core.model.effect_facts import KeyBegun, KeyCommitted, KeyFailed
from driftq.core.state.effects import EffectStatus, EffectTable, effect_scope
from driftq.core.state.idempotency_keys import produce_scope


def test_scopes_differ_in_every_part():
    scopes = {
        produce_scope(ProduceKey(*parts))
        for parts in [("a", "b", "c"), ("ab", "", "c"), ("", "ab", "c"), ("a", "bc", "")]
    }
    assert len(scopes) == 4
    assert effect_scope(EffectKey("a", "t", "g", "k")) != effect_scope(EffectKey("a", "t", "h", "k"))
    assert produce_scope(ProduceKey("a", "t", "k")) != effect_scope(EffectKey("a", "t", "", "k"))


def test_an_effect_goes_from_pending_to_committed_or_failed():
    effects, scope = EffectTable(), effect_scope(EffectKey("", "t", "g", "k"))
    effects.begin(KeyBegun(scope, 1, "ann", 10, 20, 5, 6, 7))
    effect = effects.find(scope)
    assert effect is not None
    assert (effect.status, effect.fence, effect.owner, effect.until_ms) == (EffectStatus.PENDING, 1, "ann", 20)
    effects.fail(KeyFailed(scope, 1, 11, 100, "boom"))
    assert (effect.status, effect.error, effect.until_ms) == (EffectStatus.FAILED, "boom", 100)
    effects.begin(KeyBegun(scope, 2, "bob", 12, 22, 5, 6, 7))
    assert (effect.status, effect.fence, effect.error) == (EffectStatus.PENDING, 2, "")
    effects.commit(KeyCommitted(scope, 2, 13, 200, b"r"))
    assert (effect.status, effect.result, effect.offset) == (EffectStatus.COMMITTED, b"r", 7)


def test_effects_are_looked_at_in_rounds():
    effects = EffectTable()
    for number in range(100):
        effects.begin(KeyBegun(f"k{number}", number, "ann", 0, number))
    for _ in range(100):
        effects.forget_some(2, lambda effect: effect.until_ms < 50)
    assert len(effects) == 50


@pytest.mark.parametrize("rounds", [0, 1, 17])
def test_images_of_effects_keep_the_order_of_the_rounds(rounds):
    effects = EffectTable()
    for number in range(10):
        effects.begin(KeyBegun(f"k{number}", number, "ann", 0, number, 1, 2, 3))
    for _ in range(rounds):
        effects.forget_some(2, lambda effect: effect.until_ms == 3)
    again = EffectTable()
    for fact in effects.snapshot():
        again.restore(fact)
    assert list(again.snapshot()) == list(effects.snapshot())
    for either in (effects, again):
        either.forget_some(2, lambda effect: effect.until_ms % 2 == 0)
    assert list(again.snapshot()) == list(effects.snapshot())
