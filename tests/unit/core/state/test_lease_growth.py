"""A group with very many pending messages: claims, settlements, heartbeats and expiries cost what they cost with few.

`bench.leases` measures the same with a million.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.frames import decode, encode
from driftq.core.model.replies import Claimed, Settlement
from driftq.testing.clock import START_MS
from tests.support.broker_fixture import SeededChance
from tests.unit.core.state.test_state_size import NO_LIMITS, Bench

FEW, MANY = 1_000, 100_000
# What other programs push out of the caches costs more with many: on a busy machine only some attempts are undisturbed.
ATTEMPTS_MIN, ATTEMPTS_MAX = 8, 100
HOUR_MS = 3_600_000
GROUP, LOG = 1, 1

pytestmark = pytest.mark.serial  # compares times


def leased(bench: Bench, first: int, end: int, number: int) -> None:
    now_ms = bench.clock.now_ms()
    bench.broker.apply(f.Leased(GROUP, LOG, ((first, end),), "w", f"token-{number}", now_ms, now_ms + HOUR_MS + number))


def held_singly(count: int) -> Bench:
    """Every second message is settled, the others are held under a lease each."""
    bench = Bench()
    bench.produce(2 * count)
    for number in range(count):
        leased(bench, 2 * number, 2 * number + 2, number)
        bench.broker.apply(f.Settled(GROUP, LOG, ((2 * number + 1, 2 * number + 2),), f.ACKED, START_MS))
    return bench


def in_backoff(count: int) -> Bench:
    bench = Bench()
    bench.produce(count)
    leased(bench, 0, count, 0)
    for offset in range(count):
        at_ms = START_MS + HOUR_MS + offset % 977
        bench.broker.apply(f.Failed(GROUP, LOG, offset, START_MS, at_ms, "boom", False))
    return bench


def due_for_retry(count: int) -> Bench:
    bench = in_backoff(count)
    bench.clock.move(2 * HOUR_MS)
    return bench


def held_again(count: int) -> Bench:
    bench = due_for_retry(count)
    for offset in range(count):
        leased(bench, offset, offset + 1, offset)
    return bench


def claimed(bench: Bench, lease_ms: int = HOUR_MS) -> tuple[c.Held, ...]:
    reply = bench.do(c.Claim("t", "g", "w", 1, lease_ms))
    assert isinstance(reply, Claimed)
    assert reply.deliveries
    return tuple(c.Held(0, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries)


def acked(bench: Bench) -> None:
    assert bench.do(c.Ack("t", "g", "w", claimed(bench))) == Settlement()


def nacked(bench: Bench) -> None:
    assert bench.do(c.Nack("t", "g", "w", claimed(bench), "no", HOUR_MS)) == Settlement()


def extended(bench: Bench) -> None:
    held = claimed(bench)
    bench.do(c.Extend("t", "g", "w", held, HOUR_MS))
    bench.do(c.Ack("t", "g", "w", held))


def expired(bench: Bench) -> None:
    claimed(bench, 100)
    bench.clock.move(100)
    command = bench.broker.due(bench.clock.now_ms())
    assert command is not None
    in_flight = bench.broker.state.groups[GROUP].progress[0].in_flight
    bench.do(command)
    assert bench.broker.state.groups[GROUP].progress[0].in_flight == in_flight - 1


@pytest.mark.parametrize("pending", [held_singly, in_backoff, due_for_retry, held_again])
def test_many_pending_messages_make_nothing_slower(pending: Callable[[int], Bench]) -> None:
    few, many = pending(FEW), pending(MANY)
    for bench in (few, many):
        bench.produce(20_000)
    for act in (acked, nacked, extended, expired):
        few_us = many_us = float("inf")
        for attempt in range(ATTEMPTS_MAX):
            few_us, many_us = min(few_us, best_us(few, act)), min(many_us, best_us(many, act))
            if attempt >= ATTEMPTS_MIN and many_us < 1.5 * few_us + 2:
                break
        print(f"\n{act.__name__}, {pending.__name__}: {few_us:.1f} us with {FEW}, {many_us:.1f} us with {MANY}", end="")
        assert many_us < 1.5 * few_us + 2


def best_us(bench: Bench, act: Callable[[Bench], None], rounds: int = 100) -> float:
    started_s = time.thread_time()
    for _ in range(rounds):
        act(bench)
    return (time.thread_time() - started_s) / rounds * 1e6


@pytest.mark.parametrize("pending", [held_singly, in_backoff, held_again])
def test_a_restart_takes_as_long_for_each_of_many_pending_messages(pending: Callable[[int], Bench]) -> None:
    def cost_us(bench: Bench, count: int) -> float:
        started_s = time.thread_time()
        frames = [encode([fact]) for fact in bench.broker.snapshot()]
        restored = Broker(NO_LIMITS, bench.broker.reader, SeededChance())
        for frame in frames:
            for fact in decode(frame):
                restored.apply(fact)
        took_s = time.thread_time() - started_s
        assert (
            restored.state.groups[GROUP].progress[0].next_ms() == bench.broker.state.groups[GROUP].progress[0].next_ms()
        )
        return took_s / count * 1e6

    few, many = pending(MANY // 10), pending(MANY)
    few_us = many_us = float("inf")
    for attempt in range(12):
        few_us, many_us = min(few_us, cost_us(few, MANY // 10)), min(many_us, cost_us(many, MANY))
        if attempt >= 2 and many_us < 1.5 * few_us + 1:
            break
    print(f"\nrestart, {pending.__name__}: {few_us:.1f} us each with {MANY // 10}, {many_us:.1f} us with {MANY}")
    assert many_us < 1.5 * few_us + 1
