"""What the state costs: nothing for a settled plain message, little for everything else, and the same time at any size.

Figures are printed (run with `-s`); bounds are loose enough for any machine and tight enough to notice a mistake.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.testing.clock import START_MS, HandClock
from driftq.wire.records import Record, pack_one
from tests.support.broker_fixture import SeededChance

# What compares times runs alone: a busy neighbour empties the caches of the larger case only.
compares_times = pytest.mark.serial

NO_LIMITS = BrokerLimits(
    in_flight_max=10**9, claim_max=10**9, partition_messages=10**9, partition_bytes=10**15,
    sweep_max=10**9, lanes_per_log_max=10**6,
)  # fmt: skip
BATCH = pack_one(b"value")


class BareReader:
    """Every record is the same and everything is durable: only the state itself takes room."""

    def __init__(self) -> None:
        self.broker: Broker | None = None

    def end(self, log_id: int) -> int:
        assert self.broker is not None
        return self.broker.state.logs[log_id].end

    def record(self, log_id: int, offset: int) -> Record:
        return Record(b"value")

    def head(self, log_id: int, offset: int) -> bytes:
        return b""

    def batch_end(self, log_id: int, offset: int) -> int:
        return offset + 1

    def time_of(self, log_id: int, offset: int) -> int:
        return START_MS

    def offset_at(self, log_id: int, at_ms: int) -> int:
        return 0

    def spans(self, log_id: int) -> list[tuple[int, int, int, int]]:
        return []


class Bench:
    """A broker alone, on one topic `t` read by one group `g`."""

    def __init__(self) -> None:
        reader = BareReader()
        self.broker = reader.broker = Broker(NO_LIMITS, reader, SeededChance())
        self.clock = HandClock()
        self.do(c.CreateTopic("t"))
        self.do(c.CreateGroup("t", "g"))

    def do(self, command: c.Command) -> Reply:
        facts, reply = self.broker.decide(command, self.clock.now_ms())
        for fact in facts:
            self.broker.apply(fact)
        assert not isinstance(reply, Rejected), reply
        return reply

    def produce(self, count: int, **more: object) -> None:
        self.do(c.Produce("t", BATCH, count, 5 * count, partition=0, **more))  # type: ignore[arg-type]

    def claim(self, limit: int, owner: str = "w") -> Claimed:
        reply = self.do(c.Claim("t", "g", owner, limit, 600_000))
        assert isinstance(reply, Claimed)
        return reply

    def ack(self, first: int, end: int) -> None:
        self.do(c.Ack("t", "g", "w", (c.Held(0, first, end),)))


def grown_bytes(act: Callable[[], None], first: Callable[[], None] = lambda: None) -> int:
    """How much more there is after `act`. What `first` makes is counted before, so that replacing it is no growth."""
    tracemalloc.start()
    first()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    act()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def test_a_settled_plain_message_costs_nothing():
    bench = Bench()

    def live(rounds: int) -> Callable[[], None]:
        def act() -> None:
            for _ in range(rounds):
                end = bench.broker.state.logs[1].end
                bench.produce(1)
                bench.claim(1)
                bench.ack(end, end + 1)

        return act

    # The notes of sizes are full after the first run; every 4,096 appends they are as long as before.
    grown = grown_bytes(live(4_096), first=live(2 * 4_096 + 100))
    print(f"\n4,096 settled messages: {grown} bytes")
    assert grown < 2_000


@pytest.mark.parametrize(
    ("what", "bytes_max"),
    [("entries", 420), ("keys", 480), ("lease each", 480), ("ranges with gaps", 120), ("lanes", 40), ("effects", 500)],
)
def test_what_is_kept_costs_little(what, bytes_max):
    count = 5_000
    bench = Bench()
    bench.produce(2 * count)

    def entries() -> None:
        bench.do(c.Nack("t", "g", "w", (c.Held(0, 0, count),), "", 10**9))

    def keys() -> None:
        for number in range(count):
            bench.produce(1, once=c.ProduceKey("", "t", f"key-{number:08}"))

    def lease_each() -> None:
        for _ in range(count):
            bench.claim(1)

    def gaps() -> None:
        for offset in range(1, 2 * count, 2):
            bench.ack(offset, offset + 1)

    def lanes() -> None:
        marks = tuple(f.RecordSchedule(index, priority=5) for index in range(count))
        bench.produce(count, marks=marks)

    def effects() -> None:
        for number in range(count):
            bench.do(c.BeginEffect(c.EffectKey("", "t", "g", f"key-{number:08}"), "w", 600_000))

    if what in ("entries", "ranges with gaps"):
        bench.claim(2 * count)
    acts = {
        "entries": entries,
        "keys": keys,
        "lease each": lease_each,
        "ranges with gaps": gaps,
        "lanes": lanes,
        "effects": effects,
    }
    bytes_per_item = grown_bytes(acts[what]) / count
    print(f"\n{what}: {bytes_per_item:.0f} bytes each")
    assert 0 <= bytes_per_item <= bytes_max


def best_us(act: Callable[[], None], rounds: int) -> float:
    """Microseconds of one core for one call: the best of several runs, so that a busy machine does not matter."""
    best = float("inf")
    for _ in range(9):
        start = time.thread_time()
        for _ in range(rounds):
            act()
        best = min(best, time.thread_time() - start)
    return best / rounds * 1e6


def cost_at_backlog(backlog: int) -> tuple[float, float, float]:
    bench = Bench()
    for _ in range(0, backlog, 1_000):
        bench.produce(1_000)
    produce_us = best_us(lambda: bench.produce(1), 300)

    def work() -> None:
        claimed = bench.claim(1)
        first = claimed.deliveries[0].first
        bench.ack(first, first + 1)

    return produce_us, best_us(work, 300), best_us(lambda: bench.do(c.Claim("t", "g", "w", 10, 600_000)), 50)


@compares_times
def test_a_backlog_makes_nothing_slower():
    small, large = cost_at_backlog(10_000), cost_at_backlog(200_000)
    print(f"\nmicroseconds (produce, claim + ack, claim of 10): {small} at 10,000, {large} at 200,000")
    for before, after in zip(small, large, strict=True):
        assert after < 2 * before + 2


@compares_times
def test_many_keys_make_nothing_slower():
    def cost(keys: int) -> float:
        bench = Bench()
        number = 0

        def once() -> None:
            nonlocal number
            number += 1
            bench.produce(1, once=c.ProduceKey("", "t", f"key-{number}"))

        for _ in range(keys):
            once()
        return best_us(once, 300)

    few, many = cost(10), cost(100_000)
    print(f"\nmicroseconds of a produce with a key: {few:.1f} with 10 keys, {many:.1f} with 100,000")
    assert many < 2 * few + 2


@compares_times
def test_many_resting_messages_make_nothing_slower():
    def cost(resting: int) -> float:
        bench = Bench()
        bench.produce(resting)
        bench.claim(resting)
        bench.do(c.Nack("t", "g", "w", (c.Held(0, 0, resting),), "", 10**9))
        bench.produce(5_000)

        def work() -> None:
            first = bench.claim(1).deliveries[0].first
            bench.ack(first, first + 1)

        return best_us(work, 300)

    few, many = cost(100), cost(50_000)
    print(f"\nmicroseconds of claim + ack: {few:.1f} with 100 resting, {many:.1f} with 50,000")
    assert many < 2 * few + 2


DAY_MS = 86_400_000


def with_gaps(gaps: int, tasks: tuple[str, ...]) -> Bench:
    """Every second message waits for tomorrow, every other one is settled."""
    bench = Bench()
    for first in range(0, gaps, 1_000):
        marks = tuple(
            f.RecordSchedule(2 * index, task=tasks[index % len(tasks)], not_before_ms=START_MS + DAY_MS)
            for index in range(min(1_000, gaps - first))
        )
        bench.produce(2 * len(marks), marks=marks)
        claimed = bench.claim(len(marks))
        bench.do(
            c.Ack("t", "g", "w", tuple(c.Held(0, delivery.first, delivery.end) for delivery in claimed.deliveries))
        )
    return bench


@compares_times
@pytest.mark.parametrize("tasks", [("",), ("a", "b")], ids=["plain", "tasks"])
def test_many_gaps_make_nothing_slower(tasks):
    def cost(gaps: int) -> tuple[float, float]:
        bench = with_gaps(gaps, tasks)
        bench.produce(5_000)

        def work() -> None:
            first = bench.claim(1).deliveries[0].first
            bench.ack(first, first + 1)

        busy = best_us(work, 300)
        bench.claim(5_000)
        assert len(bench.broker.state.groups[1].progress[0].settled) >= gaps
        return busy, best_us(lambda: bench.do(c.Claim("t", "g", "w", 1, 600_000)), 300)

    few, many = cost(10), cost(50_000)
    print(f"\nmicroseconds (claim + ack, claim of nothing): {few} with 10 gaps, {many} with 50,000")
    for before, after in zip(few, many, strict=True):
        assert after < 2 * before + 2


@compares_times
def test_what_was_settled_before_it_was_delivered_is_passed_once():
    """Cancelled messages between delayed ones: no claim walks over them again."""

    def cost(pairs: int) -> float:
        bench = Bench()
        marks = tuple(f.RecordSchedule(2 * index, not_before_ms=START_MS + DAY_MS) for index in range(pairs))
        bench.produce(2 * pairs, marks=marks)
        for index in range(pairs):
            bench.do(c.Cancel("t", 0, 2 * index + 1))
        return best_us(lambda: bench.do(c.Claim("t", "g", "w", 1, 600_000)), 300)

    few, many = cost(10), cost(20_000)
    print(f"\nmicroseconds of a claim of nothing: {few:.1f} after 10 pairs, {many:.1f} after 20,000")
    assert many < 2 * few + 2


@compares_times
def test_what_a_deleted_topic_held_is_freed_little_by_little():
    def delete_s() -> float:
        bench = Bench()
        bench.do(c.CreateTopic("wide", partitions=1_000))
        for number in range(10):
            bench.do(c.CreateGroup("wide", f"g{number}"))
        started_s = time.thread_time()
        bench.do(c.DeleteTopic("wide"))
        took_s = time.thread_time() - started_s
        state = bench.broker.state
        assert len(state.discarded) == 10_000
        assert state.free_discarded(6_000)
        assert not state.free_discarded(6_000)
        return took_s

    took_s = min(delete_s() for _ in range(3))
    print(f"\nmilliseconds to delete 1,000 partitions with 10 groups: {1e3 * took_s:.1f}")
    assert took_s < 0.003  # it was 5 ms when it was freed at once


def test_the_messages_of_a_deleted_group_are_freed_little_by_little():
    bench = Bench()
    bench.produce(1_000)
    bench.claim(1_000)
    bench.do(c.Nack("t", "g", "w", (c.Held(0, 0, 1_000),), "no", 1_000))
    bench.do(c.DeleteGroup("t", "g"))
    state = bench.broker.state
    assert [state.free_discarded(400), state.free_discarded(400), state.free_discarded(400)] == [True, True, False]
