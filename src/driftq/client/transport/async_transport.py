"""Performs steps on asyncio. The twin of `blocking`: the same steps, awaited.

`AsyncConnection` is one connection; it can carry several requests at a time, whose replies come in their order. The
transport gives each exchange a wire to itself, because an answer that waits would hold up the ones behind it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, TypeVar, assert_never, cast

from driftq.client.errors import Closed, DriftQError, NotConnected, OutcomeUnknown
from driftq.client.transport.http import Address, HttpReply, ReplyReader, request_bytes
from driftq.client.transport.sansio import (
    Asked,
    Call,
    CloseConnection,
    Exchange,
    Flow,
    Open,
    PeerHistory,
    ReadMore,
    RetryOptions,
    Sleep,
    Step,
    StepEnded,
    Yield,
    failed,
    resume,
    retrying_call,
    start,
)
from driftq.client.transport.sync_transport import IDLE_MAX, not_connected

T = TypeVar("T")

UNREAD_BYTES_MAX = 1 << 20
CLOSE_S = 1.0  # a loop closes an aborted connection in its next turn


class _Reader(ReplyReader):
    """A reader that hands over each reply as soon as it is whole."""

    def __init__(self, wire: AsyncConnection) -> None:
        self._wire = wire
        super().__init__()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._wire.on_progress()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._wire.on_progress()

    def on_complete(self) -> None:
        super().on_complete()
        self._wire.on_reply(self)


class AsyncConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._reader = _Reader(self)
        self._waiting: deque[asyncio.Future[HttpReply]] = deque()
        self._transport: asyncio.Transport | None = None
        self._progress: asyncio.Future[None] | None = None
        self._unread_bytes = 0
        self._live = False
        self.usable = True
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the socket is closed
        self.error: DriftQError = OutcomeUnknown("the broker hung up before the answer was whole")

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None, timeout_s: float) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, wire = await loop.create_connection(cls, address.host, address.port, ssl=tls)
        except TimeoutError as error:
            raise not_connected(address, error) from None
        except OSError as error:
            raise not_connected(address, error) from None
        return wire

    def send(self, request: bytes) -> asyncio.Future[HttpReply]:
        """Write a request behind those that are under way. The future fails with the connection."""
        waiter: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        if not self.usable or self._transport is None:
            waiter.set_exception(self.error)
            return waiter
        self._waiting.append(waiter)
        self._transport.write(request)
        return waiter

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def forsake(self) -> None:
        """Close from another loop than its own."""
        loop = self.gone.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.close)

    # --- one at a time ---

    async def exchange(self, request: bytes, timeout_s: float, *, bodiless: bool) -> HttpReply:
        self._reader.reset(bodiless=bodiless)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.send(request)
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("no answer in time") from None
        except BaseException:
            self.close()
            raise

    async def open(self, request: bytes, timeout_s: float) -> AsyncReplyStream | HttpReply:
        self._reader.reset()
        self._live = True
        waiter = self.send(request)
        waiter.add_done_callback(_looked_at)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._reader.has_head:
                    await self._progressed()
                head = self._reader.reply()
                if head.status < 300 and head.status != 204:
                    return AsyncReplyStream(self, head)
                self._live = False
                return await waiter
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("no answer in time") from None
        except BaseException:
            self.close()
            raise

    async def more(self, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    data = self._reader.take()
                    if data or self._reader.complete:
                        self._unread_bytes = 0
                        self._live = not self._reader.complete
                        if self.usable and self._transport is not None:
                            self._transport.resume_reading()
                        return data
                    await self._progressed()
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("no answer in time") from None

    async def _progressed(self) -> None:
        if not self.usable:
            raise self.error
        self._progress = asyncio.get_running_loop().create_future()
        await self._progress

    # --- called by the reader and the loop ---

    def on_progress(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def on_reply(self, reader: ReplyReader) -> None:
        self.on_progress()
        if not reader.keep_alive:
            self.usable = False
        waiter = self._waiting.popleft()
        if not waiter.done():
            waiter.set_result(reader.reply())
        if not self._live:
            reader.reset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except OutcomeUnknown as error:
            self.error = error
            self.close()
            return
        if self._live:
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_BYTES_MAX and self._transport is not None:
                self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._waiting:
            self._reader.end()
        if error is not None:
            self.error = OutcomeUnknown(f"the connection broke before the answer: {error}")
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(self.error)
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)
        if not self.gone.done():
            self.gone.set_result(None)


class AsyncReplyStream:
    """A reply whose body is still on its way."""

    def __init__(self, wire: AsyncConnection, head: HttpReply) -> None:
        self.wire = wire
        self.status = head.status
        self.headers = head.headers


class AsyncTransport:
    """The connections of one loop to one broker."""

    def __init__(self, address: Address, patience: RetryOptions | None = None) -> None:
        self.address = address
        self.patience = patience or RetryOptions()
        self.known = PeerHistory()
        self._tls = address.tls()
        self._idle: list[AsyncConnection] = []
        self._wires: set[AsyncConnection] = set()  # every one whose socket is open
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def ask(self, asked: Asked[T], patience: RetryOptions | None = None) -> T:
        """The answer to a call, or what a flow returns."""
        flow = retrying_call(asked, patience or self.patience, self.known) if isinstance(asked, Call) else asked
        step = start(flow)
        while not isinstance(step, StepEnded):
            step = await self._advance(flow, step)
        value: T = step.value
        return value

    async def each(self, flow: Flow[Any]) -> AsyncIterator[Any]:
        """Everything a flow gives. What it has open when nobody listens any more is closed."""
        live: AsyncReplyStream | None = None
        try:
            step = start(flow)
            while not isinstance(step, StepEnded):
                if isinstance(step, Yield):
                    yield step.value
                    step = resume(flow, None)
                    continue
                live = step.live if isinstance(step, ReadMore) and isinstance(step.live, AsyncReplyStream) else live
                step = await self._advance(flow, step)
        finally:
            flow.close()
            if live is not None:
                live.wire.close()

    async def _advance(self, flow: Flow[Any], step: Step) -> Step | StepEnded:
        try:
            result = await self._perform(step)
        except (NotConnected, OutcomeUnknown) as error:
            return failed(flow, error)
        return resume(flow, result)

    async def _perform(self, step: Step) -> object:
        match step:
            case Exchange(call, timeout_s):
                return await self._exchange(call, timeout_s)
            case Open(call, timeout_s):
                wire = await self._take(timeout_s)
                found = await wire.open(request_bytes(self.address, call), timeout_s)
                if isinstance(found, HttpReply):
                    self._put_back(wire)
                return found
            case ReadMore(live, timeout_s):
                assert isinstance(live, AsyncReplyStream)
                return await live.wire.more(timeout_s)
            case CloseConnection(live):
                assert isinstance(live, AsyncReplyStream)
                live.wire.close()
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Yield():
                raise AssertionError("a flow that gives is iterated, not asked")
            case _:
                assert_never(step)
        return None

    async def _exchange(self, call: Call[Any], timeout_s: float) -> HttpReply:
        wire = await self._take(timeout_s)
        try:
            return await wire.exchange(request_bytes(self.address, call), timeout_s, bodiless=call.method == "HEAD")
        finally:
            self._put_back(wire)

    # --- the pool ---

    async def _take(self, timeout_s: float) -> AsyncConnection:
        if self._closed:
            raise Closed("this client was closed")
        self._stay_on_loop()
        while self._idle:
            wire = self._idle.pop()
            if wire.usable:
                return wire
            wire.close()
        return await self.connect(timeout_s)

    async def connect(self, timeout_s: float = 10.0) -> AsyncConnection:
        """A connection of one's own."""
        self._stay_on_loop()
        wire = await AsyncConnection.connect(self.address, self._tls, timeout_s)
        self._wires.add(wire)
        wire.gone.add_done_callback(lambda _: self._wires.discard(wire))
        if self._closed:
            wire.close()
            raise Closed("this client was closed")
        return wire

    def _stay_on_loop(self) -> None:
        """Connections belong to a loop. Those of another one, which is usually over, are left to it."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        for wire in self._wires:
            wire.forsake()
        self._idle, self._wires, self._loop = [], set(), loop

    def _put_back(self, wire: AsyncConnection) -> None:
        if wire.usable and not self._closed and len(self._idle) < IDLE_MAX:
            self._idle.append(wire)
        else:
            wire.close()

    async def close(self) -> None:
        """Returns when every socket is closed, also those of calls that are under way. Twice is as good as once."""
        self._closed = True
        self._idle.clear()
        self._stay_on_loop()
        wires = list(self._wires)
        for wire in wires:
            wire.close()
        if wires:
            await asyncio.wait([wire.gone for wire in wires], timeout=CLOSE_S)


def _looked_at(waiter: asyncio.Future[HttpReply]) -> None:
    """The one who waits for the head hears of a broken connection in another way."""
    if not waiter.cancelled():
        waiter.exception()
