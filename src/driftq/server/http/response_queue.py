"""The writing half of a connection: answers leave in the order of their requests, whole, streamed or from a file.

Owns the order, what an answer's head says about the connection, and the close behind the last answer. Reading and
starting requests is `Connection`'s, which is built on this; waiting for an answer is `HttpExchange`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.server.http.limits import Timeouts
from driftq.server.http.request import BadRequest, Request
from driftq.server.http.response import FileResponse, Response, Streaming, has_no_body, length_head
from driftq.server.http.stream import FilePump, ResponseStream
from driftq.server.http.write_buffer import JOIN_BYTES, WriteBuffer

if TYPE_CHECKING:
    from driftq.server.http.exchange import HttpExchange
    from driftq.server.http.request_parser import RequestParser
    from driftq.server.http.service import Service

PARTS_MAX = 64  # beyond this many buffers joining them is cheaper than writing them apart


class ResponseQueue(asyncio.BufferedProtocol):
    """What a connection knows of its answers."""

    __slots__ = (
        "_advancing",
        "_closing",
        "_incoming",
        "_lingers",
        "_on_answer",
        "_out",
        "_pace",
        "_queue",
        "_reading_paused",
        "_service",
        "_stopping",
        "_transport",
        "_waiting",
    )

    _transport: asyncio.Transport
    _incoming: RequestParser
    _out: WriteBuffer

    def __init__(self, service: Service) -> None:
        self._service = service
        self._on_answer = service.on_answer
        self._queue: deque[HttpExchange] = deque()  # started and unanswered, oldest first
        self._waiting: deque[Request] = deque()  # parsed and not started: the bound is reached or the socket is full
        self._advancing = False  # answers are being written: the loop in `settled` goes on by itself
        self._stopping = False  # close once what is started has been answered
        self._lingers = False  # close by halves, because the peer may still be sending
        self._closing = False
        self._reading_paused = False
        self._pace = Timeouts(service.limits, service.now_s)

    def _resume(self) -> None:
        """Start what waited, as far as the bounds allow."""
        raise NotImplementedError

    def failure(self, request: Request, error: BaseException) -> Response:
        """The answer when a handler did not give one."""
        if isinstance(error, BadRequest):
            return self._service.refusal_response(error.status, error.message)
        return self._service.error_response(request, error)

    def settled(self, exchange: HttpExchange) -> None:
        """An answer has become known. It leaves now if it is the oldest, and with it those that waited behind it."""
        queue = self._queue
        if not queue or queue[0] is not exchange or exchange.outlet is not None:
            return
        self._advancing = True
        if len(queue) > 1:
            self._out.gather_soon()  # more answers of this pipeline are likely to come in the same turn of the loop
        while queue and not self._closing:
            exchange = queue[0]
            reply = exchange.reply
            if reply is None or exchange.outlet is not None:
                break
            if type(reply) is Response:
                queue.popleft()
                self._send(exchange.request, reply)
            elif isinstance(reply, Streaming):
                self._open_stream(exchange, reply)
            elif isinstance(reply, FileResponse):
                self._open_file(exchange, reply)
        self._advancing = False
        self._resume()

    def _send(self, request: Request, response: Response) -> None:
        """Writes a whole response whose turn it is; its exchange, if it had one, has left the queue."""
        close = not request.keep_alive or (self._stopping and not self._queue and not self._waiting)
        line = b"" if request.version == "1.1" and not close else connection_line(request, close)
        body = response.body
        date = self._service.date_line
        if self._on_answer is not None:
            size = len(body) if type(body) is bytes else response.size_bytes()
            line += self._on_answer(request, response.status, size)
        if type(body) is bytes and 0 < len(body) <= JOIN_BYTES and request.method != "HEAD":
            # What nearly every answer is: one formatting, one buffer.
            parts = (response.prefix, date, len(body), response.extra, line, body)
            self._out.write(b"%b%bContent-Length: %d\r\n%b%b\r\n%b" % parts)
        else:
            self._out.write(length_head(response, date, line))
            if body and request.method != "HEAD":
                if type(body) is not bytes and len(body) > PARTS_MAX:
                    body = b"".join(body)  # type: ignore[arg-type]
                for buffer in (body,) if type(body) is bytes else body:
                    self._out.write(buffer)  # type: ignore[arg-type]
        if close:
            self._close()

    def _open_stream(self, exchange: HttpExchange, streaming: Streaming) -> None:
        request = exchange.request
        stream = ResponseStream(
            self._out,
            version=request.version,
            head_only=request.method == "HEAD",
            keep_alive=request.keep_alive and not self._stopping,
            stopping=self._stopping,
            on_start=self._on_start(request),
        )
        exchange.produce(stream, streaming)

    def _on_start(self, request: Request) -> Callable[[int], bytes] | None:
        on_answer = self._on_answer
        return (lambda status: on_answer(request, status, None)) if on_answer is not None else None

    def _open_file(self, exchange: HttpExchange, response: FileResponse) -> None:
        request = exchange.request
        close = not request.keep_alive or (self._stopping and len(self._queue) == 1 and not self._waiting)
        line = connection_line(request, close)
        if self._on_answer is not None:
            line += self._on_answer(request, response.status, response.size_bytes())
        self._out.write(length_head(response, self._service.date_line, line))
        pump = FilePump(self._out, response, lambda: self._over(exchange, close))
        exchange.outlet = pump
        if request.method == "HEAD" or has_no_body(response.status):
            pump.skip()
        pump.resumed()

    def stream_over(self, exchange: HttpExchange, error: BaseException | None) -> None:
        """A producer has ended: well, or with an error (cancellation is one)."""
        stream = exchange.outlet
        assert isinstance(stream, ResponseStream)
        if not stream.started:
            exchange.outlet = None
            exchange.settle_error(error or RuntimeError("a producer ended without starting its stream"))
        elif error is not None:
            # The head is out: cutting the connection is the only way to say that the rest is missing.
            if not isinstance(error, asyncio.CancelledError):
                self._service.report("a producer raised", error)
            self._transport.abort()
        else:
            stream.finish()
            self._over(exchange, not stream.reusable)

    def _over(self, exchange: HttpExchange, close: bool) -> None:
        """An answer that took time has been written."""
        queue = self._queue
        if self._closing or not queue or queue[0] is not exchange:
            return
        queue.popleft()
        if close or (self._stopping and not queue and not self._waiting):
            self._close()
        elif not self._advancing:
            if queue:
                self.settled(queue[0])
            else:
                self._resume()

    def _close(self) -> None:
        """Nothing more is answered here. Input that is still coming is thrown away, see `Limits.linger_s`."""
        self._closing = True
        self._incoming.ended = True
        self._pace.since_s = self._service.now_s
        if self._lingers and self._reading_paused:
            self._transport.resume_reading()
        self._out.finish(half_close=self._lingers)
        queue = tuple(self._queue)
        self._queue.clear()
        for exchange in queue:
            exchange.abandon()


def connection_line(request: Request, close: bool) -> bytes:
    if close:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if request.version == "1.0" else b""
