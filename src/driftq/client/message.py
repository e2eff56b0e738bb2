"""A claimed message: what it contains, and the calls that settle it.

`Message` blocks, `AsyncMessage` is awaited; what they share is in `MessageMethods`. A message knows its claim (topic,
group, owner, token) and nothing of the worker that handles it.
"""

from __future__ import annotations

import base64
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

import msgspec

from driftq.client.claims import ACK, EXTEND, HandlerResult, LeaseHolder, SettleAction, settle_one, settlement_for
from driftq.client.effects import AsyncEffect, Effect
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.errors import InvalidCall, TooLarge
from driftq.client.outcome import AsyncOutcome, Outcome
from driftq.client.streams.stream import AsyncStream, Stream
from driftq.wire.claims import PROGRESS_BYTES_MAX
from driftq.wire.message import DeadLetter, Envelope, JobBatchPart, Routing

if TYPE_CHECKING:
    from driftq.client.claim_result import ClaimResult, MessageRun
    from driftq.client.errors import InvalidCall
    from driftq.client.producer.producer_base import ProducerOptions
    from driftq.client.producer.stream_producer import AsyncIdempotentProducer, IdempotentProducer
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Call
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.claims import Delivered

T = TypeVar("T")


def json_of(field: str, value: Any) -> bytes:
    """A result or a progress as it is sent."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCall(f"{field} is not JSON: {error}") from None


class MessageMethods:
    """The contents of a message and what can be done with it."""

    holder: LeaseHolder
    settled_as = ""  # the verb that the broker has confirmed
    lost = False  # the lease is gone: another worker may be handling the message
    result_json = b""  # what its ack stores as its result
    progress_json = b""  # what its next extension reports
    forgotten: InvalidCall | None = None  # a call in its handler was not awaited
    _run: MessageRun | None = None  # where its contents are, until they are decoded
    _index = 0  # in the run

    @cached_property
    def delivered(self) -> Delivered:
        """The message as the broker delivered it, decoded."""
        assert self._run is not None, "a message without a run is decoded already"
        return self._run.delivered(self._index)

    # --- contents ---

    @property
    def topic(self) -> str:
        return self.holder.topic

    @property
    def group(self) -> str:
        return self.holder.group

    @property
    def partition(self) -> int:
        run = self._run
        return run.partition if run is not None else self.delivered.partition

    @property
    def offset(self) -> int:
        run = self._run
        return run.first + self._index if run is not None else self.delivered.offset

    @property
    def token(self) -> str:
        """Proves that this delivery holds the message."""
        run = self._run
        return run.token if run is not None else self.delivered.token

    @property
    def key(self) -> str:
        run = self._run
        return run.key(self._index) if run is not None else self.delivered.key

    @property
    def value(self) -> bytes:
        """The bytes that were produced."""
        run = self._run
        if run is not None:
            return run.columns.value(self._index)
        encoded = self.delivered.value_base64
        return base64.b64decode(encoded) if encoded is not None else self.delivered.value.encode()

    @property
    def text(self) -> str:
        return self.value.decode()

    @property
    def damage(self) -> str:
        """Why its envelope, routing and job cannot be read; empty if they can."""
        run = self._run
        return "" if run is not None and not run.columns.has_heads else self.delivered.message

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    def json(self, kind: Any = Any) -> Any:
        """The value as JSON; with a type (a dataclass, a msgspec.Struct, list[int]) checked against it."""
        return msgspec.json.decode(self.value, type=kind)

    @property
    def job_batch(self) -> JobBatchPart | None:
        """The part of the job in a job batch: its id; for a step of a chain the result before it; for what is produced
        at the end of a batch its last state."""
        return self.delivered.job_batch

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        run = self._run
        return run.lease.attempts if run is not None else self.delivered.attempts

    @property
    def last_error(self) -> str:
        return self.delivered.last_error

    @property
    def lease_version(self) -> int:
        """Grows with every delivery: an epoch for what the worker writes elsewhere."""
        return self.delivered.lease_version

    @property
    def lease_until_ms(self) -> int:
        return self.delivered.lease_until_ms

    @property
    def timestamp_ms(self) -> int:
        return self.delivered.timestamp_ms

    @property
    def envelope(self) -> Envelope:
        return self.delivered.envelope or Envelope()

    @property
    def routing(self) -> Routing:
        return self.delivered.routing or Routing()

    @property
    def task(self) -> str:
        return self.delivered.job.task if self.delivered.job is not None else ""

    @property
    def job_id(self) -> str:
        return self.delivered.job.id if self.delivered.job is not None else ""

    @property
    def timeout_ms(self) -> int:
        """How long the job may run; 0 if it does not say."""
        return self.delivered.job.timeout_ms if self.delivered.job is not None else 0

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self.delivered.dlq

    @property
    def name(self) -> str:
        """topic:partition:offset, unique to this message."""
        return f"{self.holder.topic}:{self.partition}:{self.offset}"

    @property
    def effect_key(self) -> str:
        """The key under which its effects happen once: its idempotency key, its job id, or its name."""
        return self.envelope.idempotency_key or self.job_id or self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} attempt {self.attempts}>"

    # --- settling ---

    @bound_endpoint
    def ack(self, result: Any = None) -> Call[None]:
        """Settle the message: it was handled. `result` is anything that JSON can express; it is stored in the same
        write, and callers wait for it (`JobHandle.result`)."""
        if result is not None:
            self.result_json = json_of("result", result)
        return self.settle_call(ACK)

    @bound_endpoint
    def nack(self, reason: str = "", *, delay_ms: int | None = None) -> Call[None]:
        """The attempt failed: the message is retried, or becomes a dead letter."""
        return self.settle_call(SettleAction("nack/batch", reason, delay_ms))

    @bound_endpoint
    def release(self, *, delay_ms: int | None = None) -> Call[None]:
        """Give the message back without counting an attempt."""
        return self.settle_call(SettleAction("release", delay_ms=delay_ms))

    @bound_endpoint
    def reject(self, reason: str = "") -> Call[None]:
        """Make the message a dead letter at once."""
        return self.settle_call(SettleAction("reject", reason))

    @bound_endpoint
    def extend(self, lease_ms: int | None = None) -> Call[None]:
        """Extend the lease."""
        return settle_one(EXTEND, self, self.mark_reported, lease_ms=lease_ms)

    @bound_endpoint
    def report(self, progress: Any) -> Call[None]:
        """Report how far the work is: anything that JSON can express, in up to 4 KiB. It is shown with the job while it
        runs. Extends the lease by the topic's default."""
        self.progress_json = json_of("progress", progress)
        if len(self.progress_json) > PROGRESS_BYTES_MAX:
            size, self.progress_json = len(self.progress_json), b""
            raise TooLarge(f"progress has {size} bytes as JSON; at most {PROGRESS_BYTES_MAX} are allowed")
        return settle_one(EXTEND, self, self.mark_reported)

    def mark_reported(self) -> None:
        """The broker has the last progress."""
        self.progress_json = b""

    def settle_call(self, settlement: SettleAction) -> Call[None]:
        """The call that settles this message. `settled` is true when the broker has confirmed it."""
        return settle_one(settlement.verb, self, lambda: self.mark_settled(settlement.verb), **settlement.fields())

    def mark_settled(self, verb: str = ACK.verb) -> None:
        """Note that the broker has confirmed a settlement."""
        self.settled_as = verb

    @property
    def settled(self) -> bool:
        """The broker has confirmed a settlement."""
        return bool(self.settled_as)

    # --- what follows from it ---

    @property
    def writer(self) -> str:
        """The producer id of what this message writes. Its epoch is `lease_version`."""
        return f"{self.name}:{self.group}"


