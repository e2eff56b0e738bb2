"""Claimed messages: who holds them, how an attempt ends, and the calls that settle them.

A handler returns, raises, or raises one of the results below. `settlement_for` is this table:

    return               ack        the message is settled
    raise Retry(…)       nack       retried after `after_ms`, or when the retry policy says
    raise Reject(…)      reject     dead-lettered at once
    raise Release(…)     release    delivered to another worker; the attempt is not counted
    raise Busy           release    another worker holds the effect; not counted either
    raise anything else  nack       retried; the error becomes `last_error`

A claim delivers runs of neighbouring offsets under one token. A call that settles them names each run once instead of
each message: `token_ranges`. Everything here is pure; messages, workers and outcomes share it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from msgspec import Raw

from driftq.client.calls import queue
from driftq.client.claim_result import ACCEPTED, read_claim
from driftq.client.errors import Busy, InvalidCall, refused
from driftq.client.transport.sansio import Call, Flow, PeerHistory, RetryOptions, retrying_call
from driftq.wire.claims import ClaimRequest, HeldItem
from driftq.wire.effects import OutcomeAck
from driftq.wire.errors import Code, code_of

if TYPE_CHECKING:
    from types import TracebackType

    from driftq.client.claim_result import ClaimResult, MessageRun
    from driftq.client.transport.http import HttpReply
    from driftq.wire.claims import RefusedItem, SettleReply

REASON_CHARACTERS_MAX = 500
TRACEBACK_CHARACTERS_MAX = 8_000
CLAIM_ACKS_MAX = 1_000
RESULTS_BYTES_MAX = 1 << 20  # of one call that acks
_PACKAGE = __file__.rpartition("client")[0]  # the folder of our own code
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
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def result_json(self) -> bytes:
        """What its ack stores as its result; empty: nothing."""

    @property
    def progress_json(self) -> bytes:
        """What its next extension reports as its progress; empty: nothing."""


M = TypeVar("M", bound=ClaimedMessage)


class SettleableMessage(ClaimedMessage, Protocol):
    """A message that knows whether it was settled by itself."""

    @property
    def settled(self) -> bool: ...
    @property
    def lost(self) -> bool: ...


class HandlerResult(Exception):
    """Base of what a handler raises on purpose."""


class Retry(HandlerResult):
    """The attempt failed. The message is delivered again after `after_ms`, or when the retry policy says."""

    def __init__(self, after_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry")
        self.after_ms = after_ms
        self.reason = reason or "retry"


class Reject(HandlerResult):
    """The message can never succeed: it becomes a dead letter at once."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(HandlerResult):
    """Give the message back without counting an attempt."""

    def __init__(self, after_ms: int | None = None) -> None:
        super().__init__("released")
        self.after_ms = after_ms


class SettleAction(NamedTuple):
    """How a message is settled: the verb of the call and its fields. Equal settlements share one call."""

    verb: str
    reason: str = ""
    delay_ms: int | None = None
    traceback: str = ""  # of a failure; the broker keeps it if the message becomes a dead letter

    def fields(self) -> dict[str, object]:
        """The fields of the call in addition to the messages."""
        match self.verb:
            case "nack/batch":
                return {"reason": self.reason, "delay_ms": self.delay_ms, **self._traceback()}
            case "release":
                return {"delay_ms": self.delay_ms}
            case "reject":
                return {"reason": self.reason, **self._traceback()}
            case _:
                return {}

    def _traceback(self) -> dict[str, object]:
        return {"traceback": self.traceback} if self.traceback else {}


ACK = SettleAction("ack/batch")
EXTEND = "extend"
RELEASE = SettleAction("release")


def settlement_for(error: BaseException | None) -> SettleAction:
    """The settlement of an attempt that returned (None) or raised."""
    match error:
        case None:
            return ACK
        case Retry():
            return SettleAction("nack/batch", error.reason, error.after_ms)
        case Reject():
            return SettleAction("reject", error.reason, traceback=traceback_of(error))
        case Release():
            return SettleAction("release", delay_ms=error.after_ms)
        case Busy():
            return SettleAction("release", delay_ms=error.retry_after_ms)  # another worker has the effect: no failure
        case _:
            return SettleAction("nack/batch", error_summary(error), traceback=traceback_of(error))


def error_summary(error: BaseException) -> str:
    """An error in one line, for `last_error`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 1] + "…"


def traceback_of(error: BaseException) -> str:
    """The end of an error's traceback, as text; empty if it was not raised."""
    if error.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(*raised(error)))[-TRACEBACK_CHARACTERS_MAX:]


