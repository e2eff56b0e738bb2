"""Leases at any size: what claims, heartbeats, nacks, expiries and a restart cost as a group's pending messages grow.

    python -m bench.leases [--few 1000] [--many 100000] [--runs 5] [--only TEXT]

A call is decided, encoded, applied and projected to a log store in memory, as the engine does it. The value of a case
is a ratio: its CPU time per message with `many` pending messages, divided by that with `few`. 1 is flat. For an expiry
`turn_ms_max` is the longest single sweep.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator

from bench.core import NOW_MS, VALUE
from bench.report import Run, cost_of, emit, median
from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader, project
from driftq.engine.snapshot_store import snapshot_frames
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.records import COUNT_MAX, Record, pack

STEP = 200  # messages in one timed run
HOUR_MS = 3_600_000
LIMITS = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50, in_flight_max=1 << 40, batch_bytes=64 << 20)


class Driver:
    """A broker over a log store in memory, with one topic `t` and one group `g`."""

    def __init__(self) -> None:
        self.store = MemoryLogStore()
        self.broker = Broker(LIMITS, StoreReader(self.store), SystemChance())
        self.now_ms = NOW_MS
        self.do(c.CreateTopic("t"))
        self.do(c.CreateGroup("t", "g"))

    def do(self, command: c.Command) -> Reply:
        facts, reply = self.broker.decide(command, self.now_ms)
        assert not isinstance(reply, Rejected), reply
        if facts:
            encode(facts)
            self.broker.apply_all(facts)
            project(self.store, facts)
        return reply

    def produce(self, count: int, *, compress: bool = False) -> None:
        while count > 0:
            size = min(count, COUNT_MAX)
            batch = pack([Record(VALUE)] * size, compress=compress)
            self.do(c.Produce("t", batch, size, size * len(VALUE), partition=0))
            count -= size

    def claim(self, size: int, lease_ms: int = HOUR_MS) -> tuple[c.Held, ...]:
        reply = self.do(c.Claim("t", "g", "w", size, lease_ms))
        assert isinstance(reply, Claimed)
        assert reply.deliveries
        return tuple(c.Held(0, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries)

    def nack(self, held: tuple[c.Held, ...], delay_ms: int = HOUR_MS) -> None:
        self.do(c.Nack("t", "g", "w", held, "a reason", delay_ms))

    def sweep(self) -> Iterator[float]:
        """Run what is due until nothing is left; the CPU time of each sweep."""
        while True:
            started_s = time.process_time()
            command = self.broker.due(self.now_ms)
            if command is None:
                next_ms = self.broker.next_deadline_ms()
                if next_ms is None or next_ms > self.now_ms + 1_000:
                    return
                self.now_ms = next_ms
                continue
            self.do(command)
            yield time.process_time() - started_s


# --- the state of a group ---


def held_singly(count: int) -> Driver:
    """Every second message is settled, the others are held under a lease each: as many ranges as messages."""
    driver = Driver()
    driver.produce(2 * count)
    for _ in range(count):
        driver.claim(1)
        driver.do(c.Ack("t", "g", "w", driver.claim(1)))
    return driver


def in_backoff(count: int) -> Driver:
    """Messages that failed and are due in an hour."""
    driver = Driver()
    driver.produce(count)
    for _ in range(0, count, 100):
        driver.nack(driver.claim(min(count, 100)))
    return driver


def due_for_retry(count: int) -> Driver:
    """Messages that failed and can be claimed again."""
    driver = in_backoff(count)
    driver.now_ms += 2 * HOUR_MS
    return driver


def held_again(count: int) -> Driver:
    """Messages of a second attempt, held under a lease each."""
    driver = due_for_retry(count)
    for _ in range(count):
        driver.claim(1)
    return driver


# --- what is done with it ---


def claim_and_ack(driver: Driver) -> None:
    driver.do(c.Ack("t", "g", "w", driver.claim(1)))


def claim_and_nack(driver: Driver) -> None:
    driver.nack(driver.claim(1))


def claim_and_expire(driver: Driver) -> None:
    """One lease runs out beside many others."""
    driver.claim(1, 1_000)
    driver.now_ms += 1_000
    for _ in driver.sweep():
        pass


def claim_and_extend(driver: Driver) -> None:
    """One heartbeat of a new message, which is then settled."""
    held = driver.claim(1)
    driver.do(c.Extend("t", "g", "w", held, HOUR_MS))
    driver.do(c.Ack("t", "g", "w", held))


def repeated(prepare: Callable[[int], Driver], work: Callable[[Driver], None]) -> Callable[[int], Callable[[], Run]]:
    def make(count: int) -> Callable[[], Run]:
        driver = prepare(count)

        def ready() -> Run:
            driver.produce(STEP)

            def run() -> int:
                for _ in range(STEP):
                    work(driver)
                return STEP

            return run

        return ready

    return make


def flatness(few: int, many: int, runs: int, only: str) -> None:
    states = {
        "held singly": held_singly,
        "in backoff": in_backoff,
        "due for retry": due_for_retry,
        "held again": held_again,
    }
    works = {
        "claim 1 + ack": claim_and_ack,
        "claim 1 + nack": claim_and_nack,
        "claim 1 + expiry": claim_and_expire,
        "claim 1 + heartbeat + ack": claim_and_extend,
    }
    for state, prepare in states.items():
        for work, act in works.items():
            name = f"{work}: {few} or {many} {state}"
            if only in name:
                _compare(name, repeated(prepare, act), few, many, runs)


def _compare(name: str, make: Callable[[int], Callable[[], Run]], few: int, many: int, runs: int) -> None:
    with_few, with_many = make(few), make(many)
    gc.collect()
    gc.freeze()
    pairs = [(cost_of(with_few()).cpu_us, cost_of(with_many()).cpu_us) for _ in range(runs)]
    gc.unfreeze()
    small, big = median([pair[0] for pair in pairs]), median([pair[1] for pair in pairs])
    emit("leases", name, big / small, "ratio", cpu_us_per_op=big, cpu_us_small=small)


# --- all at once ---


def expire_all(count: int, size: int, *, again: bool = False) -> tuple[float, float]:
    """All leases run out together. CPU time per message in microseconds, and of the longest sweep in milliseconds."""
    driver = due_for_retry(count) if again else Driver()
    if not again:
        driver.produce(count)
    for _ in range(0, count, size):
        driver.claim(size, 60_000)
    driver.now_ms += 60_000
    turns_s = list(driver.sweep())
    return 1e6 * sum(turns_s) / count, 1e3 * max(turns_s)


def nack_all(count: int, *, compress: bool) -> tuple[float, float]:
    """Messages of one batch, nacked a hundred at a time."""
    driver = Driver()
    driver.produce(count, compress=compress)
    turns_s: list[float] = []
    claims = [driver.claim(100) for _ in range(0, min(count, 2_000), 100)]
    for held in claims:
        started_s = time.process_time()
        driver.nack(held)
        turns_s.append(time.process_time() - started_s)
    return 1e6 * sum(turns_s) / (100 * len(claims)), 1e3 * max(turns_s)


def restart(count: int) -> tuple[float, float]:
    """A snapshot of messages in backoff is written and folded."""
    driver = in_backoff(count)
    started_s = time.process_time()
    frames = list(snapshot_frames(driver.broker))
    broker = Broker(LIMITS, StoreReader(MemoryLogStore()), SystemChance())
    longest_s = 0.0
    for frame in frames:
        frame_s = time.process_time()
        for fact in decode(frame):
            broker.apply(fact)
        longest_s = max(longest_s, time.process_time() - frame_s)
    return 1e6 * (time.process_time() - started_s) / count, 1e3 * longest_s


def at_once(few: int, many: int, only: str) -> None:
    cases: dict[str, Callable[[int], tuple[float, float]]] = {
        "expiry of leases of 1": lambda count: expire_all(count, 1),
        "expiry of leases of 100": lambda count: expire_all(count, 100),
        "expiry of leases of 1 on the second attempt": lambda count: expire_all(count, 1, again=True),
        "nack 100 in one batch": lambda count: nack_all(count, compress=False),
        "nack 100 in one compressed batch": lambda count: nack_all(count, compress=True),
        "snapshot and restart, in backoff": restart,
    }
    for case, run in cases.items():
        name = f"{case}: {few} or {many} messages"
        if only in name:
            small_us, _ = run(few)
            big_us, turn_ms = run(many)
            emit(
                "leases", name, big_us / small_us, "ratio", cpu_us_per_op=big_us, cpu_us_small=small_us,
                turn_ms_max=turn_ms,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    at_once(options.few, options.many, options.only)
    flatness(options.few, options.many, options.runs, options.only)


if __name__ == "__main__":
    main()
