"""One connection: requests are started as they come, answers leave in the order of the requests.

Owns keep-alive, the bounds on work started ahead, and the deadlines. Reading is `RequestParser`'s, the order of answers
is `ResponseQueue`'s, waiting for one is `HttpExchange`'s. Knows nothing of what requests mean.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from driftq.server.http.exchange import HttpExchange
from driftq.server.http.limits import BODY, IDLE, Late
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_parser import RequestParser
from driftq.server.http.response import Response
from driftq.server.http.response_queue import ResponseQueue
from driftq.server.http.stream import ResponseStream
from driftq.server.http.write_buffer import WriteBuffer

if TYPE_CHECKING:
    from driftq.server.http.service import Service

# A server that stops does not wait long for peers that do not close.
STOP_LINGER_S: Final = 0.2
_REFUSED = RequestHead("", b"", {}, keep_alive=False)


class Connection(ResponseQueue):
    """The protocol object of the event loop."""

    __slots__ = ("_busy", "_handler", "_held", "_limits", "_peer")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._handler = service.handler
        self._limits = service.limits
        self._peer = ""
        self._held = b""  # received and not parsed: the bound is reached or the socket is full
        self._busy = False  # requests are being started: input is not resumed from inside

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        is_inet = isinstance(address, tuple)
        self._peer = str(address[0]) if is_inet else "unix"
        service = self._service
        self._incoming = RequestParser(
            self._limits, service.body_budget, service.known_heads, self._peer, self._deliver
        )
        self._out = WriteBuffer(service, self._transport, self._room)
        reason = service.admit(self, self._peer, is_inet)
        if reason is not None:
            self._incoming.refuse(503, reason)
            self._answer_refusal(lingers=False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._service.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._closing and not self._incoming.ended:
            self._consume(self._service.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """The client sends nothing more. What is started is answered, it may still read; a stream ends."""
        if self._closing or not (self._queue or self._waiting):
            return False
        if self.is_streaming():
            self._transport.abort()
            return False
        self._stopping = True
        for exchange in tuple(self._queue):
            exchange.request.mark_gone()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._service.leave(self, self._peer)
        self._incoming.release()
        self._waiting.clear()
        self._held = b""
        queue = tuple(self._queue)
        self._queue.clear()
        for exchange in queue:
            exchange.abandon()

    def pause_writing(self) -> None:
        self._out.pause()

    def resume_writing(self) -> None:
        self._out.resume()

    # Requests.

    def _consume(self, data: memoryview) -> None:
        incoming = self._incoming
        out = self._out
        phase, received = incoming.phase, incoming.body_received
        self._busy = True
        out.gather()
        used = incoming.feed(data)
        out.release()
        self._busy = False
        if phase == IDLE or incoming.phase != phase or incoming.body_received < received:
            self._pace.since_s = self._service.now_s
            self._pace.window_bytes = 0
        if incoming.ended:
            if incoming.refusal is not None and not self._waiting:
                self._answer_refusal()
        elif incoming.stopped:
            self._held = bytes(data[used:])
            if not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
        if incoming.expects_continue:
            self._continue()

    def _deliver(self, request: Request) -> None:
        queue = self._queue
        if self._closing or (self._stopping and (queue or self._waiting)):
            # Not started, so it must not be answered: the client sees the close and asks another time.
            self._incoming.ended = True
            self._lingers = True
        elif self._waiting or self._out.paused or len(queue) >= self._limits.pipelined:
            self._waiting.append(request)
            self._incoming.stopped = True
        else:
            self._start(request)

    def _start(self, request: Request) -> None:
        try:
            answer = self._handler(request)
        except Exception as error:
            answer = self.failure(request, error)
        if type(answer) is Response and not self._queue:
            self._send(request, answer)
        else:
            exchange = HttpExchange(self, request)
            self._queue.append(exchange)
            exchange.wait_for(answer)

    def _continue(self) -> None:
        """Asks for the body when it is this request's turn, unless it is coming anyway."""
        incoming = self._incoming
        if incoming.phase != BODY or incoming.body_received or self._closing:
            incoming.expects_continue = False
        elif not self._queue and not self._waiting:
            incoming.expects_continue = False
            self._out.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer_refusal(self, lingers: bool = True) -> None:
        """The last answer of this connection, behind those of the requests before it."""
        refusal, self._incoming.refusal = self._incoming.refusal, None
        assert refusal is not None
        self._lingers = lingers
        exchange = HttpExchange(self, Request(_REFUSED, b"", self._peer))
        self._queue.append(exchange)
        exchange.settle(self._service.refusal_response(*refusal))

    def _room(self) -> None:
        """The socket takes output again."""
        outlet = self._queue[0].outlet if self._queue else None
        if outlet is not None:
            outlet.resumed()
        self._resume()

    def _resume(self) -> None:
        """Starts what waited, then reads on, as far as the bounds allow."""
        if self._busy or self._closing:
            return
        incoming = self._incoming
        if incoming.phase == IDLE:
            self._pace.since_s = self._service.now_s
        if incoming.expects_continue:
            self._continue()
        if not incoming.stopped or self._out.paused or len(self._queue) > self._limits.pipelined // 2:
            return
        self._start_waiting()
        if self._waiting or self._closing:
            return
        incoming.stopped = False
        if incoming.refusal is not None:
            self._answer_refusal()
        elif self._held:
            held, self._held = self._held, b""
            self._consume(memoryview(held))
        if self._reading_paused and not incoming.stopped and not self._closing:
            self._reading_paused = False
            self._transport.resume_reading()

    def _start_waiting(self) -> None:
        waiting, queue, out = self._waiting, self._queue, self._out
        self._busy = True
        out.gather()
        while waiting and not self._closing and not out.paused and len(queue) < self._limits.pipelined:
            self._start(waiting.popleft())
        out.release()
        self._busy = False

    # The end.

    def check(self, now_s: float) -> None:
        """Called by the sweep: ends what has taken too long."""
        incoming = self._incoming
        if self._out.stalled(now_s):
            self._transport.abort()
        elif self._closing:
            linger_s = STOP_LINGER_S if self._service.stopping else self._limits.linger_s
            if now_s - self._pace.since_s > linger_s and self._out.empty():
                self._transport.abort()
        elif not self._reading_paused and not incoming.ended and not (self._queue and incoming.phase == IDLE):
            late = self._pace.late(now_s, incoming.phase, incoming.body_received, not incoming.head_fed)
            if late is Late.IDLE:
                self._close()
            elif late is not None:
                incoming.refuse(408, late.value)
                self._answer_refusal()

    def stop(self) -> None:
        """Asks for an end: idle connections close now, streams are told, the rest closes after its answers."""
        self._stopping = True
        if self._closing:
            return
        if self._queue:
            outlet = self._queue[0].outlet
            if outlet is not None:
                outlet.stop()
        elif not self._waiting and self._incoming.phase == IDLE:
            self._close()

    def is_streaming(self) -> bool:
        return bool(self._queue) and type(self._queue[0].outlet) is ResponseStream

    def cut(self) -> None:
        """The grace of a stop is over."""
        for exchange in tuple(self._queue):
            exchange.cancel()
        self._transport.abort()