def raised(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An error with the frames of its handler, as `logging` takes it: how the worker called it explains nothing."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return type(error), error, frames or error.__traceback__  # of an error of our own: all of them


def token_ranges(messages: Iterable[ClaimedMessage], verb: str = "") -> list[HeldItem]:
    """Name messages in a call: neighbouring offsets under one token are one range. Acks name each message that has a
    result by itself, and extensions each one that reports its progress."""
    ranges: list[HeldItem] = []
    partition = first = end = -1
    token = ""
    for message in messages:
        held = _reported(message, verb)
        if held is not None:
            if end >= 0:
                ranges.append(HeldItem(partition, first, end, token))
            ranges.append(held)
            partition = first = end = -1
            continue
        if message.offset == end and message.partition == partition and message.token == token:
            end += 1
            continue
        if end >= 0:
            ranges.append(HeldItem(partition, first, end, token))
        partition, first, token = message.partition, message.offset, message.token
        end = first + 1
    if end >= 0:
        ranges.append(HeldItem(partition, first, end, token))
    return ranges


def _reported(message: ClaimedMessage, verb: str) -> HeldItem | None:
    """The message with what its ack or extension reports, if it does."""
    if verb == ACK.verb and message.result_json:
        return HeldItem(message.partition, message.offset, None, message.token, result=Raw(message.result_json))
    if verb == EXTEND and message.progress_json:
        return HeldItem(message.partition, message.offset, None, message.token, progress=Raw(message.progress_json))
    return None


def settle(verb: str, messages: Sequence[ClaimedMessage], **fields: object) -> Call[SettleReply]:
    """One call for messages of one group."""
    holder = messages[0].holder
    return queue.settle(verb, holder.topic, holder.group, holder.owner, token_ranges(messages, verb), **fields)


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


class ClaimOptions(TypedDict, total=False):
    """Options of every claim; see `DriftQ.claim`."""

    lease_ms: int | None
    start: str
    task: str | None
    label: str | None


class Claiming(NamedTuple):
    """What a consumer claims, again and again."""

    holder: LeaseHolder
    max: int
    lease_ms: int | None = None
    start: str = "earliest"
    task: str | None = None
    label: str | None = None

    def call(self, wait_ms: int, acks: Sequence[HeldItem] = (), lane: str = "") -> Call[ClaimResult]:
        """Take up to `max` messages under a lease. A claim whose answer is lost costs a delivery, never a message. With
        acks, which an older broker does not take, it does not wait for messages."""
        holder, max_messages, lease_ms, start, task, label = self
        body = ClaimRequest(*holder, max_messages, wait_ms, lease_ms, start, task, label, tuple(acks))
        return Call(
            "POST", "/v1/claim", read_claim, refusal=queue.refusal, body=queue.encode(body), headers=ACCEPTED,
            idempotent=True, wait_ms=wait_ms, lane=lane,
        )  # fmt: skip


def claim_flow(
    claiming: Claiming,
    wait_ms: int,
    acks: Sequence[HeldItem],
    retry: RetryOptions,
    peer: PeerHistory,
    lane: str = "",
) -> Flow[ClaimResult]:
    """Claim messages, and ack others: in one call if the broker takes acks with a claim, else in two. With acks the
    claim does not wait for messages."""
    refused: list[RefusedItem] = []
    if acks and peer.takes_acks:
        try:
            result = yield from retrying_call(claiming.call(0, acks, lane), retry, peer)
        except InvalidCall:  # it may be an older broker than the one that answered before
            peer.takes_acks = False
        else:
            peer.takes_acks = result.is_packed
            return result
    if acks:
        settled = yield from retrying_call(queue.settle(ACK.verb, *claiming.holder, acks), retry, peer)
        refused, wait_ms = settled.refused, 0
    result = yield from retrying_call(claiming.call(wait_ms, (), lane), retry, peer)
    peer.takes_acks = result.is_packed
    return result._replace(refused=refused)


def settle_parts(messages: Sequence[M], count_max: int) -> Iterator[list[M]]:
    """Cut messages into parts for one call each: of a limited number, with results of a limited size."""
    part: list[M] = []
    bytes_left = RESULTS_BYTES_MAX
    for message in messages:
        bytes_left -= len(message.result_json)
        if part and (bytes_left < 0 or len(part) == count_max):
            yield part
            part, bytes_left = [], RESULTS_BYTES_MAX - len(message.result_json)
        part.append(message)
    if part:
        yield part


def acks_of_claim(messages: Sequence[M]) -> list[M]:
    """The messages that one claim can ack."""
    return next(settle_parts(messages, CLAIM_ACKS_MAX), [])


def results_too_large(messages: Iterable[M], refused: Iterable[RefusedItem]) -> dict[M, str]:
    """The messages whose ack was refused because of their result, and why. It would be too large the next time, too,
    and the work is done: they are to be rejected."""
    reasons = {(item.partition, item.offset): item.message for item in refused if item.error == Code.TOO_LARGE}
    positions = ((message, (message.partition, message.offset)) for message in messages)
    return {message: reasons[position] for message, position in positions if position in reasons}


def by_settlement(handled: Iterable[tuple[M, SettleAction]]) -> list[tuple[SettleAction, list[M]]]:
    """Messages that can share a call."""
    groups: dict[SettleAction, list[M]] = {}
    for message, settlement in handled:
        groups.setdefault(settlement, []).append(message)
    return list(groups.items())


def unsettled(messages: Sequence[SettleableMessage], runs: Sequence[MessageRun]) -> list[HeldItem]:
    """The messages of a batch that have to be acked: usually all, so that their runs name them."""
    if runs and not any(message.settled or message.lost for message in messages):
        return [run.held() for run in runs]
    return token_ranges(message for message in messages if not (message.settled or message.lost))


def ack_part(message: ClaimedMessage) -> OutcomeAck:
    """An ack as a part of an outcome."""
    holder = message.holder
    return OutcomeAck(holder.topic, holder.group, token_ranges([message], ACK.verb), holder.owner)


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
        self.waiting = [message for message in self.waiting if (message.partition, message.offset) not in lost]
        self._renewed_s = now_s

    def next(self) -> M:
        return self.waiting.pop(0)
