"""What all connections of one listener share: the handler, the limits, the read buffer, the coarse clock.

Owns the counting of connections and the answers to failures. Knows nothing of bytes or of accepting. The clock is
moved by the listener's sweep, so that a request costs no look at the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, TypeAlias

from driftq.server.http.request import Request
from driftq.server.http.request_head import HeadCache
from driftq.server.http.request_parser import BodyBudget
from driftq.server.http.response import Handler, Response

if TYPE_CHECKING:
    from driftq.server.http.connection import Connection
    from driftq.server.http.limits import HttpLimits

OnBadRequest: TypeAlias = Callable[[int, str], Response]
OnError: TypeAlias = Callable[[Request, BaseException], Response]
# Told of every answer when its head is written (status, body bytes or None for a stream); gives further header lines.
OnAnswer: TypeAlias = Callable[[Request, int, int | None], bytes]

READ_BUFFER_BYTES: Final = 256 * 1024


def plain_bad_request(status: int, message: str) -> Response:
    return Response(status, message.encode() + b"\n", "text/plain; charset=utf-8")


def plain_error(request: Request, error: BaseException) -> Response:
    """The error itself goes to the loop's exception handler; the client learns nothing of it."""
    return Response(500, b"internal error\n", "text/plain; charset=utf-8")


class Service:
    """One per listener."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        on_bad_request: OnBadRequest = plain_bad_request,
        on_error: OnError = plain_error,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self._on_bad_request = on_bad_request
        self._on_error = on_error
        self.on_answer = on_answer
        # One buffer is enough: the loop asks for it, fills it and hands it over without doing anything in between.
        self.read_buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self.body_budget = BodyBudget(limits.bodies_total_bytes)
        self.known_heads = HeadCache()
        self.connections: set[Connection] = set()
        self.peers: dict[str, int] = {}
        self.stopping = False
        self.emptied: asyncio.Event = asyncio.Event()
        self.now_s = 0.0
        self.date_line = b""
        self.tick()

    def tick(self) -> None:
        self.now_s = self.loop.time()
        self.date_line = b"Date: %b\r\n" % formatdate(usegmt=True).encode()

    def admit(self, connection: Connection, peer: str, per_peer: bool) -> str | None:
        """Counts a new connection in; otherwise says why not."""
        if self.stopping:
            return "the server is stopping"
        if len(self.connections) >= self.limits.connections:
            return "too many connections"
        count = self.peers.get(peer, 0)
        if per_peer and count >= self.limits.connections_per_peer:
            return "too many connections from this address"
        self.peers[peer] = count + 1
        self.connections.add(connection)
        return None

    def leave(self, connection: Connection, peer: str) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        count = self.peers[peer] - 1
        if count:
            self.peers[peer] = count
        else:
            del self.peers[peer]
        if not self.connections:
            self.emptied.set()

    def error_response(self, request: Request, error: BaseException) -> Response:
        """The answer to a handler that raised. Raising here too still gives an answer."""
        self.report(f"the handler of {request.method} {request.raw_path!r} raised", error)
        try:
            return self._on_error(request, error)
        except Exception as second:
            self.report("on_error raised", second)
            return plain_error(request, error)

    def refusal_response(self, status: int, message: str) -> Response:
        """The answer to a request that is refused."""
        try:
            return self._on_bad_request(status, message)
        except Exception as error:
            self.report("on_bad_request raised", error)
            return plain_bad_request(status, message)

    def report(self, message: str, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": message, "exception": error})
