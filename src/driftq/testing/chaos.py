"""Bad deliveries on purpose, from a seed: a worker that passes is idempotent.

All of it happens to real workers of a real broker sooner or later. The broker behaves as always; the worker loop around
the handler does not: it runs a message twice, drops the ack after the work, and takes messages out of order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from driftq.client.claim_result import ClaimResult
from driftq.client.worker.hooks import HookChain
from driftq.client.worker.options import Handler, WorkerCounts
from driftq.client.worker.worker_loop import WorkerLoop

if TYPE_CHECKING:
    from driftq.client.claims import SettleAction
    from driftq.client.message import AsyncMessage, Message
    from driftq.client.worker.attempt import AnyMessage
    from driftq.client.worker.worker import Worker
    from driftq.testing.broker import MemoryBroker

DAY_MS = 24 * 3_600_000


class Chaos(NamedTuple):
    """How likely each fault is, between 0 and 1."""

    duplicates: float = 0.3  # the handler is called with a copy of the message, too
    lost_leases: float = 0.2  # the handler succeeds, and the ack is lost
    reordering: float = 0.5  # the messages of a claim are shuffled
    chances_max: int = 3  # after so many deliveries a message has no more faults


class Report(NamedTuple):
    """What happened. `calls` counts the handler's calls per message, by topic:partition:offset."""

    calls: Counter[str]
    counts: WorkerCounts
    rounds: int

    @property
    def repeated(self) -> list[str]:
        """Messages that the handler saw more than once."""
        return [name for name, times in self.calls.items() if times > 1]


async def run_chaos(broker: MemoryBroker, worker: Worker[Any, Any], chaos: Chaos, seed: int, rounds: int) -> Report:
    """Drain in rounds, with a day between them, until nothing is delivered any more."""
    calls: Counter[str] = Counter()
    total = WorkerCounts()
    round_count = 0
    client = broker.asynchronous()
    try:
        while round_count < rounds:
            round_count += 1
            before = calls.total()
            loop = ChaoticWorkerLoop(worker, client, chaos, seed, calls)
            counts = await loop.run(asyncio.Event(), drain=True)
            for name in WorkerCounts.__slots__:
                setattr(total, name, getattr(total, name) + getattr(counts, name))
            if calls.total() == before:
                break
            for _ in range(2):  # first leases end, then backoffs
                await asyncio.to_thread(broker.advance, DAY_MS)
    finally:
        await client.close()
    return Report(calls, total, round_count)


class ChaoticWorkerLoop(WorkerLoop):
    """A worker loop with faults."""

    def __init__(self, worker: Worker[Any, Any], client: Any, chaos: Chaos, seed: int, calls: Counter[str]) -> None:
        self._inner = worker.handler()
        self._chaos = chaos
        self._seed = seed
        self._random = random.Random(seed)
        self._calls = calls
        self._copies: set[AnyMessage] = set()
        handler: Handler = self._call_async if worker.is_async else self._call
        hooks = HookChain.of(worker.middleware)
        super().__init__(worker.subscription, worker.options, handler, client, is_async=worker.is_async, hooks=hooks)

    def _call(self, message: Message) -> Any:
        self._calls[message.name] += 1
        return self._inner(message)

    async def _call_async(self, message: AsyncMessage) -> Any:
        self._calls[message.name] += 1
        return await self._inner(message)

    def _enqueue(self, messages: list[AnyMessage]) -> None:
        messages = list(messages)
        for message in list(messages):
            if self._has_fault("twice", message, self._chaos.duplicates):
                # A second delivery never has the token of the first.
                delivered = msgspec.structs.replace(message.delivered, token=f"{message.token}-copy")
                result = ClaimResult([], [delivered], [], is_packed=False)
                [copy] = self._messages(result, message.holder._replace(owner="another worker"))
                self._copies.add(copy)
                messages.insert(self._random.randint(0, len(messages)), copy)
        if messages and self._random.random() < self._chaos.reordering:
            self._random.shuffle(messages)
        super()._enqueue(messages)

    def _queue_settlement(self, message: AnyMessage, settlement: SettleAction) -> None:
        if message in self._copies:
            self._release_slot(message)  # a copy is not settled: the original is
        elif settlement.verb == "ack/batch" and self._has_fault("lost", message, self._chaos.lost_leases):
            self.counts.lost += 1
            self._release_slot(message)  # not settled: the lease ends, and the message is redelivered
        else:
            super()._queue_settlement(message, settlement)

    def _has_fault(self, fault: str, message: AnyMessage, probability: float) -> bool:
        """Decided by the seed and the delivery, not by the order of events, so that a seed repeats."""
        if message.attempts > self._chaos.chances_max:
            return False
        return random.Random(f"{self._seed} {fault} {message.name} {message.attempts}").random() < probability
