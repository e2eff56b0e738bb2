"""Iterators over the messages of a group: one by one (`consume`) and in batches (`claims`), blocking and async.

    consume   claims `prefetch` messages, hands out one after the other and keeps the leases of the others alive
    claims    hands out whole batches; asking for the next batch acks the last one, in the same call

Both claim without end; `claims` with `drain` stops when nothing is left. Nothing here knows a socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from driftq.client.claims import ACK, Claiming, PrefetchBuffer, SettleableMessage, claim_flow, settle, unsettled

if TYPE_CHECKING:
    from driftq.client.claim_result import ClaimResult
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Flow
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.claims import HeldItem

logger = logging.getLogger("driftq.client")

CONSUME_WAIT_MS = 20_000


class BatchMessage(SettleableMessage, Protocol):
    """A message of either client."""

    settled_as: str
    lost: bool


M = TypeVar("M", bound=BatchMessage)
Decode = Callable[["ClaimResult"], list[M]]  # makes the messages of a claim


def consume(transport: Transport, claiming: Claiming, decode: Decode[M]) -> Iterator[M]:
    while True:
        claimed = decode(transport.execute(claiming.call(CONSUME_WAIT_MS)))
        prefetched = PrefetchBuffer(claimed, claiming.lease_ms, time.monotonic())
        while prefetched.waiting:
            if prefetched.is_due(time.monotonic()):
                extension = settle("extend", prefetched.waiting, lease_ms=claiming.lease_ms)
                prefetched.renewed(transport.execute(extension), time.monotonic())
            else:
                yield prefetched.next()


async def consume_async(transport: AsyncTransport, claiming: Claiming, decode: Decode[M]) -> AsyncIterator[M]:
    while True:
        claimed = decode(await transport.execute(claiming.call(CONSUME_WAIT_MS)))
        prefetched = PrefetchBuffer(claimed, claiming.lease_ms, time.monotonic())
        while prefetched.waiting:
            if prefetched.is_due(time.monotonic()):
                extension = settle("extend", prefetched.waiting, lease_ms=claiming.lease_ms)
                prefetched.renewed(await transport.execute(extension), time.monotonic())
            else:
                yield prefetched.next()


def claims(transport: Transport, claiming: Claiming, decode: Decode[M], *, drain: bool) -> Iterator[list[M]]:
    cursor: _BatchCursor[M] = _BatchCursor(claiming, drain)
    while not cursor.is_over:
        result = transport.execute(cursor.next(transport))
        batch = decode(result)
        cursor.claimed(result)
        if batch:
            yield batch
            cursor.handled(batch, result)


async def claims_async(
    transport: AsyncTransport, claiming: Claiming, decode: Decode[M], *, drain: bool
) -> AsyncIterator[list[M]]:
    cursor: _BatchCursor[M] = _BatchCursor(claiming, drain)
    while not cursor.is_over:
        result = await transport.execute(cursor.next(transport))
        batch = decode(result)
        cursor.claimed(result)
        if batch:
            yield batch
            cursor.handled(batch, result)


class _BatchCursor(Generic[M]):
    """The steps of `claims`: which call comes next, and what it acks."""

    def __init__(self, claiming: Claiming, drain: bool) -> None:
        self._claiming = claiming
        self._wait_ms = 0 if drain else CONSUME_WAIT_MS
        self._drain = drain
        self._acks: list[HeldItem] = []  # of the last batch, to be sent with the next claim
        self._batch: Sequence[M] = ()
        self.is_over = False

    def next(self, transport: Transport | AsyncTransport) -> Flow[ClaimResult]:
        return claim_flow(self._claiming, self._wait_ms, self._acks, transport.retry, transport.peer)

    def claimed(self, result: ClaimResult) -> None:
        """A claim has returned, and the acks that it carried are done."""
        lost = {(refused.partition, refused.offset) for refused in result.refused}
        if lost:
            logger.warning("%d messages were lost before they were acked: %s", len(lost), result.refused[0].message)
        for message in self._batch:
            if lost and (message.partition, message.offset) in lost:
                message.lost = True
            elif not (message.settled_as or message.lost):
                message.settled_as = ACK.verb
        had_acks = bool(self._acks)
        self._acks, self._batch = [], ()
        self.is_over = self._drain and not had_acks and not (result.runs or result.messages)

    def handled(self, batch: Sequence[M], result: ClaimResult) -> None:
        """The caller asks for the next batch: it has done this one."""
        self._batch, self._acks = batch, unsettled(batch, result.runs)
