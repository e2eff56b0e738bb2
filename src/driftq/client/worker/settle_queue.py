"""Handled messages that wait to be settled. What ends while a call is under way shares the next one.

    runners ──add──▶ _waiting ──run──▶ one call for each kind of settlement ──▶ on_settled
                        └──take_acks──▶ the next claim, which acks them in its own call

If a claim is about to follow (`claims_next`), acks are left to it. Otherwise they are sent at once: a caller may wait
for the result.

A busy worker makes few calls per message. A call that fails is not repeated without end: its
messages are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.client.claims import (
    ACK,
    SettleAction,
    acks_of_claim,
    by_settlement,
    results_too_large,
    settle,
    settle_parts,
)
from driftq.client.errors import DriftQError
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.worker.attempt import AnyMessage
    from driftq.client.worker.hooks import HookChain
    from driftq.client.worker.options import WorkerCounts
    from driftq.wire.claims import RefusedItem, SettleReply

logger = logging.getLogger("driftq.worker")

SETTLE_MAX = 5_000  # messages in one call that settles or extends


class SettleQueue:
    """Settles the messages of one worker. `on_settled` is called for each of them when it is no longer held. While
    `claims_next` is true, acks are left to the next claim."""

    def __init__(
        self,
        transport: AsyncTransport,
        counts: WorkerCounts,
        on_settled: Callable[[AnyMessage], None],
        claims_next: Callable[[], bool],
        hooks: HookChain | None = None,
    ) -> None:
        self._transport = transport
        self._counts = counts
        self._on_settled = on_settled
        self._claims_next = claims_next
        self._hooks = hooks if hooks is not None and hooks.on_dead else None
        self._waiting: list[tuple[AnyMessage, SettleAction]] = []
        self._added = asyncio.Event()  # `_waiting` is not empty

    def add(self, message: AnyMessage, settlement: SettleAction) -> None:
        self._waiting.append((message, settlement))
        self._added.set()

    @property
    def acks(self) -> int:
        """How many messages wait for their ack alone."""
        return sum(settlement is ACK for _, settlement in self._waiting)

    def wake(self) -> None:
        """Look again at what waits."""
        if self._waiting:
            self._added.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting and not (self.acks == len(self._waiting) and self._claims_next()):
                handled, self._waiting = self._waiting, []
                for settlement, messages in by_settlement(handled):
                    for part in settle_parts(messages, SETTLE_MAX):
                        await self._settle(settlement, part)

    async def _settle(self, settlement: SettleAction, messages: list[AnyMessage]) -> None:
        messages.sort(key=position)
        try:
            reply = await self._transport.execute(settle(settlement.verb, messages, **settlement.fields()))
        except DriftQError as error:
            logger.warning("%d messages could not be settled and will be delivered again: %s", len(messages), error)
            self._end(settlement, messages, len(messages))
            return
        if self._hooks is not None and settlement.verb in ("nack/batch", "reject"):
            self._notify_of_dead(self._hooks, settlement, messages, reply)
        self.settled(settlement, messages, reply.refused)

    def settled(self, settlement: SettleAction, messages: list[AnyMessage], refused: list[RefusedItem]) -> None:
        """The broker has answered a call that settles these messages. If a result was too large, its job is
        rejected."""
        if refused:
            for message, reason in results_too_large(messages, refused).items():
                messages.remove(message)
                self.add(message, SettleAction("reject", reason))
            refused = [item for item in refused if item.error != Code.TOO_LARGE]
        if refused:
            logger.warning("%d messages were lost before they were settled: %s", len(refused), refused[0].message)
        self._end(settlement, messages, len(refused))

    def _end(self, settlement: SettleAction, messages: list[AnyMessage], lost: int) -> None:
        self._counts.count(settlement.verb, len(messages) - lost)
        self._counts.lost += lost
        for message in messages:
            message.mark_settled(settlement.verb)
            self._on_settled(message)

    def _notify_of_dead(
        self, hooks: HookChain, settlement: SettleAction, messages: list[AnyMessage], reply: SettleReply
    ) -> None:
        if settlement.verb == "reject":
            refused = {(item.partition, item.offset) for item in reply.refused}
            dead = [message for message in messages if position(message) not in refused]
        else:
            ended = {(item.partition, item.offset) for item in reply.dead}
            dead = [message for message in messages if position(message) in ended]
        for message in dead:
            hooks.notify(hooks.on_dead, message, settlement.reason)

    # --- acks that travel with a claim ---

    def take_acks(self) -> list[AnyMessage]:
        """Handled messages that the next claim can ack."""
        done = acks_of_claim([message for message, settlement in self._waiting if settlement == ACK])
        if done:
            taken = set(done)
            self._waiting = [item for item in self._waiting if item[0] not in taken]
            done.sort(key=position)
            self.wake()  # for those that are too many or too large for one claim
        return done

    def put_back(self, messages: list[AnyMessage]) -> None:
        """A claim that carried these acks has failed."""
        for message in messages:
            self.add(message, ACK)


def position(message: AnyMessage) -> tuple[int, int]:
    return message.partition, message.offset
