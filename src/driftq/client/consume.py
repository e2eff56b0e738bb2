"""Iterators over the messages of a group: one by one (`consume`) and in batches (`claims`), blocking and async.

    consume   claims `prefetch` messages, hands out one after the other and keeps the leases of the others alive
    claims    hands out whole batches; asking for the next batch acks the last one, in the same call

Both claim without end; `claims` with `drain` stops when nothing is left. With `ahead`, `claims` sends the next claims
before it needs their messages, so that the broker works while the caller does:

    caller      │ batch 1    │ batch 2    │ batch 3    │
    requests  claim  claim  ack 1+claim  ack 2+claim
    broker      │  batch 2   │  batch 3   │  batch 4   │

All claims of an iterator are on one connection, whose replies come in order, so batches do, too. A claim that has to be
retried takes messages after those of the claims behind it; its batch is handed out after theirs.

Nothing here knows a socket.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from driftq.client.claims import (
    ACK,
    EXTEND,
    RELEASE,
    Claiming,
    PrefetchBuffer,
    SettleableMessage,
    claim_flow,
    settle,
    unsettled,
)
from driftq.client.errors import DriftQError
from driftq.client.transport.pipeline import AsyncPipeline, Pipeline
from driftq.client.transport.sansio import random_name

if TYPE_CHECKING:
    from driftq.client.claim_result import ClaimResult
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Flow
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.claims import HeldItem, SettleReply

logger = logging.getLogger("driftq.client")

CONSUME_WAIT_MS = 20_000
AHEAD_MAX = 16


class BatchMessage(SettleableMessage, Protocol):
    """A message of either client."""

    settled_as: str
    lost: bool


M = TypeVar("M", bound=BatchMessage)
Begin = Callable[["Flow[ClaimResult]"], Any]  # returns a `BegunFlow` or a `FlowTask`, by the transport
Decode = Callable[["ClaimResult"], list[M]]  # makes the messages of a claim


def consume(transport: Transport, claiming: Claiming, decode: Decode[M]) -> Iterator[M]:
    while True:
        claimed = decode(transport.execute(claiming.call(CONSUME_WAIT_MS)))
        prefetched = PrefetchBuffer(claimed, claiming.lease_ms, time.monotonic())
        while prefetched.waiting:
            if prefetched.is_due(time.monotonic()):
                extension = settle(EXTEND, prefetched.waiting, lease_ms=claiming.lease_ms)
                prefetched.renewed(transport.execute(extension), time.monotonic())
            else:
                yield prefetched.next()


async def consume_async(transport: AsyncTransport, claiming: Claiming, decode: Decode[M]) -> AsyncIterator[M]:
    while True:
        claimed = decode(await transport.execute(claiming.call(CONSUME_WAIT_MS)))
        prefetched = PrefetchBuffer(claimed, claiming.lease_ms, time.monotonic())
        while prefetched.waiting:
            if prefetched.is_due(time.monotonic()):
                extension = settle(EXTEND, prefetched.waiting, lease_ms=claiming.lease_ms)
                prefetched.renewed(await transport.execute(extension), time.monotonic())
            else:
                yield prefetched.next()


def check_ahead(ahead: int) -> None:
    if not 0 <= ahead <= AHEAD_MAX:
        raise ValueError(f"ahead must be 0 to {AHEAD_MAX}, not {ahead}")


def claims(
    transport: Transport, claiming: Claiming, decode: Decode[M], *, drain: bool, ahead: int
) -> Iterator[list[M]]:
    cursor: _BatchCursor[M] = _BatchCursor(claiming, drain, ahead)
    pipeline = Pipeline(transport)
    try:
        while not cursor.is_over:
            cursor.send_next(transport, pipeline.begin)
            begun = cursor.next_begun()
            result = begun.flow.finish()
            batch = decode(result)
            cursor.claimed(begun, result)
            cursor.send_ahead(transport, pipeline.begin)
            messages = batch
            if cursor.is_late(begun, batch):
                extension = settle(EXTEND, batch, lease_ms=claiming.lease_ms)
                messages = cursor.extended(batch, transport.execute(extension))
            if messages:
                yield messages
                cursor.handled(batch, result)
    finally:
        for begun in () if sys.is_finalizing() else cursor.begun:
            with contextlib.suppress(DriftQError):  # it is broken: the leases end by themselves
                left = begun.flow.abandon()
                if left is not None and (batch := decode(left)):
                    transport.execute(settle(RELEASE.verb, batch))


async def claims_async(
    transport: AsyncTransport, claiming: Claiming, decode: Decode[M], *, drain: bool, ahead: int
) -> AsyncIterator[list[M]]:
    cursor: _BatchCursor[M] = _BatchCursor(claiming, drain, ahead)
    pipeline = AsyncPipeline(transport)
    try:
        while not cursor.is_over:
            cursor.send_next(transport, pipeline.begin)
            begun = cursor.next_begun()
            result = await begun.flow.finish()
            batch = decode(result)
            cursor.claimed(begun, result)
            cursor.send_ahead(transport, pipeline.begin)
            messages = batch
            if cursor.is_late(begun, batch):
                extension = settle(EXTEND, batch, lease_ms=claiming.lease_ms)
                messages = cursor.extended(batch, await transport.execute(extension))
            if messages:
                yield messages
                cursor.handled(batch, result)
    finally:
        for begun in cursor.begun:
            with contextlib.suppress(DriftQError):
                left = await begun.flow.abandon()
                if left is not None and (batch := decode(left)):
                    await transport.execute(settle(RELEASE.verb, batch))


class _BegunClaim(NamedTuple, Generic[M]):
    """A claim whose messages were not handed out yet."""

    flow: Any
    acked: Sequence[M]  # the batch that it acks
    claimed_s: float | None  # not before; None: it waits for messages, so they are handed out as they arrive


class _BatchCursor(Generic[M]):
    """The steps of `claims`: which claims come next, and what they ack."""

    def __init__(self, claiming: Claiming, drain: bool, ahead: int) -> None:
        self._claiming = claiming
        self._wait_ms = 0 if drain else CONSUME_WAIT_MS
        self._drain = drain
        self._ahead = ahead
        self._lane = f"claims {random_name()}" if ahead else ""
        self._acks: list[HeldItem] = []  # of the last batch, to be sent with the next claim
        self._batch: Sequence[M] = ()
        self._has_more = False  # the last claim returned messages, so the next ones will, too
        self.begun: deque[_BegunClaim[M]] = deque()  # in the order of their requests
        self.is_over = False

    def send_next(self, transport: Transport | AsyncTransport, begin: Begin) -> None:
        """The claim that acks the last batch, or that waits for messages."""
        if self._acks or not self.begun:
            self._send(transport, begin, 0 if self._acks else self._wait_ms)

    def send_ahead(self, transport: Transport | AsyncTransport, begin: Begin) -> None:
        """Claims for the time in which the caller works, as long as there are messages."""
        while self._has_more and len(self.begun) < self._ahead:
            self._send(transport, begin, 0)

    def _send(self, transport: Transport | AsyncTransport, begin: Begin, wait_ms: int) -> None:
        lane = "" if wait_ms else self._lane
        flow = claim_flow(self._claiming, wait_ms, self._acks, transport.retry, transport.peer, lane)
        self.begun.append(_BegunClaim(begin(flow), self._batch, None if wait_ms else time.monotonic()))
        self._acks, self._batch = [], ()

    def next_begun(self) -> _BegunClaim[M]:
        """The claim whose messages come first: the oldest, unless it is being retried and a later one has succeeded."""
        if len(self.begun) > 1:
            for begun in self.begun:
                if begun.flow.has_ended():
                    self.begun.remove(begun)
                    return begun
        return self.begun.popleft()

    def claimed(self, begun: _BegunClaim[M], result: ClaimResult) -> None:
        """A claim has returned, and the acks that it carried are done."""
        lost = {(refused.partition, refused.offset) for refused in result.refused}
        if lost:
            logger.warning("%d messages were lost before they were acked: %s", len(lost), result.refused[0].message)
        for message in begun.acked:
            if lost and (message.partition, message.offset) in lost:
                message.lost = True
            elif not (message.settled_as or message.lost):
                message.settled_as = ACK.verb
        self._has_more = bool(result.runs or result.messages)
        self.is_over = self._drain and not (begun.acked or self.begun or self._has_more)

    def is_late(self, begun: _BegunClaim[M], batch: list[M]) -> bool:
        """Whether the batch waited for so long that its leases have to be extended before it is handed out."""
        if not self._ahead or begun.claimed_s is None:
            return False
        return PrefetchBuffer(batch, self._claiming.lease_ms, begun.claimed_s).is_due(time.monotonic())

    def extended(self, batch: list[M], reply: SettleReply) -> list[M]:
        """The messages whose lease was not lost while they waited; the broker delivers the others again."""
        lost = {(refused.partition, refused.offset) for refused in reply.refused}
        for message in batch:
            message.lost = (message.partition, message.offset) in lost
        return [message for message in batch if not message.lost]

    def handled(self, batch: Sequence[M], result: ClaimResult) -> None:
        """The caller asks for the next batch: it has done this one."""
        self._batch, self._acks = batch, unsettled(batch, result.runs)
