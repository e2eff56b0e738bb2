"""Effects outside the broker that should happen once.

    with message.effect() as effect:              # begin: has anybody done it?
        if effect.fresh:
            effect.result = gateway.charge(order, key=effect.key, fence=effect.fence)
            effect.send("receipts", order)
                                                  # commit + ack + messages, in one write

If the worker dies inside the block, the next delivery begins again: hand `effect.key` or `effect.fence` to the other
side where it can check them. Effects in a database of your own are safer in its own transaction: see `sql`.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from driftq.client.calls import queue
from driftq.client.errors import DriftQError
from driftq.client.outcome import AsyncOutcome, Outcome, OutcomeMethods
from driftq.client.worker.handler_results import Inbox as Inbox
from driftq.client.worker.handler_results import reason_of
from driftq.client.worker.handler_results import sql as sql

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.message import AsyncMessage, Message, MessageMethods
    from driftq.client.transport.sansio import Call


class EffectMethods:
    """What both kinds of effect know. `fresh`: nobody has done it yet. `result`: what the first one returned."""

    fresh = False
    fence = 0
    result: Any = None

    def __init__(
        self, message: MessageMethods, outcome: OutcomeMethods, key: str, lease_ms: int | None, ttl_ms: int
    ) -> None:
        self.key = key
        self._about = message
        self._outcome = outcome
        self._lease_ms = lease_ms
        self._ttl_ms = ttl_ms

    def send(self, topic: str, value: Value, **options: Any) -> None:
        """A message that is produced with the commit, or not at all."""
        self._outcome.send(topic, value, **options)

    def append(self, path: str, value: Value, **options: Any) -> None:
        """An append to a stream that happens with the commit, or not at all."""
        self._outcome.append(path, value, **options)

    def _scope(self) -> dict[str, Any]:
        place = self._about.place
        return {"topic": place.topic, "group": place.group, "key": self.key}

    def _begin(self) -> Call[queue.Begun]:
        message = self._about
        return queue.begin_effect(
            **self._scope(),
            owner=message.place.owner,
            tenant=message.envelope.tenant_id,
            lease_ms=self._lease_ms,
            partition=message.partition,
            offset=message.offset,
            token=message.delivered.token,
        )

    def _begun(self, found: queue.Begun) -> None:
        self.fresh = found.status == "begun"
        self.fence = found.fence
        if found.result:
            self.result = msgspec.json.decode(found.result)

    def _fail(self, error: BaseException) -> Call[None]:
        return queue.fail_effect(
            **self._scope(), fence=self.fence, reason=reason_of(error), tenant=self._about.envelope.tenant_id
        )

    def _done(self) -> None:
        """The parts of the commit."""
        result = msgspec.json.encode(self.result).decode() if self.result is not None else ""
        tenant = self._about.envelope.tenant_id
        self._outcome.commit_effect(
            **self._scope(), fence=self.fence, result=result, ttl_ms=self._ttl_ms, tenant_id=tenant
        )


class Effect(EffectMethods):
    """`with` begins and commits."""

    def __init__(self, message: Message, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._writes = Outcome(self._transport).ack(message)
        super().__init__(message, self._writes, key, lease_ms, ttl_ms)

    def __enter__(self) -> Self:
        self._begun(self._transport.ask(self._begin()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.fresh:
            return
        if error is None:
            self._done()
            self._writes.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                self._transport.ask(self._fail(error))


class AsyncEffect(EffectMethods):
    """`async with` begins and commits."""

    def __init__(self, message: AsyncMessage, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._writes = AsyncOutcome(self._transport).ack(message)
        super().__init__(message, self._writes, key, lease_ms, ttl_ms)

    async def __aenter__(self) -> Self:
        self._begun(await self._transport.ask(self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self.fresh:
            return
        if error is None:
            self._done()
            await self._writes.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                await self._transport.ask(self._fail(error))
