"""A morning in a shop, for the other examples: a broker in memory whose clock is moved by hand, so it takes seconds.

Topic `orders` keeps a history. Acme sends a burst at nine; bolt sends an order every two minutes. Group `billing` has
two workers. From 9:30 to 9:50 the bank does not answer, and a few orders fail whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from driftq.testing import MemoryBroker, memory_broker

MINUTE_MS = 60_000
TICK_MS = 20_000
DAY_MS = 24 * 60 * MINUTE_MS
WORKERS = 2
TICKS = 150 * MINUTE_MS // TICK_MS  # 8:30 to 11:00
RETRY = {"max_attempts": 3, "backoff_ms": 120_000, "max_backoff_ms": 600_000}


@contextmanager
def morning() -> Iterator[MemoryBroker]:
    """The broker after a morning of work, at 11:00."""
    with memory_broker() as broker:
        now_ms = broker.clock.now_ms()
        broker.advance(DAY_MS - now_ms % DAY_MS + (8 * 60 + 30) * MINUTE_MS)
        broker.topics.create("orders", history=True, retry=RETRY, lease_ms=10 * MINUTE_MS)
        working = []
        for tick in range(TICKS):
            minute = 8 * 60 + 30 + tick * TICK_MS / MINUTE_MS
            send(broker, tick, minute)
            working = [left for left in working if not settle(left, minute, tick)]
            idle = WORKERS - len(working)
            claimed = broker.claim("orders", "billing", max=idle) if idle else ()
            working += [(message, tick + 1 + message.offset % 3) for message in claimed]
            broker.advance(TICK_MS)
        yield broker


def send(broker: MemoryBroker, tick: int, minute: float) -> None:
    if 9 * 60 <= minute < 9 * 60 + 5:
        for number in range(8):
            broker.send("orders", {"id": f"a{tick}-{number}"}, tenant="acme")
    if tick % 6 == 0:
        broker.send("orders", {"id": f"b{tick}"}, tenant="bolt")


def settle(work, minute: float, tick: int) -> bool:
    """End an attempt if its time has come."""
    message, until = work
    if tick < until:
        return False
    if 9 * 60 + 30 <= minute < 9 * 60 + 50:
        message.nack("the bank does not answer")
    elif message.offset % 37 == 5:
        message.nack(f"order {message.offset} has no address")
    else:
        message.ack()
    return True
