"""Durable streams: create, append, read, follow, and idempotent producers.

    log = broker.stream("builds/42", content_type="application/json")
    log.create()
    log.append({"step": 1})
    for chunk in log.follow(): ...

What both clients do is written once, as flows; `Stream` blocks, `AsyncStream` is awaited. How `follow` works:

    read, read, … until up to date        every chunk is yielded; `next_offset` is where to continue
    │
    ├─ SSE (default, except plain text)   one live reply; after it ends or breaks: reopen at the last offset, with
    │                                     backoff, until nothing was heard for `RetryOptions.deadline_ms`
    └─ long poll                          one read after the other, each waits for data; retried like any read
    │
    closed                                the last chunk says so: the flow returns

A chunk is yielded only with the offset after it, so a reader that stores `chunk.next_offset` can resume exactly there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

from driftq.client.calls import streams
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.errors import InvalidCall, NotConnected, OutcomeUnknown, Refused, TailMoved
from driftq.client.streams.sse import SseFollower, join_parts
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import (
    Call,
    CloseConnection,
    Flow,
    LiveReply,
    Open,
    PeerHistory,
    ReadMore,
    RetryOptions,
    Sleep,
    Yield,
    random_fraction,
    retrying_call,
)
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.calls.streams import AppendReply, ReadChunk, StreamInfo
    from driftq.client.producer.producer_base import ProducerOptions
    from driftq.client.producer.stream_producer import AsyncIdempotentProducer, IdempotentProducer
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport

LiveKind = Literal["auto", "long-poll", "sse"]
POLL_MS = 60_000  # longer than a broker holds a long poll


class StreamMethods:
    """What both kinds of stream can do. A `content_type` that was not given is fetched from the broker."""

    path: str
    content_type: str
    _retry: RetryOptions
    _peer: PeerHistory

    @bound_endpoint
    def create(
        self,
        *,
        content_type: str = "",
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        data: Iterable[Value] = (),
        closed: bool = False,
        retention_s: int = 0,
        retention_bytes: int = 0,
        forked_from: str = "",
        fork_offset: str = "",
    ) -> Call[StreamInfo]:
        """Create the stream. Idempotent: an existing stream with other properties is refused."""
        self.content_type = content_type or self.content_type or w.DEFAULT_TYPE
        return streams.create(
            self.path, content_type=self.content_type, ttl_s=ttl_s, expires_at=expires_at, data=data, closed=closed,
            retention_s=retention_s, retention_bytes=retention_bytes, forked_from=forked_from, fork_offset=fork_offset,
        )  # fmt: skip

    @bound_endpoint
    def describe(self) -> Call[StreamInfo]:
        """Content type, end offset and lifetime."""
        return streams.describe(self.path)

    @bound_endpoint
    def delete(self) -> Call[None]:
        return streams.delete(self.path)

    @bound_endpoint
    def trim(self, before: str) -> Call[dict[str, Any]]:
        """Delete everything before an offset."""
        return streams.trim(self.path, before)

    @bound_endpoint
    def read(self, offset: str = w.START) -> Call[ReadChunk]:
        """One chunk from an offset on."""
        return streams.read(self.path, offset)

    @bound_endpoint
    def read_all(self, offset: str = w.START) -> Flow[ReadChunk]:
        """Everything from an offset to the end, as one chunk."""
        return self._read_all_flow(offset)

    @bound_endpoint
    def append(self, *values: Value, if_match: str = "", seq: str = "", close: bool = False) -> Flow[AppendReply]:
        """Append values. In a JSON stream each is one message. With `if_match`, only if the stream ends there.

        An append whose reply is lost is not retried, since it could happen twice. A producer's appends are.
        """
        return self._append_flow(values, if_match, seq, close)

    @bound_endpoint
    def close(self, *values: Value) -> Flow[AppendReply]:
        """Close the stream permanently, with last values if there are any."""
        return self._append_flow(values, "", "", True)

    @bound_endpoint
    def update(
        self, decide: Callable[[ReadChunk], Value | None], *, offset: str = w.START, tries: int = 10
    ) -> Flow[str]:
        """Optimistic update: read the stream, append what `decide` returns, and start over if another writer was first.

        `decide` gets everything from `offset` on; if it returns None, nothing is appended. Returns the new end offset.
        """
        return self._update_flow(decide, offset, tries)

    # --- flows ---

    def _call(self, call: Call[Any]) -> Flow[Any]:
        return retrying_call(call, self._retry, self._peer)

    def _fetch_type(self) -> Flow[str]:
        if not self.content_type:
            self.content_type = (yield from self._call(streams.describe(self.path))).content_type
        return self.content_type

    def _append_flow(self, values: tuple[Value, ...], if_match: str, seq: str, close: bool) -> Flow[AppendReply]:
        content_type = yield from self._fetch_type()
        if not values and not close:
            raise InvalidCall("an append needs at least one value")
        body = streams.body_of(content_type, values) if values else b""
        call = streams.append(self.path, body, content_type, if_match=if_match, seq=seq, close=close)
        appended: AppendReply = yield from self._call(call)
        return appended

    def _read_all_flow(self, offset: str) -> Flow[ReadChunk]:
        parts: list[bytes] = []
        while True:
            chunk: ReadChunk = yield from self._call(streams.read(self.path, offset))
            if not chunk.empty:
                parts.append(chunk.data)
            offset = chunk.next_offset
            if chunk.up_to_date:
                return chunk._replace(data=join_parts(chunk.content_type, parts))

    def _update_flow(self, decide: Callable[[ReadChunk], Value | None], offset: str, tries: int) -> Flow[str]:
        for attempt in range(1, tries + 1):
            current = yield from self._read_all_flow(offset)
            value = decide(current)
            if value is None:
                return current.next_offset
            try:
                return (yield from self._append_flow((value,), current.next_offset, "", False)).next_offset
            except TailMoved:
                if attempt == tries:
                    raise
        raise AssertionError("unreachable")

    def _follow_flow(self, offset: str, live: LiveKind) -> Flow[None]:
        """Catch up, then wait for more until the stream is closed. See the top of the module."""
        cursor = ""
        while True:
            chunk: ReadChunk = yield from self._call(streams.read(self.path, offset))
            if not chunk.empty:
                yield Yield(chunk)
            offset = chunk.next_offset
            if chunk.closed:
                return
            if chunk.up_to_date:
                break
        # SSE normalises line ends, which would change a plain text; other types are not affected.
        is_plain_text = w.is_text(chunk.content_type) and not w.is_json(chunk.content_type)
        if live == "sse" or (live == "auto" and not is_plain_text):
            yield from self._follow_sse(offset, chunk.content_type)
            return
        while not chunk.closed:
            call = streams.read(self.path, offset, live=True, cursor=cursor, wait_ms=POLL_MS)
            chunk = yield from self._call(call)
            if not chunk.empty:
                yield Yield(chunk)
            offset, cursor = chunk.next_offset, chunk.cursor

    def _follow_sse(self, offset: str, content_type: str) -> Flow[None]:
        failures, received_s = 0, time.monotonic()
        follower = SseFollower(offset, content_type)
        while not follower.closed:
            live: LiveReply | None = None
            try:
                opened = yield Open(streams.events(self.path, follower.offset), self._retry.timeout_ms / 1_000)
                if isinstance(opened, HttpReply):
                    raise streams.refusal(opened)
                live = opened
                follower.connected(live.headers)
                while data := (yield ReadMore(live, POLL_MS * 2 / 1_000)):
                    failures, received_s = 0, time.monotonic()
                    for chunk in follower.feed(data):
                        yield Yield(chunk)
            except (NotConnected, OutcomeUnknown, Refused) as error:
                if isinstance(error, Refused) and not error.retryable:
                    raise
                if time.monotonic() - received_s > self._retry.deadline_ms / 1_000:
                    raise
                failures += 1
            if live is not None:
                yield CloseConnection(live)
            if failures:
                yield Sleep(self._retry.backoff_s(failures, random_fraction()))


class Stream(StreamMethods, SyncApi):
    """A stream of a blocking client."""

    def __init__(self, transport: Transport, path: str, content_type: str = "") -> None:
        self._transport = transport
        self._retry, self._peer = transport.retry, transport.peer
        self.path = path.strip("/")
        self.content_type = content_type

    def follow(self, offset: str = w.START, *, live: LiveKind = "auto") -> Iterator[ReadChunk]:
        """Every chunk from an offset on: what is there, then what is appended, until the stream is closed."""
        return self._transport.iterate(self._follow_flow(offset, live))

    def producer(
        self, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> IdempotentProducer:
        """An idempotent producer: each append happens once, also through retries and restarts of the broker."""
        from driftq.client.producer.stream_producer import IdempotentProducer  # noqa: PLC0415  # it imports asyncio

        return IdempotentProducer(self, producer_id, epoch=epoch, **options)


class AsyncStream(StreamMethods, AsyncApi):
    """A stream of a async client."""

    def __init__(self, transport: AsyncTransport, path: str, content_type: str = "") -> None:
        self._transport = transport
        self._retry, self._peer = transport.retry, transport.peer
        self.path = path.strip("/")
        self.content_type = content_type

    def follow(self, offset: str = w.START, *, live: LiveKind = "auto") -> AsyncIterator[ReadChunk]:
        """Every chunk from an offset on: what is there, then what is appended, until the stream is closed."""
        return self._transport.iterate(self._follow_flow(offset, live))

    def producer(
        self, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> AsyncIdempotentProducer:
        """An idempotent producer: each append happens once, also through retries and restarts of the broker."""
        from driftq.client.producer.stream_producer import AsyncIdempotentProducer  # noqa: PLC0415

        return AsyncIdempotentProducer(self, producer_id, epoch=epoch, **options)
