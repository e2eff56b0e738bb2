"""The transport of the async client: performs the steps of `sansio` on asyncio, as `sync_transport` does on sockets.

An `AsyncConnection` can carry several requests at a time (HTTP pipelining); replies come in the order of requests. The
producer's `sender` uses that, and calls of one lane do (`shared_connection`). Any other exchange has a connection to
itself, because a long poll would delay every reply after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar, assert_never, cast

from driftq.client.errors import Closed, DriftQError, NotConnected, OutcomeUnknown
from driftq.client.pending_call import ForgottenCalls
from driftq.client.transport.http import Address, HttpReply, request_bytes
from driftq.client.transport.reply_reader import ReplyReader
from driftq.client.transport.sansio import (
    Call,
    CloseConnection,
    Exchange,
    Flow,
    FlowResult,
    Open,
    Operation,
    PeerHistory,
    ReadMore,
    RetryOptions,
    Sleep,
    Step,
    Yield,
    resume,
    retrying_call,
    start,
    throw,
)
from driftq.client.transport.shared_connection import SharedConnection
from driftq.client.transport.sync_transport import IDLE_MAX
from driftq.client.transport.tls import closed_early, connection_broke, not_connected

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

UNREAD_BYTES_MAX = 1 << 20
CLOSE_S = 1.0  # an aborted connection is closed in the next iteration of the loop


class _Reader(ReplyReader):
    """A reader that hands over each reply as soon as it is complete."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        super().__init__()

    def on_head(self) -> None:
        self._connection.on_progress()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._connection.on_progress()

    def on_complete(self) -> None:
        super().on_complete()
        self._connection.on_reply(self)


class AsyncConnection(asyncio.Protocol):
    """One connection: pipelined requests (`send`), one exchange at a time (`exchange`), or one live reply (`open`)."""

    def __init__(self) -> None:
        self._reader = _Reader(self)
        self._waiting: deque[asyncio.Future[HttpReply]] = deque()  # one for each request, in the order of replies
        self._transport: asyncio.Transport | None = None
        self._progress: asyncio.Future[None] | None = None  # resolved when more of a live reply has arrived
        self._unread_bytes = 0  # of a live reply; reading pauses above UNREAD_BYTES_MAX
        self._live = False  # the reply under way is read piece by piece
        self._is_new_tls = False  # over TLS, and no reply has arrived
        self.usable = True  # another request may be sent
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # resolved with the socket
        self.error: DriftQError = closed_early(is_new_tls=False)

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None, timeout_s: float) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(cls, address.host, address.port, ssl=tls)
        except OSError as error:  # a timeout too
            raise not_connected(address.url, error) from None
        return connection

    def send(self, request: bytes) -> asyncio.Future[HttpReply]:
        """Write a request after those that are under way. The future fails if the connection does."""
        waiter = self.expect_reply()
        self.write(request)
        return waiter

    def expect_reply(self) -> asyncio.Future[HttpReply]:
        """The reply to the request that is written next."""
        waiter: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        if self.usable and self._transport is not None:
            self._waiting.append(waiter)
        else:
            waiter.set_exception(self.error)
        return waiter

    def is_waiting(self) -> bool:
        """Whether a reply is under way."""
        return bool(self._waiting)

    def write(self, requests: bytes) -> None:
        if self.usable and self._transport is not None:
            self._transport.write(requests)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def close_threadsafe(self) -> None:
        """Close from another event loop than its own."""
        loop = self.closed.get_loop()
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
            raise OutcomeUnknown("no reply in time") from None
        except BaseException:
            self.close()
            raise

    async def open(self, request: bytes, timeout_s: float) -> AsyncReplyStream | HttpReply:
        self._reader.reset()
        self._live = True
        waiter = self.send(request)
        waiter.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._reader.has_head:
                    await self._wait_for_progress()
                head = self._reader.reply()
                if head.status < 300 and head.status != 204:
                    return AsyncReplyStream(self, head)
                self._live = False
                return await waiter
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("no reply in time") from None
        except BaseException:
            self.close()
            raise

    async def read_more(self, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    data = self._reader.take_body()
                    if data or self._reader.complete:
                        self._unread_bytes = 0
                        self._live = not self._reader.complete
                        if self.usable and self._transport is not None:
                            self._transport.resume_reading()
                        return data
                    await self._wait_for_progress()
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("no reply in time") from None

    async def _wait_for_progress(self) -> None:
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
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._is_new_tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        self._is_new_tls = False
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
            self.error = connection_broke("before the reply", error, is_new_tls=self._is_new_tls)
        elif self._is_new_tls:
            self.error = closed_early(is_new_tls=True)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(self.error)
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)
        if not self.closed.done():
            self.closed.set_result(None)


class AsyncReplyStream:
    """A reply whose body is still arriving: the `LiveReply` of this transport."""

    def __init__(self, connection: AsyncConnection, head: HttpReply) -> None:
        self.connection = connection
        self.status = head.status
        self.headers = head.headers