class Message(MessageMethods, SyncApi):
    """A claimed message. `with message:` acks at the end; an error inside the block is reported as for a worker."""

    def __init__(
        self,
        transport: Transport,
        holder: LeaseHolder,
        delivered: Delivered | None,
        run: MessageRun | None = None,
        index: int = 0,
    ) -> None:
        self._transport = transport
        self.holder = holder
        self._run = run
        self._index = index
        if delivered is not None:
            self.delivered = delivered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not self.settled:
            self._transport.execute(self.settle_call(settlement_for(error)))
        return isinstance(error, HandlerResult)

    def effect(self, key: str = "", *, lease_ms: int | None = None, ttl_ms: int = 0) -> Effect:
        """Something outside the broker that should happen once: `with message.effect() as effect:`."""
        return Effect(self, key or self.effect_key, lease_ms, ttl_ms)

    def outcome(self) -> Outcome:
        """This message's end and what follows from it, in one write."""
        return Outcome(self._transport).ack(self)

    def stream(self, path: str, **options: Unpack[ProducerOptions]) -> IdempotentProducer:
        """Write to a stream in this message's name: a later delivery of it shuts this one out."""
        return Stream(self._transport, path).producer(self.writer, epoch=self.lease_version, **options)


class AsyncMessage(MessageMethods, AsyncApi):
    """A claimed message. `async with message:` acks at the end; an error in the block is reported as for a worker."""

    def __init__(
        self,
        transport: AsyncTransport,
        holder: LeaseHolder,
        delivered: Delivered | None,
        run: MessageRun | None = None,
        index: int = 0,
    ) -> None:
        self._transport = transport
        self.holder = holder
        self._run = run
        self._index = index
        if delivered is not None:
            self.delivered = delivered

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not self.settled:
            await self._transport.execute(self.settle_call(settlement_for(error)))
        return isinstance(error, HandlerResult)

    def effect(self, key: str = "", *, lease_ms: int | None = None, ttl_ms: int = 0) -> AsyncEffect:
        """Something outside the broker that should happen once: `async with message.effect() as effect:`."""
        return AsyncEffect(self, key or self.effect_key, lease_ms, ttl_ms)

    def outcome(self) -> AsyncOutcome:
        """This message's end and what follows from it, in one write."""
        return AsyncOutcome(self._transport).ack(self)

    def stream(self, path: str, **options: Unpack[ProducerOptions]) -> AsyncIdempotentProducer:
        """Write to a stream in this message's name: a later delivery of it shuts this one out."""
        return AsyncStream(self._transport, path).producer(self.writer, epoch=self.lease_version, **options)


def sync_messages(transport: Transport, holder: LeaseHolder, result: ClaimResult) -> list[Message]:
    """The messages of a claim."""
    if result.runs:
        return [Message(transport, holder, None, run, index) for run in result.runs for index in range(run.count)]
    return [Message(transport, holder, delivered) for delivered in result.messages]


def async_messages(transport: AsyncTransport, holder: LeaseHolder, result: ClaimResult) -> list[AsyncMessage]:
    """The messages of a claim."""
    if result.runs:
        return [AsyncMessage(transport, holder, None, run, index) for run in result.runs for index in range(run.count)]
    return [AsyncMessage(transport, holder, delivered) for delivered in result.messages]
