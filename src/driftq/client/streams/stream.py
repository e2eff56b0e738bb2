"""Durable streams: create, append, read, follow, and producers whose appends happen once.

    log = broker.stream("builds/42", content_type="application/json")
    log.create()
    log.append({"step": 1})
    for chunk in log.follow(): ...

What both clients do is here once, as flows; `Stream` blocks, `AsyncStream` is awaited.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

import msgspec

from driftq.client.calls import streams
from driftq.client.calls.streams import AppendReply, ReadChunk, StreamInfo
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.errors import InvalidCall, NotConnected, OutcomeUnknown, Refused, TailMoved
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import (
    Call,
    CloseConnection,
    Flow,
    Live,
    Open,
    PeerHistory,
    ReadMore,
    RetryOptions,
    Sleep,
    Yield,
    chance,
    retrying_call,
)
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.client.calls.queue import Value
    from driftq.client.producer.producer_base import ProducerOptions
    from driftq.client.producer.stream_producer import AsyncIdempotentProducer, IdempotentProducer
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport
import re
from typing import NamedTuple

LiveKind = Literal["auto", "long-poll", "sse"]
POLL_MS = 60_000  # longer than a broker lets a poll wait


class StreamMethods:
    """What a stream can be asked. `content_type` is learned from the broker when it is not given."""

    path: str
    content_type: str
    _patience: RetryOptions
    _known: PeerHistory

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
        """Make the stream, or make sure that it is there and like this."""
        self.content_type = content_type or self.content_type or w.DEFAULT_TYPE
        return streams.create(
            self.path, content_type=self.content_type, ttl_s=ttl_s, expires_at=expires_at, data=data, closed=closed,
            retention_s=retention_s, retention_bytes=retention_bytes, forked_from=forked_from, fork_offset=fork_offset,
        )  # fmt: skip

    @bound_endpoint
    def describe(self) -> Call[StreamInfo]:
        """Type, end and lifetime."""
        return streams.describe(self.path)

    @bound_endpoint
    def delete(self) -> Call[None]:
        return streams.delete(self.path)

    @bound_endpoint
    def trim(self, before: str) -> Call[dict[str, Any]]:
        """Forget everything before an offset."""
        return streams.trim(self.path, before)

    @bound_endpoint
    def read(self, offset: str = w.START) -> Call[ReadChunk]:
        """What is there from an offset on, as far as one answer goes."""
        return streams.read(self.path, offset)

    @bound_endpoint
    def read_all(self, offset: str = w.START) -> Flow[ReadChunk]:
        """Everything from an offset to the end, in one piece."""
        return self._reading(offset)

    @bound_endpoint
    def append(self, *values: Value, if_match: str = "", seq: str = "", close: bool = False) -> Flow[AppendReply]:
        """Append values. In a JSON stream each is one message. With `if_match` only if the stream ends there.

        An append whose answer is lost is not repeated: it could happen twice. Use a producer for that.
        """
        return self._appending(values, if_match, seq, close)

    @bound_endpoint
    def close(self, *values: Value) -> Flow[AppendReply]:
        """Close the stream for ever, with last values if there are any."""
        return self._appending(values, "", "", True)

    @bound_endpoint
    def update(
        self, decide: Callable[[ReadChunk], Value | None], *, offset: str = w.START, tries: int = 10
    ) -> Flow[str]:
        """Append what `decide` makes of the whole stream, provided nobody appends in between; else decide again.

        Returns the new end. `decide` gets everything from `offset` on and says None to leave it.
        """
        return self._updating(decide, offset, tries)

    # --- flows ---

    def _ask(self, call: Call[Any]) -> Flow[Any]:
        return retrying_call(call, self._patience, self._known)

    def _type(self) -> Flow[str]:
        if not self.content_type:
            self.content_type = (yield from self._ask(streams.describe(self.path))).content_type
        return self.content_type

    def _appending(self, values: tuple[Value, ...], if_match: str, seq: str, close: bool) -> Flow[AppendReply]:
        content_type = yield from self._type()
        if not values and not close:
            raise InvalidCall("an append needs at least one value")
        body = streams.body_of(content_type, values) if values else b""
        call = streams.append(self.path, body, content_type, if_match=if_match, seq=seq, close=close)
        appended: AppendReply = yield from self._ask(call)
        return appended

    def _reading(self, offset: str) -> Flow[ReadChunk]:
        parts: list[bytes] = []
        while True:
            chunk: ReadChunk = yield from self._ask(streams.read(self.path, offset))
            if not chunk.empty:
                parts.append(chunk.data)
            offset = chunk.next_offset
            if chunk.up_to_date:
                return chunk._replace(data=_joined(chunk.content_type, parts))

    def _updating(self, decide: Callable[[ReadChunk], Value | None], offset: str, tries: int) -> Flow[str]:
        for attempt in range(1, tries + 1):
            seen = yield from self._reading(offset)
            value = decide(seen)
            if value is None:
                return seen.next_offset
            try:
                return (yield from self._appending((value,), seen.next_offset, "", False)).next_offset
            except TailMoved:
                if attempt == tries:
                    raise
        raise AssertionError("unreachable")

    def _following(self, offset: str, live: LiveKind) -> Flow[None]:
        """Catch up, then wait for more, until the stream is closed. A lost connection is taken up where it ended."""
        cursor = ""
        while True:
            chunk: ReadChunk = yield from self._ask(streams.read(self.path, offset))
            if not chunk.empty:
                yield Yield(chunk)
            offset = chunk.next_offset
            if chunk.closed:
                return
            if chunk.up_to_date:
                break
        # Server-sent events cannot tell the line ends of a text apart; everything else survives them.
        text = w.is_text(chunk.content_type) and not w.is_json(chunk.content_type)
        if live == "sse" or (live == "auto" and not text):
            yield from self._listening(offset, chunk.content_type)
            return
        while not chunk.closed:
            call = streams.read(self.path, offset, live=True, cursor=cursor, wait_ms=POLL_MS)
            chunk = yield from self._ask(call)
            if not chunk.empty:
                yield Yield(chunk)
            offset, cursor = chunk.next_offset, chunk.cursor

    def _listening(self, offset: str, content_type: str) -> Flow[None]:
        failures, heard_s = 0, time.monotonic()
        place = _Heard(offset, content_type)
        while not place.closed:
            live: Live | None = None
            try:
                opened = yield Open(streams.events(self.path, place.offset), self._patience.timeout_ms / 1_000)
                if isinstance(opened, HttpReply):
                    raise streams.refusal(opened)
                live = opened
                events = SseParser()
                place.begin_again()
                place.is_base64 = live.headers.get(w.SSE_ENCODING.lower()) == "base64"
                while data := (yield ReadMore(live, POLL_MS * 2 / 1_000)):
                    failures, heard_s = 0, time.monotonic()
                    for chunk in place.take(events, data):
                        yield Yield(chunk)
            except (NotConnected, OutcomeUnknown, Refused) as error:
                if isinstance(error, Refused) and not error.retryable:
                    raise
                if time.monotonic() - heard_s > self._patience.deadline_ms / 1_000:
                    raise
                failures += 1
            if live is not None:
                yield CloseConnection(live)
            if failures:
                yield Sleep(self._patience.pause_s(failures, chance()))


class _Heard:
    """How far a listener has come."""

    def __init__(self, offset: str, content_type: str) -> None:
        self.offset = offset
        self.closed = False
        self.is_base64 = False
        self._content_type = content_type
        self._parts: list[bytes] = []

    def begin_again(self) -> None:
        """On a new connection: what came without its control event comes once more."""
        self._parts = []

    def take(self, events: SseParser, data: bytes) -> Iterator[ReadChunk]:
        """A chunk is whole when its control event has come: only that says where to go on."""
        for event in events.feed(data):
            if event.name == "data":
                self._parts.append(base64.b64decode(event.data) if self.is_base64 else event.data)
            elif event.name == "control":
                control = msgspec.json.decode(event.data, type=dict[str, Any])
                self.offset = control["streamNextOffset"]
                self.closed = bool(control.get("streamClosed"))
                if self._parts:
                    body = _joined(self._content_type, self._parts)
                    yield ReadChunk(body, self._content_type, self.offset, bool(control.get("upToDate")), self.closed)
                self._parts = []


def _joined(content_type: str, parts: list[bytes]) -> bytes:
    """Pieces of a stream as one: JSON arrays become one array."""
    if not w.is_json(content_type):
        return b"".join(parts)
    inside = [part.strip()[1:-1] for part in parts]
    return b"[%b]" % b",".join(part for part in inside if part.strip())


class Stream(StreamMethods, SyncApi):
    """One stream."""

    def __init__(self, transport: Transport, path: str, content_type: str = "") -> None:
        self._transport = transport
        self._patience, self._known = transport.patience, transport.known
        self.path = path.strip("/")
        self.content_type = content_type

    def follow(self, offset: str = w.START, *, live: LiveKind = "auto") -> Iterator[ReadChunk]:
        """Everything from an offset on, and then whatever comes, until the stream is closed."""
        return self._transport.each(self._following(offset, live))

    def producer(
        self, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> IdempotentProducer:
        """A producer whose appends happen once."""
        from driftq.client.producer.stream_producer import IdempotentProducer  # noqa: PLC0415  # it brings in asyncio

        return IdempotentProducer(self, producer_id, epoch=epoch, **options)


class AsyncStream(StreamMethods, AsyncApi):
    """One stream."""

    def __init__(self, transport: AsyncTransport, path: str, content_type: str = "") -> None:
        self._transport = transport
        self._patience, self._known = transport.patience, transport.known
        self.path = path.strip("/")
        self.content_type = content_type

    def follow(self, offset: str = w.START, *, live: LiveKind = "auto") -> AsyncIterator[ReadChunk]:
        """Everything from an offset on, and then whatever comes, until the stream is closed."""
        return self._transport.each(self._following(offset, live))

    def producer(
        self, producer_id: str = "", *, epoch: int | None = None, **options: Unpack[ProducerOptions]
    ) -> AsyncIdempotentProducer:
        """A producer whose appends happen once."""
        from driftq.client.producer.stream_producer import AsyncIdempotentProducer  # noqa: PLC0415

        return AsyncIdempotentProducer(self, producer_id, epoch=epoch, **options)


# --- Server-sent events, read: bytes in, events out. Pure; knows nothing of streams or connections ---


_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseEvent(NamedTuple):
    name: str
    data: bytes


class SseParser:
    """Takes bytes as they come and gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = "message"
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        found: list[SseEvent] = []
        text = self._rest + data
        held = text[-1:] if text.endswith(b"\r") else b""  # the other half of a line end may follow
        *lines, self._rest = _LINE_END.split(text.removesuffix(held) if held else text)
        self._rest += held
        for line in lines:
            self._take(line, found)
        return found

    def _take(self, line: bytes, found: list[SseEvent]) -> None:
        if not line:
            if self._lines:
                found.append(SseEvent(self._name, b"\n".join(self._lines)))
            self._name, self._lines = "message", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._lines.append(value)
        elif field == b"event":
            self._name = value.decode()