class AsyncTransport:
    """A pool of connections of one event loop to one broker."""

    def __init__(self, address: Address, retry: RetryOptions | None = None) -> None:
        self.address = address
        self.retry = retry or RetryOptions()
        self.peer = PeerHistory()
        self.forgotten = ForgottenCalls()
        self._tls = address.tls()
        self._idle: list[AsyncConnection] = []
        self._shared: dict[str, SharedConnection] = {}  # by lane
        self._connections: set[AsyncConnection] = set()  # every one whose socket is open
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def execute(self, operation: Operation[T], retry: RetryOptions | None = None) -> T:
        """The reply of a call, or what a flow returns."""
        flow = retrying_call(operation, retry or self.retry, self.peer) if isinstance(operation, Call) else operation
        step = start(flow)
        while not isinstance(step, FlowResult):
            step = await self._advance(flow, step)
        value: T = step.value
        return value

    async def iterate(self, flow: Flow[Any]) -> AsyncIterator[Any]:
        """The values that a flow yields. Closes the flow's connection when the caller stops iterating."""
        live: AsyncReplyStream | None = None
        try:
            step = start(flow)
            while not isinstance(step, FlowResult):
                if isinstance(step, Yield):
                    yield step.value
                    step = resume(flow, None)
                    continue
                live = step.reply if isinstance(step, ReadMore) and isinstance(step.reply, AsyncReplyStream) else live
                step = await self._advance(flow, step)
        finally:
            flow.close()
            if live is not None:
                live.connection.close()

    async def _advance(self, flow: Flow[Any], step: Step) -> Step | FlowResult:
        try:
            result = await (self._exchange(*step) if type(step) is Exchange else self._perform(step))
        except (NotConnected, OutcomeUnknown) as error:
            return throw(flow, error)
        return resume(flow, result)

    async def _perform(self, step: Step) -> object:
        match step:
            case Exchange(call, timeout_s):
                return await self._exchange(call, timeout_s)
            case Open(call, timeout_s):
                connection = await self._acquire(timeout_s)
                reply = await connection.open(request_bytes(self.address, call), timeout_s)
                if isinstance(reply, HttpReply):
                    self._release(connection)
                return reply
            case ReadMore(live, timeout_s):
                assert isinstance(live, AsyncReplyStream)
                return await live.connection.read_more(timeout_s)
            case CloseConnection(live):
                assert isinstance(live, AsyncReplyStream)
                live.connection.close()
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Yield():
                raise AssertionError("a flow that yields values must be iterated")
            case _:
                assert_never(step)
        return None

    async def _exchange(self, call: Call[Any], timeout_s: float) -> HttpReply:
        request = request_bytes(self.address, call)
        if call.lane:
            shared = self._shared.get(call.lane)
            if shared is None or not shared.has_room() or self._loop is not asyncio.get_running_loop():
                shared = self._shared[call.lane] = SharedConnection(await self._acquire(timeout_s))
            waiter = shared.send(request, timeout_s)
            try:
                return await waiter
            finally:
                shared.ended(waiter)
                if not shared.calls:
                    self._release_shared(call.lane, shared)
        connection = await self._acquire(timeout_s)
        try:
            return await connection.exchange(request, timeout_s, bodiless=call.method == "HEAD")
        finally:
            self._release(connection)

    def _release_shared(self, lane: str, shared: SharedConnection) -> None:
        """The last call of a lane has ended: its connection goes back to the pool."""
        if self._shared.get(lane) is shared:
            del self._shared[lane]
        if shared.connection.is_waiting():  # for the reply to a caller that was cancelled
            shared.connection.close()
        self._release(shared.connection)

    # --- the pool ---

    async def _acquire(self, timeout_s: float) -> AsyncConnection:
        if self._closed:
            raise Closed("this client was closed")
        self._bind_to_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return await self.connect(timeout_s)

    async def connect(self, timeout_s: float = 10.0) -> AsyncConnection:
        """A connection that is not in the pool; the caller closes it."""
        self._bind_to_loop()
        tls = self._tls.current() if self._tls is not None else None
        connection = await AsyncConnection.connect(self.address, tls, timeout_s)
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        if self._closed:
            connection.close()
            raise Closed("this client was closed")
        return connection

    def _bind_to_loop(self) -> None:
        """Connections belong to an event loop. Drop those of another loop, which has usually ended."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        for connection in self._connections:
            connection.close_threadsafe()
        self._idle, self._shared, self._connections, self._loop = [], {}, set(), loop

    def _release(self, connection: AsyncConnection) -> None:
        if connection.usable and not self._closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """Returns when every socket is closed, also those of calls that are under way. Idempotent."""
        self._closed = True
        self._idle.clear()
        self._bind_to_loop()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=CLOSE_S)


def _retrieve_exception(waiter: asyncio.Future[HttpReply]) -> None:
    """The reader of a live reply learns of a broken connection from `error`; asyncio must not log this future's."""
    if not waiter.cancelled():
        waiter.exception()
