"""The transport of the blocking client: performs the steps of `sansio` on sockets.

Threads may share one transport. Each exchange takes a connection from a pool and returns it if the reply was read to
its end. After a fork the child starts with an empty pool: two processes must not read one socket.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from driftq.client.errors import Closed, NotConnected, OutcomeUnknown
from driftq.client.transport.http import Address, HttpReply, request_bytes, request_head
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
from driftq.client.transport.tls import closed_early, connection_broke, not_connected

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

RECEIVE_BYTES = 256 * 1024
IDLE_MAX = 16
JOINED_BYTES = 64 * 1024  # a larger body is sent after its head instead of being copied behind it


class _Reader(ReplyReader):
    """A reader that also collects the replies to requests that were sent ahead."""

    def __init__(self) -> None:
        self.unread = 0  # replies that were asked for by `send` and not taken
        self.replies: deque[HttpReply] = deque()
        super().__init__()

    def on_complete(self) -> None:
        super().on_complete()
        if self.unread:
            self.replies.append(self.reply())
            if self.keep_alive and len(self.replies) < self.unread:
                self.reset(in_place=True)


class SyncConnection:
    """One socket and the reader of its replies."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._reader = _Reader()
        self._is_new_tls = tls is not None  # and no reply has arrived
        self.usable = True
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            raise not_connected(address.url, error) from None

    def is_reusable(self) -> bool:
        """An idle connection has nothing to read, unless the broker has closed it."""
        if not self.usable:
            return False
        if not hasattr(select, "poll"):  # Windows, where select takes any socket
            return not select.select([self._socket], [], [], 0)[0]
        watch = select.poll()  # unlike select, it accepts descriptors above 1023
        watch.register(self._socket, select.POLLIN)
        return not watch.poll(0)

    def exchange(self, head: bytes, body: bytes, timeout_s: float, *, bodiless: bool) -> HttpReply:
        deadline_s = time.monotonic() + timeout_s
        if len(body) <= JOINED_BYTES:
            self._write(head + body, timeout_s, bodiless=bodiless, in_place=True)
        else:
            self._write(head, timeout_s, bodiless=bodiless, in_place=True)
            self._send(body, timeout_s)
        while not self._reader.complete:
            self._read(deadline_s)
        self.usable = self._reader.keep_alive
        return self._reader.reply()

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a request ahead: the replies to those before it may not have been read."""
        reader = self._reader
        if not reader.unread or reader.complete:
            reader.reset(in_place=True)
        reader.unread += 1
        self._send(request, timeout_s)

    def receive(self, timeout_s: float) -> HttpReply:
        """The reply to the oldest request that was sent ahead."""
        reader = self._reader
        deadline_s = time.monotonic() + timeout_s
        while not reader.replies:
            if reader.complete:
                raise closed_early(is_new_tls=False)  # the broker closes after the reply before
            self._read(deadline_s)
        reader.unread -= 1
        self.usable = not reader.unread and reader.keep_alive
        return reader.replies.popleft()

    def open(self, request: bytes, timeout_s: float) -> ReplyStream | HttpReply:
        deadline_s = time.monotonic() + timeout_s
        self._write(request, timeout_s, bodiless=False)
        while not self._reader.has_head:
            self._read(deadline_s)
        reply = self._reader.reply()
        if reply.status < 300 and reply.status != 204:
            return ReplyStream(self, reply)
        while not self._reader.complete:
            self._read(deadline_s)
        self.usable = self._reader.keep_alive
        return self._reader.reply()

    def read_more(self, timeout_s: float) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        while True:
            data = self._reader.take_body()
            if data or self._reader.complete:
                self.usable = self._reader.complete and self._reader.keep_alive
                return data
            self._read(deadline_s)

    def _write(self, request: bytes, timeout_s: float, *, bodiless: bool, in_place: bool = False) -> None:
        self._reader.reset(bodiless=bodiless, in_place=in_place)
        self._send(request, timeout_s)

    def _send(self, request: bytes, timeout_s: float) -> None:
        self.usable = False
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(request)
        except OSError as error:
            raise connection_broke("while the request was sent", error, is_new_tls=self._is_new_tls) from None

    def _read(self, deadline_s: float) -> None:
        buffer = self._reader.body_buffer()
        try:
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            if buffer is not None:
                count, data = self._socket.recv_into(buffer), b""
            else:
                data = self._socket.recv(RECEIVE_BYTES)
                count = len(data)
        except TimeoutError:
            raise OutcomeUnknown("no reply in time") from None
        except OSError as error:
            raise connection_broke("before the reply", error, is_new_tls=self._is_new_tls) from None
        if data:
            self._is_new_tls = False
            self._reader.feed(data)
        elif count:
            self._reader.body_received(count)
        else:
            self._reader.end()
            if not self._reader.complete:
                raise closed_early(is_new_tls=self._is_new_tls)

    def close(self) -> None:
        self.usable = False
        self._socket.close()


class ReplyStream:
    """A reply whose body is still arriving: the `LiveReply` of this transport."""

    def __init__(self, connection: SyncConnection, head: HttpReply) -> None:
        self.connection = connection
        self.status = head.status
        self.headers = head.headers


class Transport:
    """A pool of connections to one broker. `execute` runs an operation, `iterate` a flow that yields values."""

    def __init__(self, address: Address, retry: RetryOptions | None = None) -> None:
        self.address = address
        self.retry = retry or RetryOptions()
        self.peer = PeerHistory()
        self._tls = address.tls()
        self._lock = threading.Lock()
        self._idle: list[SyncConnection] = []
        self._pid = os.getpid()
        self._closed = False

    def execute(self, operation: Operation[T], retry: RetryOptions | None = None) -> T:
        """The reply of a call, or what a flow returns."""
        flow = retrying_call(operation, retry or self.retry, self.peer) if isinstance(operation, Call) else operation
        return self.run(flow, start(flow))

    def run(self, flow: Flow[T], step: Step | FlowResult) -> T:
        while not isinstance(step, FlowResult):
            step = self._advance(flow, step)
        value: T = step.value
        return value

    def iterate(self, flow: Flow[Any]) -> Iterator[Any]:
        """The values that a flow yields. Closes the flow's connection when the caller stops iterating."""
        live: ReplyStream | None = None
        try:
            step = start(flow)
            while not isinstance(step, FlowResult):
                if isinstance(step, Yield):
                    yield step.value
                    step = resume(flow, None)
                    continue
                live = step.reply if isinstance(step, ReadMore) and isinstance(step.reply, ReplyStream) else live
                step = self._advance(flow, step)
        finally:
            flow.close()
            if live is not None:
                live.connection.close()

    def _advance(self, flow: Flow[Any], step: Step) -> Step | FlowResult:
        try:
            result = self._perform(step)
        except (NotConnected, OutcomeUnknown) as error:
            return throw(flow, error)
        return resume(flow, result)

    def _perform(self, step: Step) -> object:
        match step:
            case Exchange(call, timeout_s):
                return self._exchange(call, timeout_s)
            case Open(call, timeout_s):
                connection = self.acquire(timeout_s)
                return self._open(connection, request_bytes(self.address, call), timeout_s)
            case ReadMore(live, timeout_s):
                assert isinstance(live, ReplyStream)
                return live.connection.read_more(timeout_s)
            case CloseConnection(live):
                assert isinstance(live, ReplyStream)
                live.connection.close()
            case Sleep(seconds):
                time.sleep(seconds)
            case Yield():
                raise AssertionError("a flow that yields values must be iterated")
            case _:
                assert_never(step)
        return None

    def _exchange(self, call: Call[Any], timeout_s: float) -> HttpReply:
        connection = self.acquire(timeout_s)
        try:
            head = request_head(self.address, call)
            return connection.exchange(head, call.body, timeout_s, bodiless=call.method == "HEAD")
        finally:
            self.release(connection)

    def _open(self, connection: SyncConnection, request: bytes, timeout_s: float) -> ReplyStream | HttpReply:
        try:
            reply = connection.open(request, timeout_s)
        except BaseException:
            connection.close()
            raise
        if isinstance(reply, HttpReply):
            self.release(connection)
        return reply

    # --- the pool ---

    def acquire(self, timeout_s: float) -> SyncConnection:
        if self._closed:
            raise Closed("this client was closed")
        if self._pid != os.getpid():
            self._reset_after_fork()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                tls = self._tls.current() if self._tls is not None else None
                return SyncConnection(self.address, tls, timeout_s)
            if connection.is_reusable():
                return connection
            connection.close()

    def _reset_after_fork(self) -> None:
        """Closing the child's copies of the sockets does not affect the parent's connections."""
        idle, self._idle, self._pid, self._lock = self._idle, [], os.getpid(), threading.Lock()
        for connection in idle:
            connection.close()

    def release(self, connection: SyncConnection) -> None:
        if connection.usable and not self._closed:  # whether it is still open is checked when it is used again
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Idempotent. Calls that are under way finish and then close their connections."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        """A client that was not closed leaves no idle socket to the garbage collector."""
        for connection in getattr(self, "_idle", ()):
            connection.close()
