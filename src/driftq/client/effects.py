"""Effects outside the broker that should happen once.

    with message.effect() as effect:              # begin: was it done before?
        if effect.fresh:
            effect.result = gateway.charge(order, key=effect.key, fence=effect.fence)
            effect.send("receipts", order)
                                                  # commit + ack + messages, in one write

If the worker dies inside the block, the next delivery begins the effect again: pass `effect.key` or `effect.fence` to
the other side so that it can recognise a repeat. Effects in your own database are safer in its transaction: see `sql`.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from driftq.client.calls import queue
from driftq.client.errors import DriftQError
from driftq.client.inbox import Inbox as Inbox
from driftq.client.inbox import sql as sql
from driftq.client.outcome import AsyncOutcome, Outcome, OutcomeMethods
from driftq.client.worker.handler_results import error_summary

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.message import AsyncMessage, Message, MessageMethods
    from driftq.client.transport.sansio import Call
    from driftq.wire.effects import BeginReply


class EffectMethods:
    """What both kinds of effect share. `fresh`: it was not done yet. `result`: what the first attempt returned."""

    fresh = False
    fence = 0
    result: Any = None

    def __init__(
        self, message: MessageMethods, outcome: OutcomeMethods, key: str, lease_ms: int | None, ttl_ms: int
    ) -> None:
        self.key = key
        self._message = message
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
        holder = self._message.holder
        return {"topic": holder.topic, "group": holder.group, "key": self.key}

    def _begin(self) -> Call[BeginReply]:
        message = self._message
        return queue.begin_effect(
            **self._scope(),
            owner=message.holder.owner,
            tenant=message.envelope.tenant_id,
            lease_ms=self._lease_ms,
            partition=message.partition,
            offset=message.offset,
            token=message.delivered.token,
        )

    def _on_begun(self, reply: BeginReply) -> None:
        self.fresh = reply.status == "begun"
        self.fence = reply.fence
        if reply.result:
            self.result = msgspec.json.decode(reply.result)

    def _fail(self, error: BaseException) -> Call[None]:
        return queue.fail_effect(
            **self._scope(), fence=self.fence, reason=error_summary(error), tenant=self._message.envelope.tenant_id
        )

    def _add_commit(self) -> None:
        """Add the effect's commit to the outcome."""
        result = msgspec.json.encode(self.result).decode() if self.result is not None else ""
        tenant = self._message.envelope.tenant_id
        self._outcome.commit_effect(
            **self._scope(), fence=self.fence, result=result, ttl_ms=self._ttl_ms, tenant_id=tenant
        )


class Effect(EffectMethods):
    """`with` begins and commits."""

    def __init__(self, message: Message, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._commit_outcome = Outcome(self._transport).ack(message)
        super().__init__(message, self._commit_outcome, key, lease_ms, ttl_ms)

    def __enter__(self) -> Self:
        self._on_begun(self._transport.execute(self._begin()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.fresh:
            return
        if error is None:
            self._add_commit()
            self._commit_outcome.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                self._transport.execute(self._fail(error))


class AsyncEffect(EffectMethods):
    """`async with` begins and commits."""

    def __init__(self, message: AsyncMessage, key: str, lease_ms: int | None, ttl_ms: int) -> None:
        self._transport = message._transport
        self._commit_outcome = AsyncOutcome(self._transport).ack(message)
        super().__init__(message, self._commit_outcome, key, lease_ms, ttl_ms)

    async def __aenter__(self) -> Self:
        self._on_begun(await self._transport.execute(self._begin()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self.fresh:
            return
        if error is None:
            self._add_commit()
            await self._commit_outcome.commit()
        else:
            with contextlib.suppress(DriftQError):  # what was raised matters more; the lease ends by itself
                await self._transport.execute(self._fail(error))
