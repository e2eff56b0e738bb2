"""The workload of the demo: orders are sent, a group processes them, and some of them fail.

The number of the next order is the number of orders in the log, so a workload that is started again continues counting.
Each order has its number as idempotency key, so a repeat after a broken connection is recognised.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from driftq.client.api import connect
from driftq.client.errors import DriftQError

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.client.message import Message

TOPIC = "demo.orders"
GROUP = "billing"
PARTITIONS = 3
TENANTS = ("acme", "bee", "corvid")
STEPS = ("order", "charge", "ship")
TICK_S = 0.25
CLAIM_MAX = 50


class Workload:
    """Two threads: one sends, one processes. Both stop between two messages."""

    def __init__(self, url: str, rate_per_s: int) -> None:
        self.sent = 0
        self.done = 0
        self.failed = 0
        self.error = ""
        self._url = url
        self._rate_per_s = rate_per_s
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), name=f"demo{loop.__name__}", daemon=True)
            for loop in (self._send, self._work)
        ]

    def start(self) -> int:
        """Create the topic if it does not exist, and start. Returns the number of the first order."""
        with connect(self._url) as broker:
            broker.topics.create(TOPIC, partitions=PARTITIONS, history=True)
            self.sent = first = count(broker)
        for thread in self._threads:
            thread.start()
        return first

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _guarded(self, loop: object) -> None:
        """An error of the broker ends the workload, not the program; it is kept in `error`."""
        try:
            with connect(self._url) as broker:
                loop(broker)  # type: ignore[operator]
        except DriftQError as error:
            if not self._ended.is_set():
                self.error = str(error)

    def _send(self, broker: DriftQ) -> None:
        due_s = time.monotonic()
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            due_s += TICK_S
            for _ in range(max(1, int(self._rate_per_s * TICK_S))):
                send(broker, self.sent)
                self.sent += 1
                if self._ended.is_set():
                    return

    def _work(self, broker: DriftQ) -> None:
        while not self._ended.is_set():
            for message in broker.claim(TOPIC, GROUP, max=CLAIM_MAX, wait_ms=500, lease_ms=30_000):
                self._settle(message)

    def _settle(self, message: Message) -> None:
        """Every 29th order fails at its first attempt, every 97th permanently."""
        number = int(message.value)
        if number % 97 == 96:
            message.reject(f"card {number} was refused")
            self.failed += 1
        elif number % 29 == 28 and message.attempts == 1:
            message.nack(f"timeout after {number % 7} s", delay_ms=500)
            self.failed += 1
        else:
            message.ack()
            self.done += 1


def send(broker: DriftQ, number: int) -> None:
    """One order: a step of a run of three."""
    run, step = divmod(number, len(STEPS))
    broker.send(
        TOPIC,
        str(number),
        key=f"customer-{run % 50}",
        idempotency_key=f"order-{number}",
        tenant=TENANTS[run % len(TENANTS)],
        run_id=f"run-{run}",
        step_id=STEPS[step],
        parent_step_id=STEPS[step - 1] if step else "",
    )


def count(broker: DriftQ) -> int:
    """How many orders the log has."""
    return sum(log.end for log in broker.topics.offsets(TOPIC).partitions)
