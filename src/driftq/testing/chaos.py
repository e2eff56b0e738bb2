"""Deliveries gone wrong, on purpose and from a seed: whoever survives them is idempotent.

Everything here happens to real workers of a real broker on a bad day. The broker is not told to misbehave; the worker
around the handler is: it runs a message twice, dies after the work and before the ack, takes messages out of order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from driftq.client.worker.options import Handler, WorkerCounts
from driftq.client.worker.worker_loop import AnyMessage, WorkerLoop

if TYPE_CHECKING:
    from driftq.client.message import AsyncMessage, Message
    from driftq.client.worker.handler_results import Settlement
    from driftq.client.worker.worker import Worker
    from driftq.testing.broker import MemoryBroker

LONG_MS = 24 * 3_600_000


class Chaos(NamedTuple):
    """How often what goes wrong, each between 0 and 1."""

    duplicates: float = 0.3  # the handler gets the message a second time, at the same time or later
    lost_leases: float = 0.2  # the work is done, and the ack comes too late
    reordering: float = 0.5  # a claim's messages come in another order
    chances_max: int = 3  # after so many deliveries a message is left in peace


class Report(NamedTuple):
    """What was done to the messages. `calls` counts the handler's calls for each, by topic:partition:offset."""

    calls: Counter[str]
    counts: WorkerCounts
    rounds: int

    @property
    def repeated(self) -> list[str]:
        """Messages that the handler saw more than once."""
        return [name for name, times in self.calls.items() if times > 1]


async def chaotic(broker: MemoryBroker, worker: Worker[Any, Any], chaos: Chaos, seed: int, rounds: int) -> Report:
    """Drain, and let a day pass between the rounds, until nothing comes any more."""
    calls: Counter[str] = Counter()
    total = WorkerCounts()
    took = 0
    client = broker.asynchronous()
    try:
        while took < rounds:
            took += 1
            before = calls.total()
            working = ChaoticWorkerLoop(worker, client, chaos, seed, calls)
            counts = await working.run(asyncio.Event(), drain=True)
            for name in WorkerCounts.__slots__:
                setattr(total, name, getattr(total, name) + getattr(counts, name))
            if calls.total() == before:
                break
            for _ in range(2):  # leases end, and what rests after that comes again
                await asyncio.to_thread(broker.advance, LONG_MS)
    finally:
        await client.close()
    return Report(calls, total, took)


class ChaoticWorkerLoop(WorkerLoop):
    """A worker on a bad day."""

    def __init__(self, worker: Worker[Any, Any], client: Any, chaos: Chaos, seed: int, calls: Counter[str]) -> None:
        self._inner = worker.handler()
        self._chaos = chaos
        self._seed = seed
        self._chance = random.Random(seed)
        self._calls = calls
        self._copies: set[AnyMessage] = set()
        handler: Handler = self._call_async if worker.is_async else self._call
        super().__init__(worker.subscription, worker.options, handler, client, is_async=worker.is_async)

    def _call(self, message: Message) -> None:
        self._calls[message.name] += 1
        self._inner(message)

    async def _call_async(self, message: AsyncMessage) -> None:
        self._calls[message.name] += 1
        await self._inner(message)

    def _enqueue(self, messages: list[AnyMessage]) -> None:
        messages = list(messages)
        for message in list(messages):
            if self._strikes("twice", message, self._chaos.duplicates):
                # A second delivery never has the token of the first.
                delivered = msgspec.structs.replace(message.delivered, token=f"{message.delivered.token}-copy")
                copy = self._message(delivered, message.holder._replace(owner="another worker"))
                self._copies.add(copy)
                messages.insert(self._chance.randint(0, len(messages)), copy)
        if messages and self._chance.random() < self._chaos.reordering:
            self._chance.shuffle(messages)
        super()._enqueue(messages)

    def _queue_settlement(self, message: AnyMessage, settlement: Settlement) -> None:
        if message in self._copies:
            self._release_slot(message)  # a copy ends in silence: its original has the word
        elif settlement.verb == "ack/batch" and self._strikes("lost", message, self._chaos.lost_leases):
            self.counts.lost += 1
            self._release_slot(message)  # nobody hears of it: the lease ends, and the message comes again
        else:
            super()._queue_settlement(message, settlement)

    def _strikes(self, what: str, message: AnyMessage, likelihood: float) -> bool:
        """What happens to a delivery depends on the seed and on the delivery, not on who came first."""
        if message.attempts > self._chaos.chances_max:
            return False
        return random.Random(f"{self._seed} {what} {message.name} {message.attempts}").random() < likelihood
