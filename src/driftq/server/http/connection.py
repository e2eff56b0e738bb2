"""One HTTP/1.1 connection: requests start as they arrive, responses leave in the order of the requests.

Theory of operation. The event loop calls a `Connection` (it is the asyncio protocol). Bytes flow like this:

    socket                                                                                       socket
      │ buffer_updated                                                                             ▲
      ▼                                                                                            │
    RequestParser ──request──> _on_request ──> _start ──> handler ──> HttpExchange ──> ResponseQueue ──> WriteBuffer
                                   │                                   (waits for the     (sends in order)
                                   └──> _unstarted (over a limit)       reply)

Requests are pipelined: several may be started before the first has its reply. Each started request without a response
is an `HttpExchange` in `_exchanges`, oldest first. A handler that returns a `Response` at once, with no older exchange,
skips the exchange: that is the fast path of most requests.

Backpressure. A request is parked in `_unstarted`, and parsing and reading pause, when

    1. `limits.pipelined` exchanges are pending,  2. the write buffer is paused,  3. a request is already parked,
    4. the turn of the loop has no budget left,  or  5. it is large, and too many large ones are started (`turns`).

`_resume` undoes it, when exchanges end (down to half the limit), the socket takes output again, or the connection gets
its turn: start the parked requests, parse the bytes in `_unparsed`, then read from the socket again.

States of a connection. Reading (`parser.phase`): IDLE between requests, HEAD, BODY. Ending:

    open ──stop()──> stopping: finish what is started ──last response──> closing ──> lost
      │                                                                    ▲
      ├─ request with `Connection: close`: its response is the last one ───┤
      ├─ refusal (400, 408, 413, 503, …): responses before it, then it ────┤
      └─ disconnect, write stall, abort() ─────────────────────────────────┴──> lost

`closing` after a refusal is a half close: the write side is shut, and input is read and discarded for up to
`limits.linger_s`, because closing a socket with unread input sends a reset that can destroy the response.

Timeouts are checked by the listener's sweep, which calls `check` about once a second: no timers per request. This
module does not know what requests mean.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from driftq.server.http.fair_queue import Flow
from driftq.server.http.limits import BODY, IDLE, LARGE_BODY_BYTES, TimeoutReason
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_parser import RequestParser
from driftq.server.http.response import Response
from driftq.server.http.response_queue import ResponseQueue
from driftq.server.http.service import HTTP, Service
from driftq.server.http.stream import ResponseStream
from driftq.server.http.tls import peer_certificate
from driftq.server.http.turns import COST_BYTES_SHIFT, TurnTaker
from driftq.server.http.write_buffer import WriteBuffer

# How long a stopping server waits for a peer to close after a half close.
STOP_LINGER_S: Final = 0.2
INPUT_BYTES_SHIFT: Final = 16  # receiving 64 KiB costs as much as a request
_REFUSED = RequestHead("", b"", {}, keep_alive=False)


class Connection(ResponseQueue):
    """The asyncio protocol of one connection."""

    __slots__ = ("_flow", "_handler", "_limits", "_output_waits", "_peer", "_share_key", "_starting", "_unparsed")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._handler = service.handler
        self._limits = service.limits
        self._peer = ""
        self._share_key = ""  # of its last request that waited; until then the peer
        self._flow: Flow[TurnTaker] | None = None  # its place in the queue of the turns; made when it is first needed
        self._output_waits = False  # a writer waits for a turn of the loop
        self._unparsed = b""  # received and not parsed, because the parser is paused
        self._starting = False  # requests are being started: `_resume` must not run inside of it

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        is_inet = isinstance(address, tuple)
        self._peer = self._share_key = str(address[0]) if is_inet else "unix"
        service = self._service
        self._parser = RequestParser(
            self._limits, service.body_budget, service.head_cache, self._peer, self._on_request,
            peer_certificate(transport.get_extra_info("peercert")), service.check_large,
        )  # fmt: skip
        self._output = WriteBuffer(service, self._transport, self._on_writable, self._wait_for_output_turn)
        reason = service.admit(self, self._peer, is_inet)
        if reason is not None:
            self._parser.refuse(503, reason)
            self._send_refusal(half_close=False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._turns.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing or self._parser.ended:
            return
        service, turns = self._service, self._turns
        service.route = HTTP
        monitor = service.monitor
        started_s = monitor.input_ended_s or monitor.begin_input()
        if not turns.armed:
            turns.started_s = started_s
            turns.arm()
        try:
            if turns.left > 0:
                self._consume(turns.read_buffer[:nbytes])
            else:
                self._postpone(turns.read_buffer[:nbytes])
        finally:
            monitor.input_ended_s = ended_s = monitor.clock()
            if ended_s - turns.started_s > turns.turn_s:
                turns.left = 0
            if ended_s - started_s >= monitor.stall_s:
                monitor.end_long_input(service.route, started_s, ended_s - started_s)

    def eof_received(self) -> bool:
        """The client has shut its write side. It still gets the responses of started requests; a stream ends."""
        if self._closing or not (self._exchanges or self._unstarted):
            return False
        if self.is_streaming():
            self._transport.abort()
            return False
        self._stopping = True
        for exchange in tuple(self._exchanges):
            exchange.request.mark_gone()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._service.leave(self, self._peer, self._tenant)
        self._parser.body.release()
        self._unparsed = b""
        self._output.release()
        self._abandon_all()
        if self._flow is not None:
            self._turns.leave(self._flow)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        monitor = self._service.monitor
        started_s = monitor.begin()
        try:
            self._output.resume()
        finally:
            monitor.end("output", started_s)

    # --- requests ---

    def _consume(self, data: memoryview) -> None:
        parser = self._parser
        output = self._output
        body = parser.body
        phase, received = parser.phase, body.received
        turns = self._turns
        if not turns.armed:
            turns.arm()
        turns.left -= len(data) >> INPUT_BYTES_SHIFT
        self._starting = True
        output.cork()
        used = parser.feed(data)
        output.uncork()
        self._starting = False
        if phase == IDLE or parser.phase != phase or body.received < received:
            self._timeouts.since_s = self._service.now_s
            self._timeouts.window_bytes = 0
        if parser.ended:
            if parser.refusal is not None and not self._unstarted:
                self._send_refusal()
        elif parser.paused:
            self._unparsed = bytes(data[used:])
            if not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
        if parser.paused:
            self._wait_for_turn()
        if body.expects_continue:
            self._send_continue()

    def _postpone(self, data: memoryview) -> None:
        """This turn of the loop has no budget left: parse the input in a later one."""
        self._unparsed += bytes(data)
        self._parser.paused = True
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wait_for_turn()

    def _on_request(self, request: Request) -> None:
        exchanges, turns = self._exchanges, self._turns
        size = len(request.body)
        if size > LARGE_BODY_BYTES:
            self._service.body_budget.hold(size)
        if self._closing or (self._stopping and (exchanges or self._unstarted)):
            # Not started, so it gets no response: the client sees the close and can safely retry.
            self._parser.ended = True
            self._half_close = True
            if size > LARGE_BODY_BYTES:
                self._service.body_budget.release(size)
        elif (
            self._unstarted
            or turns.left <= 0
            or self._output.paused
            or (exchanges and (self._pipeline.count >= turns.pipelined_max or len(exchanges) >= self._limits.pipelined))
            or (size > LARGE_BODY_BYTES and not turns.has_room())
        ):
            self._unstarted.append(request)
            self._parser.paused = True
        else:
            turns.left -= 1 + (size >> COST_BYTES_SHIFT)
            self._start(request)

    def _start(self, request: Request) -> None:
        if len(request.body) > LARGE_BODY_BYTES:
            self._turns.large_started(len(request.body))
        request.is_counted = bool(self._tenant)
        try:
            result = self._handler(request)
        except Exception as error:
            result = self.error_reply(request, error)
        if request.identity is not None:
            self._note_tenant(request)
        self._service.route = request.head.route  # the handler has set it
        if type(result) is Response and not self._exchanges:
            self._send(request, result)
            if len(request.body) > LARGE_BODY_BYTES:
                self._large_ended(request)
        else:
            self._new_exchange(request).wait_for(result)
        turns = self._turns
        if turns.is_shared and self.monitor.clock() - turns.started_s > turns.turn_s:
            turns.left = 0

    def _send_continue(self) -> None:
        """Send `100 Continue` once all earlier responses are out, unless the body is arriving anyway."""
        body = self._parser.body
        if self._parser.phase != BODY or body.received or self._closing:
            body.expects_continue = False
        elif not self._exchanges and not self._unstarted:
            body.expects_continue = False
            self._output.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send_refusal(self, half_close: bool = True) -> None:
        """Send the last response of this connection, after those of the requests before it."""
        refusal, self._parser.refusal = self._parser.refusal, None
        assert refusal is not None
        self._half_close = half_close
        exchange = self._new_exchange(Request(_REFUSED, b"", self._peer))
        exchange.set_reply(self._service.refusal_response(*refusal))

    def _on_writable(self) -> None:
        """The write buffer has room again."""
        self._resume_output()
        self._resume()

    def _resume(self) -> None:
        """Undo backpressure, as far as the limits allow: start parked requests, parse held-back bytes, read again."""
        if self._starting or self._closing:
            return
        parser = self._parser
        if parser.phase == IDLE:
            self._timeouts.since_s = self._service.now_s
        if parser.body.expects_continue:
            self._send_continue()
        if not parser.paused or not self._may_start():
            return
        if self._turns.left > 0:
            self._start_unstarted()
        if self._unstarted or self._turns.left <= 0:
            self._wait_for_turn()
            return
        parser.paused = False
        if parser.refusal is not None:
            self._send_refusal()
        elif self._unparsed:
            unparsed, self._unparsed = self._unparsed, b""
            self._consume(memoryview(unparsed))
        if self._reading_paused and not parser.paused and not self._closing:
            self._reading_paused = False
            self._transport.resume_reading()

    def _start_unstarted(self) -> None:
        unstarted, exchanges, output, turns = self._unstarted, self._exchanges, self._output, self._turns
        if not turns.armed:
            turns.arm()
        self._starting = True
        output.cork()
        while unstarted and turns.left > 0 and not self._closing and not output.paused:
            size = len(unstarted[0].body)
            if exchanges and (self._pipeline.count >= turns.pipelined_max or len(exchanges) >= self._limits.pipelined):
                break
            if size > LARGE_BODY_BYTES and not turns.has_room():
                break
            turns.left -= 1 + (size >> COST_BYTES_SHIFT)
            self._start(unstarted.popleft())
        output.uncork()
        self._starting = False

    # --- turns of the loop ---

    def _wait_for_turn(self) -> None:
        """Something is held back. Wait for a turn, unless `_resume` is called anyway when a limit allows more."""
        if self._closing or not self._may_start():
            return
        if self._flow is None:
            self._flow = Flow(self)
        if self._unstarted and len(self._unstarted[0].body) > LARGE_BODY_BYTES and not self._turns.has_room():
            self._turns.wait_for_room(self._flow)
        else:
            self._turns.wait(self._flow)

    def _may_start(self) -> bool:
        """Whether the limits of output and of pipelining allow another request. If not, `_resume` is called when a
        response is complete or the socket takes output."""
        if self._output.paused:
            return False
        pending = len(self._exchanges)
        return not pending or (
            pending <= self._limits.pipelined // 2 and self._pipeline.count < self._turns.pipelined_max
        )

    def take_turn(self) -> None:
        # The time in the queue is ours, not the peer's.
        self._timeouts.since_s = self._service.now_s
        self._timeouts.window_bytes = self._parser.body.received
        service, monitor = self._service, self.monitor
        service.route = HTTP
        started_s = monitor.begin()
        try:
            if self._output_waits:
                self._output_waits = False
                self._take_output_turn()
            self._resume()
        finally:
            monitor.end(service.route, started_s)

    def _wait_for_output_turn(self) -> None:
        """A writer has more to write, and this turn of the loop has no time for it."""
        self._output_waits = True
        if self._flow is None:
            self._flow = Flow(self)
        self._turns.wait(self._flow)

    def share_key(self) -> str:
        if self._tenant:
            return f"tenant {self._tenant}"
        if self._unstarted:
            self._share_key = self._service.share_key(self._unstarted[0])
        return self._share_key

    # --- timeouts and the end ---

    def check(self, now_s: float) -> None:
        """Called by the sweep: close or abort what has taken too long."""
        parser = self._parser
        if self._output.stalled(now_s):
            self._transport.abort()
        elif self._closing:
            linger_s = STOP_LINGER_S if self._service.stopping else self._limits.linger_s
            if now_s - self._timeouts.since_s > linger_s and self._output.is_empty():
                self._transport.abort()
        elif self._exchanges and self._exchanges[0].request.has_ended_credential():
            self._end_for_credential(self._exchanges[0])
        elif not self._reading_paused and not parser.ended and not (self._exchanges and parser.phase == IDLE):
            late = self._timeouts.exceeded(now_s, parser.phase, parser.body.received, parser.is_new())
            if late is TimeoutReason.IDLE:
                self._close()
            elif late is not None:
                parser.refuse(408, late.value)
                self._send_refusal()

    def stop(self) -> None:
        """Stop gracefully: close now if idle, ask a stream to end, otherwise close after the pending responses."""
        self._stopping = True
        if self._closing:
            return
        if self._exchanges:
            writer = self._exchanges[0].writer
            if writer is not None:
                writer.stop()
        elif not self._unstarted and self._parser.phase == IDLE:
            self._close()

    def is_streaming(self) -> bool:
        return bool(self._exchanges) and type(self._exchanges[0].writer) is ResponseStream

    def abort(self) -> None:
        """End at once: the grace period of a stop is over."""
        for exchange in tuple(self._exchanges):
            exchange.cancel()
        self._transport.abort()
