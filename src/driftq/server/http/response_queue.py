"""The response side of a connection: responses leave in the order of their requests (HTTP/1.1 pipelining).

Theory of operation. `_exchanges` holds the started requests without a response, oldest first. Handlers finish in any
order; only the oldest exchange may write:

    exchanges:   [ 1: no reply yet ] [ 2: has its reply ] [ 3: no reply yet ]        2 waits for 1
    on_reply(1): [ 1 ] is written, then [ 2 ]; the loop ends at 3

What is written depends on the reply of the oldest exchange:

    Response        the whole response, in one buffer if it is small; the exchange leaves the queue at once
    Streaming       a `ResponseStream` and a task that produces into it; the exchange stays until the producer returns
    FileResponse    the head, then a `FilePump`; the exchange stays until the last byte of the range is in the buffer
    PieceResponse   the head, then a `PiecePump`, likewise
    LazyReply       made now, if the socket takes output and the turn of the loop has time, and replaced by the result

While an exchange has a `writer` (stream or pump) nothing after it is sent. `_end_exchange` then continues with the next
one. When no exchange and no parked request is left and the connection is stopping, the response carries
`Connection: close` and `_close` follows.

`Connection` is built on `ResponseQueue` and adds reading and starting requests. An exchange waits for its reply in
`http.exchange`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftq.server.http.exchange import HttpExchange, discard
from driftq.server.http.limits import LARGE_BODY_BYTES, Timeouts
from driftq.server.http.request import BadRequest, Request
from driftq.server.http.response import (
    FileResponse,
    LazyReply,
    PieceResponse,
    Response,
    Streaming,
    has_no_body,
    length_head,
)
from driftq.server.http.stream import FilePump, PiecePump, ResponseStream
from driftq.server.http.turns import OUTPUT_BYTES_SHIFT, VISIT_COST
from driftq.server.http.write_buffer import JOIN_BYTES, WriteBuffer

if TYPE_CHECKING:
    from driftq.server.http.request_parser import RequestParser
    from driftq.server.http.service import Service


NO_MEMORY = "too much output waits for clients that do not read it; read what you asked for, or try again later"
PARTS_MAX = 64  # with more buffers than this, joining them is cheaper than writing each


class ResponseQueue(asyncio.BufferedProtocol):
    """The exchanges of one connection, and the writing of their responses."""

    __slots__ = (
        "_advancing",
        "_closing",
        "_parser",
        "_pipeline",
        "_half_close",
        "_on_response",
        "_output",
        "_timeouts",
        "_exchanges",
        "_reading_paused",
        "_service",
        "_stopping",
        "_tenant",
        "_transport",
        "_turns",
        "_unstarted",
        "monitor",
    )

    _transport: asyncio.Transport
    _parser: RequestParser
    _output: WriteBuffer

    def __init__(self, service: Service) -> None:
        self._service = service
        self.monitor = service.monitor
        self._turns = service.turns
        self._pipeline = service.turns.pipeline("")  # of its tenant
        self._on_response = service.on_response
        self._exchanges: deque[HttpExchange] = deque()  # started requests without a response, oldest first
        self._unstarted: deque[Request] = deque()  # parsed requests that a limit holds back
        self._advancing = False  # the loop in `on_reply` is running; it also sends what becomes known inside of it
        self._stopping = False  # close after the responses of the requests that are started
        self._half_close = False  # close the write side first, because the peer may still be sending
        self._closing = False  # the last response is written, or the connection is lost
        self._tenant = ""  # of its last request that has an identity
        self._reading_paused = False  # the transport does not read from the socket
        self._timeouts = Timeouts(service.limits, service.now_s)

    def _resume(self) -> None:
        """Start requests that were held back, as far as the limits allow."""
        raise NotImplementedError

    def _note_tenant(self, request: Request) -> None:
        """The connection counts for the tenant of its last request, and takes turns with the others of that tenant. One
        that closes after this response does not count."""
        identity = request.identity
        if identity is not None and identity.tenant != self._tenant and request.keep_alive:
            self._service.change_tenant(self._tenant, identity.tenant)
            self._tenant = identity.tenant
            under_way = max(0, len(self._exchanges) - 1)
            self._pipeline.count -= under_way
            self._pipeline = self._turns.pipeline(identity.tenant)
            self._pipeline.count += under_way

    def _new_exchange(self, request: Request) -> HttpExchange:
        """The request is started and has no response yet."""
        exchange = HttpExchange(self, request)
        if self._exchanges:
            self._pipeline.count += 1
        self._exchanges.append(exchange)
        return exchange

    def error_reply(self, request: Request, error: BaseException) -> Response:
        """The response to a request whose handler raised."""
        if isinstance(error, BadRequest):
            return self._service.refusal_response(error.status, error.message)
        return self._service.error_response(request, error)

    def on_reply(self, exchange: HttpExchange) -> None:
        """An exchange has its reply. If it is the oldest, send it and every reply after it that is known."""
        exchanges = self._exchanges
        if not exchanges or exchanges[0] is not exchange or exchange.writer is not None:
            return
        self._advancing = True
        if len(exchanges) > 1:
            self._output.cork_until_next_turn()  # more replies are likely in the same turn of the loop
        while exchanges and not self._closing:
            exchange = exchanges[0]
            reply = exchange.reply
            if reply is None or exchange.writer is not None:
                break
            if type(reply) is Response:
                exchanges.popleft()
                if exchanges:
                    self._pipeline.count -= 1
                if len(exchange.request.body) > LARGE_BODY_BYTES:
                    self._large_ended(exchange.request)
                self._send(exchange.request, reply)
            elif isinstance(reply, Streaming):
                self._open_stream(exchange, reply)
            elif isinstance(reply, FileResponse):
                self._open_file(exchange, reply)
            elif isinstance(reply, PieceResponse):
                self._open_pieces(exchange, reply)
            elif isinstance(reply, LazyReply) and not self._make(exchange, reply):
                break
        self._advancing = False
        self._resume()

    def _make(self, exchange: HttpExchange, lazy: LazyReply) -> bool:
        """Make a lazy reply. False: not now, `on_reply` is called again."""
        if self._output.paused:
            return False
        if self._turns.left <= 0:
            self._output.wait_for_turn()
            return False
        size_max = self._service.output_budget.body_bytes_max()
        try:
            reply = lazy.make(size_max)
        except Exception as error:
            exchange.reply = self.error_reply(exchange.request, error)
            return True
        exchange.reply = reply
        if type(reply) is Response:
            size = reply.size_bytes()
            self._turns.charge(size)
            if size > size_max:
                discard(lazy)
                exchange.reply = self._service.refusal_response(503, NO_MEMORY)
        return True

    def _send(self, request: Request, response: Response) -> None:
        """Write a whole response. Its exchange, if it had one, has left the queue."""
        close = not request.keep_alive or (self._stopping and not self._exchanges and not self._unstarted)
        line = b"" if request.version == "1.1" and not close else connection_line(request, close)
        body = response.body
        date = self._service.date_line
        if self._on_response is not None:
            size = len(body) if type(body) is bytes else response.size_bytes()
            line += self._on_response(request, response.status, size)
        if type(body) is bytes and 0 < len(body) <= JOIN_BYTES and request.method != "HEAD":
            # Nearly every response: formatted in one step, written as one buffer.
            parts = (response.prefix, date, len(body), response.extra, line, body)
            self._output.write(b"%b%bContent-Length: %d\r\n%b%b\r\n%b" % parts)
        else:
            self._output.write(length_head(response, date, line))
            if body and request.method != "HEAD":
                if type(body) is not bytes and len(body) > PARTS_MAX:
                    body = b"".join(body)  # type: ignore[arg-type]
                for buffer in (body,) if type(body) is bytes else body:
                    self._output.write(buffer)  # type: ignore[arg-type]
        if close:
            self._close()

    def _open_stream(self, exchange: HttpExchange, streaming: Streaming) -> None:
        request = exchange.request
        stream = ResponseStream(
            self._output,
            version=request.version,
            head_only=request.method == "HEAD",
            keep_alive=request.keep_alive and not self._stopping,
            stopping=self._stopping,
            on_start=self._on_start(request),
        )
        exchange.produce(stream, streaming)

    def _on_start(self, request: Request) -> Callable[[int], bytes] | None:
        on_response = self._on_response
        return (lambda status: on_response(request, status, None)) if on_response is not None else None

    def _open_file(self, exchange: HttpExchange, response: FileResponse) -> None:
        request = exchange.request
        close = not request.keep_alive or (self._stopping and len(self._exchanges) == 1 and not self._unstarted)
        line = connection_line(request, close)
        if self._on_response is not None:
            line += self._on_response(request, response.status, response.size_bytes())
        self._output.write(length_head(response, self._service.date_line, line))
        pump = FilePump(self._output, response, lambda: self._end_exchange(exchange, close))
        exchange.writer = pump
        if request.method == "HEAD" or has_no_body(response.status):
            pump.skip()
        pump.resume()

    def _open_pieces(self, exchange: HttpExchange, response: PieceResponse) -> None:
        request = exchange.request
        chunked = request.version == "1.1"
        close = not chunked or not request.keep_alive or self._stopping
        line = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        line += b"Connection: close\r\n" if close else b""
        if self._on_response is not None:
            line += self._on_response(request, response.status, None)
        self._output.write(b"".join((response.prefix, self._service.date_line, response.extra, line, b"\r\n")))
        finished = partial(self._end_exchange, exchange, close)
        exchange.writer = pump = PiecePump(self._output, response.source, chunked, finished, self._service.report)
        pump.resume()

    def _resume_output(self) -> None:
        """The socket takes output again."""
        if self._exchanges:
            exchange = self._exchanges[0]
            if exchange.writer is not None:
                exchange.writer.resume()
            elif exchange.reply is not None:
                self.on_reply(exchange)  # it waited for the socket

    def _take_output_turn(self) -> None:
        """The loop has time to make more output."""
        exchange = self._exchanges[0] if self._exchanges else None
        if exchange is not None and not self._closing:
            self._service.route = exchange.request.head.route
            if type(exchange.writer) is ResponseStream:
                self._turns.left -= VISIT_COST  # its producer runs later
                exchange.writer.take_turn(VISIT_COST << OUTPUT_BYTES_SHIFT)
            else:
                self._resume_output()

    def on_stream_end(self, exchange: HttpExchange, error: BaseException | None) -> None:
        """The producer of a stream has returned or failed; cancellation is a failure."""
        stream = exchange.writer
        assert isinstance(stream, ResponseStream)
        if not stream.started:
            exchange.writer = None
            exchange.set_error(error or RuntimeError("a producer ended without starting its stream"))
        elif error is not None:
            # The head is sent: aborting the connection is the only way to report that the rest is missing.
            if not isinstance(error, asyncio.CancelledError):
                self._service.report("a producer of a stream raised", error)
            self._transport.abort()
        else:
            stream.finish()
            self._end_exchange(exchange, not stream.reusable)

    def _end_exchange(self, exchange: HttpExchange, close: bool) -> None:
        """The response of a stream or a file has been written."""
        exchanges = self._exchanges
        if self._closing or not exchanges or exchanges[0] is not exchange:
            return
        exchanges.popleft()
        if exchanges:
            self._pipeline.count -= 1
        if len(exchange.request.body) > LARGE_BODY_BYTES:
            self._large_ended(exchange.request)
        if close or (self._stopping and not exchanges and not self._unstarted):
            self._close()
        elif not self._advancing:
            if exchanges:
                self.on_reply(exchanges[0])
            else:
                self._resume()

    def _end_for_credential(self, exchange: HttpExchange) -> None:
        """The credential was revoked or has expired. A stream ends like at a stop of the server. What is still there at
        the next sweep is aborted: a stream whose client does not read, a call that waits, a long download."""
        if exchange.ends_soon:
            self._transport.abort()
            return
        exchange.ends_soon = True
        if type(exchange.writer) is ResponseStream:
            exchange.writer.stop()

    def _close(self) -> None:
        """No further response. Input that still arrives is discarded, see `HttpLimits.linger_s`."""
        self._closing = True
        self._parser.ended = True
        self._timeouts.since_s = self._service.now_s
        if self._half_close and self._reading_paused:
            self._transport.resume_reading()
        self._output.close(half_close=self._half_close)
        self._abandon_all()

    def _abandon_all(self) -> None:
        """Requests that are not started are dropped, and responses of those that are started are not sent."""
        unstarted = tuple(self._unstarted)
        self._unstarted.clear()
        for request in unstarted:
            if len(request.body) > LARGE_BODY_BYTES:
                self._service.body_budget.release(len(request.body))
        exchanges = tuple(self._exchanges)
        self._exchanges.clear()
        self._pipeline.count -= max(0, len(exchanges) - 1)
        for exchange in exchanges:
            if len(exchange.request.body) > LARGE_BODY_BYTES:
                self._large_ended(exchange.request)
            exchange.abandon()

    def _large_ended(self, request: Request) -> None:
        """A large request has its response, or needs none any more."""
        size = len(request.body)
        self._service.body_budget.release(size)
        self._turns.large_ended(size)


def connection_line(request: Request, close: bool) -> bytes:
    if close:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if request.version == "1.0" else b""
