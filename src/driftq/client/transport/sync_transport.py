"""Performs steps on blocking sockets. Threads share one transport: each exchange has a connection to itself.

A connection is kept for the next exchange when its reply was whole. After a fork the child begins with none: a socket
that two processes read is nobody's.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from driftq.client.errors import Closed, NotConnected, OutcomeUnknown
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

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

RECEIVE_BYTES = 256 * 1024
IDLE_MAX = 16


class SyncConnection:
    """One socket and the reader of its replies."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._reader = ReplyReader()
        self._usable = True
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)
        except OSError as error:
            raise not_connected(address, error) from None

    def is_fresh(self) -> bool:
        """Nothing can be read from a connection at rest, unless the other side has ended it."""
        if not self._usable:
            return False
        watch = select.poll()  # unlike select, it knows descriptors above 1023
        watch.register(self._socket, select.POLLIN)
        return not watch.poll(0)

    def exchange(self, request: bytes, timeout_s: float, *, bodiless: bool) -> HttpReply:
        deadline_s = time.monotonic() + timeout_s
        self._write(request, timeout_s, bodiless=bodiless, in_place=True)
        while not self._reader.complete:
            self._read(deadline_s)
        self._usable = self._reader.keep_alive
        return self._reader.reply()

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
        self._usable = self._reader.keep_alive
        return self._reader.reply()

    def more(self, timeout_s: float) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        while True:
            data = self._reader.take()
            if data or self._reader.complete:
                self._usable = self._reader.complete and self._reader.keep_alive
                return data
            self._read(deadline_s)

    def _write(self, request: bytes, timeout_s: float, *, bodiless: bool, in_place: bool = False) -> None:
        self._reader.reset(bodiless=bodiless, in_place=in_place)
        self._usable = False
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(request)
        except OSError as error:
            raise OutcomeUnknown(f"the connection broke while the request was sent: {error}") from None

    def _read(self, deadline_s: float) -> None:
        room = self._reader.room()
        try:
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            if room is not None:
                count, data = self._socket.recv_into(room), b""
            else:
                data = self._socket.recv(RECEIVE_BYTES)
                count = len(data)
        except TimeoutError:
            raise OutcomeUnknown("no answer in time") from None
        except OSError as error:
            raise OutcomeUnknown(f"the connection broke before the answer: {error}") from None
        if data:
            self._reader.feed(data)
        elif count:
            self._reader.received(count)
        else:
            self._reader.end()
            if not self._reader.complete:
                raise OutcomeUnknown("the broker hung up before the answer was whole")

    def close(self) -> None:
        self._usable = False
        self._socket.close()


class ReplyStream:
    """A reply whose body is still on its way."""

    def __init__(self, connection: SyncConnection, head: HttpReply) -> None:
        self.connection = connection
        self.status = head.status
        self.headers = head.headers


class Transport:
    """The connections to one broker, and the one way to use them: `ask` and `each`."""

    def __init__(self, address: Address, patience: RetryOptions | None = None) -> None:
        self.address = address
        self.patience = patience or RetryOptions()
        self.known = PeerHistory()
        self._tls = address.tls()
        self._lock = threading.Lock()
        self._idle: list[SyncConnection] = []
        self._pid = os.getpid()
        self._closed = False

    def ask(self, asked: Asked[T], patience: RetryOptions | None = None) -> T:
        """The answer to a call, or what a flow returns."""
        flow = retrying_call(asked, patience or self.patience, self.known) if isinstance(asked, Call) else asked
        step = start(flow)
        while not isinstance(step, StepEnded):
            step = self._advance(flow, step)
        value: T = step.value
        return value

    def each(self, flow: Flow[Any]) -> Iterator[Any]:
        """Everything a flow gives. What it has open when nobody listens any more is closed."""
        live: ReplyStream | None = None
        try:
            step = start(flow)
            while not isinstance(step, StepEnded):
                if isinstance(step, Yield):
                    yield step.value
                    step = resume(flow, None)
                    continue
                live = step.live if isinstance(step, ReadMore) and isinstance(step.live, ReplyStream) else live
                step = self._advance(flow, step)
        finally:
            flow.close()
            if live is not None:
                live.connection.close()

    def _advance(self, flow: Flow[Any], step: Step) -> Step | StepEnded:
        try:
            result = self._perform(step)
        except (NotConnected, OutcomeUnknown) as error:
            return failed(flow, error)
        return resume(flow, result)

    def _perform(self, step: Step) -> object:
        match step:
            case Exchange(call, timeout_s):
                return self._exchange(call, timeout_s)
            case Open(call, timeout_s):
                connection = self._take(timeout_s)
                return self._opened(connection, request_bytes(self.address, call), timeout_s)
            case ReadMore(live, timeout_s):
                assert isinstance(live, ReplyStream)
                return live.connection.more(timeout_s)
            case CloseConnection(live):
                assert isinstance(live, ReplyStream)
                live.connection.close()
            case Sleep(seconds):
                time.sleep(seconds)
            case Yield():
                raise AssertionError("a flow that gives is iterated, not asked")
            case _:
                assert_never(step)
        return None

    def _exchange(self, call: Call[Any], timeout_s: float) -> HttpReply:
        connection = self._take(timeout_s)
        try:
            return connection.exchange(request_bytes(self.address, call), timeout_s, bodiless=call.method == "HEAD")
        finally:
            self._put_back(connection)

    def _opened(self, connection: SyncConnection, request: bytes, timeout_s: float) -> ReplyStream | HttpReply:
        try:
            found = connection.open(request, timeout_s)
        except BaseException:
            connection.close()
            raise
        if isinstance(found, HttpReply):
            self._put_back(connection)
        return found

    # --- the pool ---

    def _take(self, timeout_s: float) -> SyncConnection:
        if self._closed:
            raise Closed("this client was closed")
        if self._pid != os.getpid():
            self._begin_anew()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return SyncConnection(self.address, self._tls, timeout_s)
            if connection.is_fresh():
                return connection
            connection.close()

    def _begin_anew(self) -> None:
        """After a fork. Closing the child's copies does not touch the parent's connections."""
        idle, self._idle, self._pid, self._lock = self._idle, [], os.getpid(), threading.Lock()
        for connection in idle:
            connection.close()

    def _put_back(self, connection: SyncConnection) -> None:
        if connection.is_fresh() and not self._closed:
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Closing twice is as good as once."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        """A client that nobody closed leaves no socket to the collector; those at rest owe nobody anything."""
        for connection in getattr(self, "_idle", ()):
            connection.close()


def not_connected(address: Address, error: OSError) -> NotConnected:
    import ssl  # noqa: PLC0415  # 25 ms that only a client without a connection pays

    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "its certificate is not trusted: SSL_CERT_FILE names a PEM file with it or with its authority"
        return NotConnected(f"no trusted broker at {address.text} ({error}); {advice}")
    if isinstance(error, ssl.SSLError):
        return NotConnected(f"no TLS at {address.text} ({error}); a broker without a certificate has an http:// URL")
    return NotConnected(f"no broker answers at {address.text} ({error}); start one with `driftq serve`")
