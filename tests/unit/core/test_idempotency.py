"""Two tables of keys that never mix, and that forget what is over without ever looking at all of it."""

from __future__ import annotations

import pytest

from driftq.core.commands import EffectKey, ProduceKey
from driftq.core.facts import KeyBegun, KeyCommitted, KeyFailed
from driftq.core.idempotency import Effects, ProducedKey, ProducedKeys, Status, effect_scope, produce_scope


def key(offset: int, expires_ms: int) -> ProducedKey:
    return ProducedKey(1, offset, 1, 0, expires_ms)


def test_scopes_are_told_apart_by_every_part():
    scopes = {
        produce_scope(ProduceKey(*parts))
        for parts in [("a", "b", "c"), ("ab", "", "c"), ("", "ab", "c"), ("a", "bc", "")]
    }
    assert len(scopes) == 4
    assert effect_scope(EffectKey("a", "t", "g", "k")) != effect_scope(EffectKey("a", "t", "h", "k"))
    assert produce_scope(ProduceKey("a", "t", "k")) != effect_scope(EffectKey("a", "t", "", "k"))


def test_a_key_is_known_until_its_time_and_not_at_it():
    keys = ProducedKeys()
    keys.remember("k", key(7, 100), 0)
    assert keys.find("k", 99) == key(7, 100)
    assert keys.find("k", 100) is None


def test_keys_that_are_over_are_dropped_as_new_ones_come():
    keys = ProducedKeys()
    for number in range(10_000):
        keys.remember(f"k{number}", key(number, number + 100), number)
    assert len(keys) < 250


def test_one_long_lived_key_shields_nobody():
    keys = ProducedKeys()
    keys.remember("forever", key(0, 10**15), 0)
    for number in range(10_000):
        keys.remember(f"k{number}", key(number, number + 100), number)
    assert len(keys) < 250
    assert keys.find("forever", 10_000) is not None


def test_a_key_that_comes_again_and_again_is_held_once():
    keys = ProducedKeys()
    for now_ms in range(0, 100_000, 100):
        keys.remember("k", key(now_ms, now_ms + 100), now_ms)
    assert len(keys) == 1
    assert len(list(keys.images())) == 1


def test_images_of_keys_keep_the_order_of_the_rounds():
    keys, again = ProducedKeys(), ProducedKeys()
    for number in range(10):
        keys.remember(f"k{number}", key(number, 100 + number), number)
    for image in keys.images():
        again.place(image)
    assert list(again.images()) == list(keys.images())
    for either in (keys, again):
        either.remember("late", key(99, 500), 105)
    assert list(again.images()) == list(keys.images())
    assert again.find("k9", 0) == key(9, 109)


def test_an_effect_goes_from_pending_to_committed_or_failed():
    effects = Effects()
    effects.begin(KeyBegun("k", 1, "ann", 10, 20, 5, 6, 7))
    effect = effects.find("k")
    assert effect is not None
    assert (effect.status, effect.fence, effect.owner, effect.until_ms) == (Status.PENDING, 1, "ann", 20)
    effects.fail(KeyFailed("k", 1, 11, 100, "boom"))
    assert (effect.status, effect.error, effect.until_ms) == (Status.FAILED, "boom", 100)
    effects.begin(KeyBegun("k", 2, "bob", 12, 22, 5, 6, 7))
    assert (effect.status, effect.fence, effect.error) == (Status.PENDING, 2, "")
    effects.commit(KeyCommitted("k", 2, 13, 200, b"r"))
    assert (effect.status, effect.result, effect.offset) == (Status.COMMITTED, b"r", 7)


def test_effects_are_looked_at_in_rounds():
    effects = Effects()
    for number in range(100):
        effects.begin(KeyBegun(f"k{number}", number, "ann", 0, number))
    for _ in range(100):
        effects.forget_some(lambda effect: effect.until_ms < 50)
    assert len(effects) == 50


@pytest.mark.parametrize("rounds", [0, 1, 17])
def test_images_of_effects_keep_the_order_of_the_rounds(rounds):
    effects = Effects()
    for number in range(10):
        effects.begin(KeyBegun(f"k{number}", number, "ann", 0, number, 1, 2, 3))
    for _ in range(rounds):
        effects.forget_some(lambda effect: effect.until_ms == 3)
    again = Effects()
    for image in effects.images():
        again.place(image)
    assert list(again.images()) == list(effects.images())
    for either in (effects, again):
        either.forget_some(lambda effect: effect.until_ms % 2 == 0)
    assert list(again.images()) == list(effects.images())
