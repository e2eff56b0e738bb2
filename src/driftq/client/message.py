"""A message in the hands of its consumer: what it says, and the words that end it.

`Message` blocks, `AsyncMessage` is awaited; what they say is here once. A message knows its claim (topic, group, owner,
token) and nothing of the worker that runs it.
"""

from __future__ import annotations

import base64
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

import msgspec

from driftq.client.effects import AsyncEffect, Effect
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.outcome import AsyncOutcome, Outcome
from driftq.client.streams.stream import AsyncStream, Stream
from driftq.client.worker.handler_results import ACK, AttemptEnd, HandlerResult, MessagePlace, ending_of, settle_one
from driftq.wire.message import DeadLetter, Envelope, Routing

if TYPE_CHECKING:
    from driftq.client.producer.producer_base import ProducerOptions
    from driftq.client.producer.stream_producer import AsyncIdempotentProducer, IdempotentProducer
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Call
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.queue import Delivered

T = TypeVar("T")


class MessageMethods:
    """What a message says and what can be done with it."""

    delivered: Delivered
    place: MessagePlace
    settled_as = ""  # the verb that was heard
    lost = False  # the lease is gone: whatever is done now is done twice

    # --- what it says ---

    @property
    def topic(self) -> str:
        return self.place.topic

    @property
    def group(self) -> str:
        return self.place.group

    @property
    def partition(self) -> int:
        return self.delivered.partition

    @property
    def offset(self) -> int:
        return self.delivered.offset

    @property
    def key(self) -> str:
        return self.delivered.key

    @cached_property
    def value(self) -> bytes:
        """The very bytes that were produced."""
        packed = self.delivered.value_base64
        return base64.b64decode(packed) if packed is not None else self.delivered.value.encode()

    @property
    def text(self) -> str:
        return self.value.decode() if self.delivered.value_base64 is not None else self.delivered.value

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    def json(self, kind: Any = Any) -> Any:
        """The value as JSON; with a type (a dataclass, a msgspec.Struct, list[int]) checked against it."""
        return msgspec.json.decode(self.value, type=kind)

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        return self.delivered.attempts

    @property
    def last_error(self) -> str:
        return self.delivered.last_error

    @property
    def lease_version(self) -> int:
        """Rises with every delivery: an epoch for whatever the worker writes elsewhere."""
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
        """How long the job may run, if it says so."""
        return self.delivered.job.timeout_ms if self.delivered.job is not None else 0

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self.delivered.dlq

    @property
    def name(self) -> str:
        """topic:partition:offset, which is one message's and no other's."""
        return f"{self.place.topic}:{self.delivered.partition}:{self.delivered.offset}"

    @property
    def effect_key(self) -> str:
        """Under which its effects happen once: its idempotency key, its job id, or its place."""
        return self.envelope.idempotency_key or self.job_id or self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} attempt {self.attempts}>"

    # --- how it ends ---

    @bound_endpoint
    def ack(self) -> Call[None]:
        """Done."""
        return self.ending(ACK)

    @bound_endpoint
    def nack(self, reason: str = "", *, delay_ms: int | None = None) -> Call[None]:
        """Failed: it comes again, or becomes a dead letter."""
        return self.ending(AttemptEnd("nack/batch", reason, delay_ms))

    @bound_endpoint
    def release(self, *, delay_ms: int | None = None) -> Call[None]:
        """Given back; counts no attempt."""
        return self.ending(AttemptEnd("release", delay_ms=delay_ms))

    @bound_endpoint
    def reject(self, reason: str = "") -> Call[None]:
        """Never again: straight to the dead letters."""
        return self.ending(AttemptEnd("reject", reason))

    @bound_endpoint
    def extend(self, lease_ms: int | None = None) -> Call[None]:
        """Keep it for longer."""
        return settle_one("extend", self, lambda: None, lease_ms=lease_ms)

    def ending(self, how: AttemptEnd) -> Call[None]:
        """The call that ends this message. `settled` is true when it was heard."""
        return settle_one(how.verb, self, lambda: self.end(how.verb), **how.words())

    def end(self, verb: str = ACK.verb) -> None:
        self.settled_as = verb

    @property
    def settled(self) -> bool:
        """Its end was said."""
        return bool(self.settled_as)

    # --- what it leads to ---

    @property
    def writer(self) -> str:
        """A name for what this message writes. Its epoch is the lease's version, which rises with every delivery."""
        return f"{self.name}:{self.group}"


class Message(MessageMethods, SyncApi):
    """A claimed message. `with message:` acks at the end, or says what went wrong."""

    def __init__(self, transport: Transport, place: MessagePlace, delivered: Delivered) -> None:
        self._transport = transport
        self.place = place
        self.delivered = delivered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not self.settled:
            self._transport.ask(self.ending(ending_of(error)))
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
    """A claimed message. `async with message:` acks at the end, or says what went wrong."""

    def __init__(self, transport: AsyncTransport, place: MessagePlace, delivered: Delivered) -> None:
        self._transport = transport
        self.place = place
        self.delivered = delivered

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not self.settled:
            await self._transport.ask(self.ending(ending_of(error)))
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
