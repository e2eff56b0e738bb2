"""Claimed messages: who holds them, how they are named in a call, and the calls that settle them.

A claim delivers runs of neighbouring offsets under one token. A call that settles them names each run once instead of
each message: `token_ranges`. Everything here is pure; messages, workers and outcomes share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from driftq.client.calls import queue
from driftq.client.errors import refused
from driftq.client.transport.sansio import Call
from driftq.wire.claims import HeldItem
from driftq.wire.effects import OutcomeAck
from driftq.wire.errors import code_of

if TYPE_CHECKING:
    from driftq.client.transport.http import HttpReply
    from driftq.wire.claims import Delivered, SettleReply

RENEW_S = 1.0  # a message that waited for less than this still has almost its whole lease


class LeaseHolder(NamedTuple):
    """Who holds the lease of a claimed message."""

    topic: str
    group: str
    owner: str


class ClaimedMessage(Protocol):
    """A message that was claimed and is not settled yet."""

    @property
    def holder(self) -> LeaseHolder: ...
    @property
    def delivered(self) -> Delivered: ...


def token_ranges(messages: Iterable[ClaimedMessage]) -> list[HeldItem]:
    """Name messages in a call: neighbouring offsets under one token are one range."""
    ranges: list[HeldItem] = []
    partition = first = end = -1
    token = ""
    for message in messages:
        delivered = message.delivered
        if end >= 0 and (delivered.partition, delivered.offset, delivered.token) == (partition, end, token):
            end += 1
            continue
        if end >= 0:
            ranges.append(HeldItem(partition, first, end, token))
        partition, first, token = delivered.partition, delivered.offset, delivered.token
        end = first + 1
    if end >= 0:
        ranges.append(HeldItem(partition, first, end, token))
    return ranges


def settle(verb: str, messages: Sequence[ClaimedMessage], **fields: object) -> Call[SettleReply]:
    """One call for messages of one group."""
    holder = messages[0].holder
    return queue.settle(verb, holder.topic, holder.group, holder.owner, token_ranges(messages), **fields)


def settle_one(verb: str, message: ClaimedMessage, on_settled: Callable[[], None], **fields: object) -> Call[None]:
    """Settle one message. If it is refused, so is the call."""
    call = settle(verb, [message], **fields)

    def read(reply: HttpReply) -> None:
        settled = call.read(reply)
        if settled.refused:
            first = settled.refused[0]
            raise refused(code_of(first.error, 409), first.message, 409)
        on_settled()

    return Call("POST", call.path, read, refusal=call.refusal, body=call.body, idempotent=True)


def ack_part(message: ClaimedMessage) -> OutcomeAck:
    """An ack as a part of an outcome."""
    holder = message.holder
    return OutcomeAck(holder.topic, holder.group, token_ranges([message]), holder.owner)


M = TypeVar("M", bound=ClaimedMessage)


class PrefetchBuffer(Generic[M]):
    """The messages of one claim, handed out one after the other.

    The caller of `consume` handles one message while the rest wait. `is_due` says when to extend the leases of those
    that wait, so only the handling of one message has to fit into a lease.
    """

    def __init__(self, messages: list[M], lease_ms: int | None, now_s: float) -> None:
        self.waiting = messages
        self._renew_s = min(RENEW_S, lease_ms / 3_000) if lease_ms is not None else RENEW_S
        self._renewed_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to extend `waiting` before the next message is handed out."""
        return bool(self.waiting) and now_s - self._renewed_s >= self._renew_s

    def renewed(self, reply: SettleReply, now_s: float) -> None:
        """Drop the messages whose lease was lost: the broker delivers them again, here or to another client."""
        lost = {(refused.partition, refused.offset) for refused in reply.refused}
        self.waiting = [
            message for message in self.waiting if (message.delivered.partition, message.delivered.offset) not in lost
        ]
        self._renewed_s = now_s

    def next(self) -> M:
        return self.waiting.pop(0)
