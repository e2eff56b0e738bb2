"""The client: two classes with the same methods, `DriftQ` and `AsyncDriftQ`.

    broker = driftq.connect()                      # http://127.0.0.1:8080, or DRIFTQ_URL
    broker.topics.create("orders", partitions=4)
    broker.send("orders", {"id": 1}, key="user:1", idempotency_key="order-1")

`DriftQ` blocks and may be shared by threads; `AsyncDriftQ` is awaited. Neither connects before it is used. Most methods
are made by `endpoint` from the pure functions in `calls`, once for both classes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from driftq.client.calls import admin, observation, queue
from driftq.client.claims import ACK, ClaimedMessage, Claiming, ClaimOptions, LeaseHolder, SettleAction, settle
from driftq.client.consume import check_ahead, claims, claims_async, consume, consume_async
from driftq.client.endpoint import AsyncApi, SyncApi, endpoint, listing
from driftq.client.errors import InvalidCall
from driftq.client.message import AsyncMessage, Message, async_messages, sync_messages
from driftq.client.outcome import AsyncOutcome, Outcome
from driftq.client.resources import (
    AsyncDeadLetters,
    AsyncGroups,
    AsyncJobBatches,
    AsyncJobs,
    AsyncPipelines,
    AsyncRuns,
    AsyncSchedules,
    AsyncStreams,
    AsyncTenants,
    AsyncTokens,
    AsyncTopics,
    AsyncWorkers,
    DeadLetters,
    Groups,
    JobBatches,
    Jobs,
    Pipelines,
    Runs,
    Schedules,
    Streams,
    Tenants,
    Tokens,
    Topics,
    Workers,
)
from driftq.client.streams.stream import AsyncStream, Stream
from driftq.client.transport.credential import ClientToken
from driftq.client.transport.http import Address, parse_address
from driftq.client.transport.sansio import Call, RetryOptions, default_owner
from driftq.client.transport.sync_transport import Transport
from driftq.client.transport.tls import ClientTls

if TYPE_CHECKING:
    from driftq.client.producer.producer import AsyncProducer, Producer
    from driftq.client.producer.producer_base import ProducerOptions
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.wire.claims import SettleReply

DEFAULT_URL = "http://127.0.0.1:8080"
BACKUP_S = 300.0  # for the first byte of a backup, and then for each that follows


class ConnectOptions(TypedDict, total=False):
    """What a client takes besides the URL. PEM files are for https URLs."""

    token: str  # sent as a bearer token (default: DRIFTQ_TOKEN)
    token_file: str  # instead: a file with the token, read again when it changes (default: DRIFTQ_TOKEN_FILE)
    owner: str  # the name of this client in leases (default: made from host and process)
    retry: RetryOptions | None
    ca: str  # whom to trust (default: DRIFTQ_CA, else SSL_CERT_FILE, else the authorities of the system)
    certificate: str  # the client's own, for mutual TLS (default: DRIFTQ_CERTIFICATE)
    key: str  # of the certificate (default: DRIFTQ_KEY, else in the same file)
    patience: RetryOptions | None  # the old name of `retry`


def _address(url: str, options: ConnectOptions) -> Address:
    files = ClientTls(options.get("ca", ""), options.get("certificate", ""), options.get("key", ""))
    token = ClientToken(options.get("token", ""), options.get("token_file", ""))
    if all(token):
        raise InvalidCall("use either token or token_file, not both")
    return parse_address(url or os.environ.get("DRIFTQ_URL", DEFAULT_URL), token, files)


def _retry(options: ConnectOptions) -> RetryOptions | None:
    return options.get("retry") or options.get("patience")


def _ack(messages: Sequence[ClaimedMessage]) -> Call[SettleReply]:
    """Settle many messages of one group in one call. Those not in `refused` are settled."""
    return settle(ACK.verb, messages)


def _nack(messages: Sequence[ClaimedMessage], reason: str = "", *, delay_ms: int | None = None) -> Call[SettleReply]:
    """Fail many messages of one group in one call."""
    settlement = SettleAction("nack/batch", reason, delay_ms)
    return settle(settlement.verb, messages, **settlement.fields())


def _release(messages: Sequence[ClaimedMessage], *, delay_ms: int | None = None) -> Call[SettleReply]:
    """Give many messages of one group back without counting an attempt."""
    return settle("release", messages, delay_ms=delay_ms)


def _reject(messages: Sequence[ClaimedMessage], reason: str = "") -> Call[SettleReply]:
    """Make many messages of one group dead letters."""
    return settle("reject", messages, reason=reason)


def _extend(messages: Sequence[ClaimedMessage], lease_ms: int | None = None) -> Call[SettleReply]:
    """Extend the leases of many messages of one group; `refused` names those that are lost."""
    return settle("extend", messages, lease_ms=lease_ms)


class BrokerMethods:
    """The methods of both clients that need nothing but their arguments."""

    owner: str

    version = endpoint(admin.version)
    healthy = endpoint(admin.healthy)
    ready = endpoint(admin.ready)
    read_clock = endpoint(admin.read_clock)
    accept_clock = endpoint(admin.accept_clock)
    send = endpoint(queue.send)
    send_many = endpoint(queue.send_many)
    ack = endpoint(_ack)
    nack = endpoint(_nack)
    release = endpoint(_release)
    reject = endpoint(_reject)
    extend = endpoint(_extend)
    find_effect = endpoint(queue.find_effect)
    explain = endpoint(admin.explain)
    route = endpoint(admin.route)
    overview = endpoint(observation.overview)
    series = endpoint(observation.series)
    config = endpoint(observation.config)
    audit = listing(observation.list_audit)
    audit_from = endpoint(observation.audit_from)


class DriftQ(BrokerMethods, SyncApi):
    """The blocking client of a broker. Threads may share it."""

    def __init__(self, url: str = "", **options: Unpack[ConnectOptions]) -> None:
        self._transport = Transport(_address(url, options), _retry(options))
        self.owner = options.get("owner") or default_owner()
        self.topics = Topics(self._transport)
        self.groups = Groups(self._transport)
        self.jobs = Jobs(self._transport)
        self.job_batches = JobBatches(self._transport)
        self.dead_letters = DeadLetters(self._transport)
        self.workers = Workers(self._transport)
        self.streams = Streams(self._transport)
        self.tokens = Tokens(self._transport)
        self.schedules = Schedules(self._transport)
        self.tenants = Tenants(self._transport)
        self.runs = Runs(self._transport)
        self.pipelines = Pipelines(self._transport)

    @property
    def url(self) -> str:
        return self._transport.address.url

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
        """Take messages under a lease.

        Parameters:
            topic: Where the messages come from.
            group: The group that shares them; it is created by its first claim.
            max: How many to take at most.
            wait_ms: How long to wait for the first one; 0 returns at once.
            lease_ms: How long they are held (default: the topic's lease, 30 s).
            start: Where a new group starts: "earliest", "latest" or an RFC 3339 time.
            task: Only messages with this task.
            label: Only messages with this label.

        Each has to be settled before its lease ends: `message.ack()`, or `with message:`.
        """
        claiming = Claiming(LeaseHolder(topic, group, self.owner), max, lease_ms, start, task, label)
        return sync_messages(self._transport, claiming.holder, self._transport.execute(claiming.call(wait_ms)))

    def claims(
        self,
        topic: str,
        group: str,
        *,
        max: int = 100,
        drain: bool = False,
        ahead: int = 0,
        **options: Unpack[ClaimOptions],
    ) -> Iterator[list[Message]]:
        """Iterate over batches of up to `max` messages: `for batch in broker.claims(…):`. The fastest way to consume.

        Asking for the next batch acks the last one, in the same call; messages that were settled by themselves are left
        out. After `break` or an error the last batch is not acked: ack or release it, or it is delivered again when its
        lease ends. The handling of a batch has to fit into a lease. With `drain` it ends when nothing is left.

        With `ahead`, that many batches are claimed while you work on one (2 are enough to overlap your work with the
        broker's, with 8 its claims also share syncs; 16 at most). These batches are held for you, so all of them have
        to fit into a lease. Those that you have not seen are released when you leave.
        """
        check_ahead(ahead)
        claiming = Claiming(LeaseHolder(topic, group, self.owner), max, **options)
        decode = partial(sync_messages, self._transport, claiming.holder)
        return claims(self._transport, claiming, decode, drain=drain, ahead=ahead)

    def consume(
        self, topic: str, group: str, *, prefetch: int = 10, **options: Unpack[ClaimOptions]
    ) -> Iterator[Message]:
        """Iterate over messages without end: `for message in broker.consume(…): with message: …`.

        Claims `prefetch` at a time; options as in `claim`. The leases of messages that wait are renewed, so only the
        handling of one message has to fit into a lease. Use a worker to handle several at a time.
        """
        claiming = Claiming(LeaseHolder(topic, group, self.owner), prefetch, **options)
        return consume(self._transport, claiming, partial(sync_messages, self._transport, claiming.holder))

    def outcome(self) -> Outcome:
        """Acks, messages, appends and effects in one write."""
        return Outcome(self._transport)

    def producer(self, topic: str, producer_id: str = "", **options: Unpack[ProducerOptions]) -> Producer:
        """For many messages: batched, pipelined, each written once. A new producer of a name fences off the old one."""
        from driftq.client.producer.producer import Producer  # noqa: PLC0415  # it imports asyncio

        return Producer(self._transport, topic, producer_id, **options)

    def backup(self) -> Iterator[bytes]:
        """The data of the broker as a tar archive, in pieces. `driftq backup` unpacks and checks it."""
        return self._transport.iterate(admin.backup(BACKUP_S))

    def stream(self, path: str, content_type: str = "") -> Stream:
        """A durable stream by its path. Nothing is created before `create` is called on it."""
        return Stream(self._transport, path, content_type)

    def asynchronous(self) -> AsyncDriftQ:
        """An async client of the same broker."""
        from driftq.client.transport.async_transport import AsyncTransport  # noqa: PLC0415  # it imports asyncio

        client = AsyncDriftQ(owner=self.owner)
        client._connect(AsyncTransport(self._transport.address, self._transport.retry))
        return client

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DriftQ({self.url!r})"


class AsyncDriftQ(BrokerMethods, AsyncApi):
    """The async client of a broker."""

    def __init__(self, url: str = "", **options: Unpack[ConnectOptions]) -> None:
        from driftq.client.transport.async_transport import AsyncTransport  # noqa: PLC0415

        self.owner = options.get("owner") or default_owner()
        self._connect(AsyncTransport(_address(url, options), _retry(options)))

    def _connect(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self.topics = AsyncTopics(transport)
        self.groups = AsyncGroups(transport)
        self.jobs = AsyncJobs(transport)
        self.job_batches = AsyncJobBatches(transport)
        self.dead_letters = AsyncDeadLetters(transport)
        self.workers = AsyncWorkers(transport)
        self.streams = AsyncStreams(transport)
        self.tokens = AsyncTokens(transport)
        self.schedules = AsyncSchedules(transport)
        self.tenants = AsyncTenants(transport)
        self.runs = AsyncRuns(transport)
        self.pipelines = AsyncPipelines(transport)

    @property
    def url(self) -> str:
        return self._transport.address.url

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
        """Take messages under a lease, as `DriftQ.claim`."""
        claiming = Claiming(LeaseHolder(topic, group, self.owner), max, lease_ms, start, task, label)
        result = await self._transport.execute(claiming.call(wait_ms))
        return async_messages(self._transport, claiming.holder, result)

    def claims(
        self,
        topic: str,
        group: str,
        *,
        max: int = 100,
        drain: bool = False,
        ahead: int = 0,
        **options: Unpack[ClaimOptions],
    ) -> AsyncIterator[list[AsyncMessage]]:
        """Iterate over batches: `async for batch in broker.claims(…):`. As `DriftQ.claims`."""
        check_ahead(ahead)
        claiming = Claiming(LeaseHolder(topic, group, self.owner), max, **options)
        decode = partial(async_messages, self._transport, claiming.holder)
        return claims_async(self._transport, claiming, decode, drain=drain, ahead=ahead)

    def consume(
        self, topic: str, group: str, *, prefetch: int = 10, **options: Unpack[ClaimOptions]
    ) -> AsyncIterator[AsyncMessage]:
        """Iterate over messages without end: `async for message in broker.consume(…): async with message: …`.

        Claims `prefetch` at a time; options as in `claim`. The leases of messages that wait are renewed, so only the
        handling of one message has to fit into a lease. Use a worker to handle several at a time.
        """
        claiming = Claiming(LeaseHolder(topic, group, self.owner), prefetch, **options)
        return consume_async(self._transport, claiming, partial(async_messages, self._transport, claiming.holder))

    def outcome(self) -> AsyncOutcome:
        """Acks, messages, appends and effects in one write."""
        return AsyncOutcome(self._transport)

    def producer(self, topic: str, producer_id: str = "", **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """For many messages: batched, pipelined, each written once. A new producer of a name fences off the old one."""
        from driftq.client.producer.producer import AsyncProducer  # noqa: PLC0415

        return AsyncProducer(self._transport, topic, producer_id, **options)

    def backup(self) -> AsyncIterator[bytes]:
        """The data of the broker as a tar archive, in pieces."""
        return self._transport.iterate(admin.backup(BACKUP_S))

    def stream(self, path: str, content_type: str = "") -> AsyncStream:
        """A durable stream by its path. Nothing is created before `create` is called on it."""
        return AsyncStream(self._transport, path, content_type)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncDriftQ({self.url!r})"


def connect(url: str = "", **options: Unpack[ConnectOptions]) -> DriftQ:
    """A blocking client of a broker. It connects when it is first used.

    Parameters:
        url: The address (default: DRIFTQ_URL, else http://127.0.0.1:8080).
        options: `token`, sent as a bearer token, or `token_file`, a file that holds it and is read again when it
            changes (default: DRIFTQ_TOKEN, DRIFTQ_TOKEN_FILE); `owner`, the name of this client in leases; `retry`, a
            `driftq.RetryOptions`; for https `ca`, `certificate` and `key`: PEM files of whom to trust, and of the
            client's own certificate.
    """
    return DriftQ(url, **options)


def connect_async(url: str = "", **options: Unpack[ConnectOptions]) -> AsyncDriftQ:
    """An async client of a broker, with the options of `connect`. It connects when it is first used."""
    return AsyncDriftQ(url, **options)
