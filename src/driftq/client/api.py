"""The client: everything a broker can be asked, in two classes with the same words.

    broker = driftq.connect()                      # http://127.0.0.1:8080, or DRIFTQ_URL
    broker.topics.create("orders", partitions=4)
    broker.send("orders", {"id": 1}, key="user:1", idempotency_key="order-1")

`DriftQ` blocks and may be shared by threads; `AsyncDriftQ` is awaited. Neither connects before it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from driftq.client import admincalls, calls, lookcalls, streamcalls
from driftq.client.blocking import Transport
from driftq.client.claims import Held, Place, settle
from driftq.client.flows import Asked, Patience
from driftq.client.http import address_of
from driftq.client.message import AsyncMessage, Message
from driftq.client.names import default_owner
from driftq.client.outcome import AsyncOutcome, Outcome
from driftq.client.pages import iterating, listing
from driftq.client.prefetched import Prefetched
from driftq.client.streams import AsyncStream, Stream
from driftq.client.verdicts import ACK, Ending
from driftq.client.words import Awaiting, Blocking, word
from driftq.wire.queue import ClaimReply, SettleReply

if TYPE_CHECKING:
    from driftq.client.evented import AsyncTransport
    from driftq.client.producer import AsyncProducer, Producer
    from driftq.client.writing import ProducerOptions

DEFAULT_URL = "http://127.0.0.1:8080"
CONSUME_WAIT_MS = 20_000


class TopicWords:
    create = word(admincalls.create_topic)
    list = listing(admincalls.list_topics)
    describe = word(admincalls.describe_topic)
    change = word(admincalls.change_topic)
    delete = word(admincalls.delete_topic)
    offsets = word(admincalls.offsets)
    peek = word(admincalls.peek)
    fetch = word(lookcalls.fetch)


class Topics(TopicWords, Blocking): ...


class AsyncTopics(TopicWords, Awaiting): ...


class GroupWords:
    list = listing(admincalls.list_groups)
    describe = word(admincalls.describe_group)
    delete = word(admincalls.delete_group)
    pause = word(admincalls.pause_group)
    resume = word(admincalls.resume_group)
    seek = word(admincalls.seek_group)


class Groups(GroupWords, Blocking): ...


class AsyncGroups(GroupWords, Awaiting): ...


class JobWords:
    enqueue = word(admincalls.enqueue)
    find = word(admincalls.find_job)
    cancel = word(admincalls.cancel_job)


class Jobs(JobWords, Blocking): ...


class AsyncJobs(JobWords, Awaiting): ...


class DeadLetterWords:
    list = listing(admincalls.list_letters)
    iterate = iterating(admincalls.list_letters)
    errors = word(admincalls.letter_errors)
    iterate_errors = iterating(admincalls.each_error)
    redrive = word(admincalls.redrive)


class DeadLetters(DeadLetterWords, Blocking): ...


class AsyncDeadLetters(DeadLetterWords, Awaiting): ...


class StreamsWords:
    list = word(streamcalls.list_streams)
    iterate = iterating(streamcalls.each_stream)


class Streams(StreamsWords, Blocking): ...


class AsyncStreams(StreamsWords, Awaiting): ...


def _ack(messages: Sequence[Held]) -> Asked[SettleReply]:
    """Settle many messages of one group in one call. Whatever is not in `refused` is done."""
    return settle(ACK.verb, messages)


def _nack(messages: Sequence[Held], reason: str = "", *, delay_ms: int | None = None) -> Asked[SettleReply]:
    """Fail many messages of one group in one call."""
    how = Ending("nack/batch", reason, delay_ms)
    return settle(how.verb, messages, **how.words())


def _release(messages: Sequence[Held], *, delay_ms: int | None = None) -> Asked[SettleReply]:
    """Give many messages of one group back; counts no attempt."""
    return settle("release", messages, delay_ms=delay_ms)


def _reject(messages: Sequence[Held], reason: str = "") -> Asked[SettleReply]:
    """Make many messages of one group dead letters."""
    return settle("reject", messages, reason=reason)


def _extend(messages: Sequence[Held], lease_ms: int | None = None) -> Asked[SettleReply]:
    """Keep many messages of one group for longer; `refused` names what is lost."""
    return settle("extend", messages, lease_ms=lease_ms)


class BrokerWords:
    """The words of both clients that need nothing but their arguments."""

    owner: str

    version = word(admincalls.version)
    healthy = word(admincalls.healthy)
    ready = word(admincalls.ready)
    read_clock = word(admincalls.read_clock)
    accept_clock = word(admincalls.accept_clock)
    send = word(calls.send)
    send_many = word(calls.send_many)
    ack = word(_ack)
    nack = word(_nack)
    release = word(_release)
    reject = word(_reject)
    extend = word(_extend)
    find_effect = word(calls.find_effect)
    explain = word(lookcalls.explain)
    route = word(lookcalls.route)


class DriftQ(BrokerWords, Blocking):
    """A broker, asked by blocking calls."""

    def __init__(self, url: str = "", *, token: str = "", owner: str = "", patience: Patience | None = None) -> None:
        self._transport = Transport(address_of(url or os.environ.get("DRIFTQ_URL", DEFAULT_URL), token), patience)
        self.owner = owner or default_owner()
        self.topics = Topics(self._transport)
        self.groups = Groups(self._transport)
        self.jobs = Jobs(self._transport)
        self.dead_letters = DeadLetters(self._transport)
        self.streams = Streams(self._transport)

    @property
    def url(self) -> str:
        return self._transport.address.text

    def claim(
        self,
        topic: str,
        group: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        start: str = "earliest",
        task: str | None = None,
        label: str | None = None,
    ) -> list[Message]:
        """Take up to `max` messages under a lease; wait up to `wait_ms` for the first."""
        call = calls.claim(
            topic, group, self.owner, max=max, wait_ms=wait_ms, lease_ms=lease_ms, start=start, task=task, label=label
        )
        reply: ClaimReply = self._transport.ask(call)
        place = Place(topic, group, self.owner)
        return [Message(self._transport, place, each) for each in reply.messages]

    def consume(self, topic: str, group: str, *, prefetch: int = 10, **words: Any) -> Iterator[Message]:
        """Messages without end, a few claimed at a time: `for message in …: with message: …`. For more, a worker. The
        leases of messages that wait are renewed, so only the work on one has to fit into a lease."""
        lease_ms = words.get("lease_ms")
        while True:
            found = self.claim(topic, group, max=prefetch, wait_ms=CONSUME_WAIT_MS, **words)
            prefetched = Prefetched(found, lease_ms, time.monotonic())
            while prefetched.waiting:
                if prefetched.is_due(time.monotonic()):
                    prefetched.renewed(self.extend(prefetched.waiting, lease_ms), time.monotonic())
                else:
                    yield prefetched.next()

    def outcome(self) -> Outcome:
        """Acks, messages, appends and effects in one write."""
        return Outcome(self._transport)

    def producer(self, topic: str, producer_id: str = "", **options: Unpack[ProducerOptions]) -> Producer:
        """For many messages: batched, pipelined, each written once. A name makes a new life of it shut out the last."""
        from driftq.client.producer import Producer  # noqa: PLC0415  # it brings in asyncio

        return Producer(self._transport, topic, producer_id, **options)

    def stream(self, path: str, content_type: str = "") -> Stream:
        return Stream(self._transport, path, content_type)

    def asynchronous(self) -> AsyncDriftQ:
        """A client of the same broker that is awaited."""
        from driftq.client.evented import AsyncTransport  # noqa: PLC0415  # asyncio is for those who await

        client = AsyncDriftQ(owner=self.owner)
        client._connect(AsyncTransport(self._transport.address, self._transport.patience))
        return client

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DriftQ({self.url!r})"


class AsyncDriftQ(BrokerWords, Awaiting):
    """A broker, asked by calls that are awaited."""

    def __init__(self, url: str = "", *, token: str = "", owner: str = "", patience: Patience | None = None) -> None:
        from driftq.client.evented import AsyncTransport  # noqa: PLC0415

        address = address_of(url or os.environ.get("DRIFTQ_URL", DEFAULT_URL), token)
        self.owner = owner or default_owner()
        self._connect(AsyncTransport(address, patience))

    def _connect(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self.topics = AsyncTopics(transport)
        self.groups = AsyncGroups(transport)
        self.jobs = AsyncJobs(transport)
        self.dead_letters = AsyncDeadLetters(transport)
        self.streams = AsyncStreams(transport)

    @property
    def url(self) -> str:
        return self._transport.address.text

    async def claim(
        self,
        topic: str,
        group: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        start: str = "earliest",
        task: str | None = None,
        label: str | None = None,
    ) -> list[AsyncMessage]:
        """Take up to `max` messages under a lease; wait up to `wait_ms` for the first."""
        call = calls.claim(
            topic, group, self.owner, max=max, wait_ms=wait_ms, lease_ms=lease_ms, start=start, task=task, label=label
        )
        reply: ClaimReply = await self._transport.ask(call)
        place = Place(topic, group, self.owner)
        return [AsyncMessage(self._transport, place, each) for each in reply.messages]

    async def consume(self, topic: str, group: str, *, prefetch: int = 10, **words: Any) -> AsyncIterator[AsyncMessage]:
        """Messages without end, a few claimed at a time: `async with message: …`. For more, a worker. The leases of
        messages that wait are renewed, so only the work on one has to fit into a lease."""
        lease_ms = words.get("lease_ms")
        while True:
            found = await self.claim(topic, group, max=prefetch, wait_ms=CONSUME_WAIT_MS, **words)
            prefetched = Prefetched(found, lease_ms, time.monotonic())
            while prefetched.waiting:
                if prefetched.is_due(time.monotonic()):
                    prefetched.renewed(await self.extend(prefetched.waiting, lease_ms), time.monotonic())
                else:
                    yield prefetched.next()

    def outcome(self) -> AsyncOutcome:
        """Acks, messages, appends and effects in one write."""
        return AsyncOutcome(self._transport)

    def producer(self, topic: str, producer_id: str = "", **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """For many messages: batched, pipelined, each written once. A name makes a new life of it shut out the last."""
        from driftq.client.producer import AsyncProducer  # noqa: PLC0415

        return AsyncProducer(self._transport, topic, producer_id, **options)

    def stream(self, path: str, content_type: str = "") -> AsyncStream:
        return AsyncStream(self._transport, path, content_type)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncDriftQ({self.url!r})"


def connect(url: str = "", *, token: str = "", owner: str = "", patience: Patience | None = None) -> DriftQ:
    """A client of the broker at `url` (default: DRIFTQ_URL, else the local one)."""
    return DriftQ(url, token=token, owner=owner, patience=patience)


def connect_async(url: str = "", *, token: str = "", owner: str = "", patience: Patience | None = None) -> AsyncDriftQ:
    """The same, for programs that await."""
    return AsyncDriftQ(url, token=token, owner=owner, patience=patience)
