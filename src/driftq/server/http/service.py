"""What all connections of one listener share: the handler, the limits, the turns, the coarse clock.

Counts connections and builds the responses to errors. The listener's sweep moves the clock, so that a request does not
have to read the time. Knows nothing of bytes or of accepting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, TypeAlias

from driftq.engine.loop_monitor import LoopMonitor
from driftq.server.http.output_budget import OutputBudget
from driftq.server.http.request import Request, RequestHead
from driftq.server.http.request_body import BodyBudget
from driftq.server.http.request_head import HeadCache, RequestRefused
from driftq.server.http.response import Handler, Response
from driftq.server.http.turns import Turns

if TYPE_CHECKING:
    from driftq.server.http.connection import Connection
    from driftq.server.http.limits import HttpLimits
    from driftq.server.http.tls import PeerCertificate

OnBadRequest: TypeAlias = Callable[[int, str], Response]
OnError: TypeAlias = Callable[[Request, BaseException], Response]
# Called with every response when its head is written (status, body bytes or None for a stream); returns more header
# lines.
OnResponse: TypeAlias = Callable[[Request, int, int | None], bytes]

# Called with the head and the peer of a large request before its body is read; returns the refusal, if there is one.
CheckHead: TypeAlias = Callable[[RequestHead, str, "PeerCertificate | None"], tuple[int, str] | None]

HTTP: Final = "http"  # the cause of a turn in which no request was started


def plain_bad_request(status: int, message: str) -> Response:
    return Response(status, message.encode() + b"\n", "text/plain; charset=utf-8")


def plain_error(request: Request, error: BaseException) -> Response:
    """The error goes to the exception handler of the loop; the client does not see it."""
    return Response(500, b"internal error\n", "text/plain; charset=utf-8")


def peer_share(request: Request) -> str:
    """Whose share of the loop a request uses: its peer's. All connections of one address are one share."""
    return request.peer


class Service:
    """The shared state of the connections of one listener."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        on_bad_request: OnBadRequest = plain_bad_request,
        on_error: OnError = plain_error,
        on_response: OnResponse | None = None,
        monitor: LoopMonitor | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self._on_bad_request = on_bad_request
        self._on_error = on_error
        self.on_response = on_response
        self.monitor = monitor or LoopMonitor()
        self.route = HTTP  # of the last request that was started in this turn of the loop
        self.turns = Turns(loop.call_soon, limits.started_bytes, self.monitor.timed, self.monitor.clock)
        self.share_key: Callable[[Request], str] = peer_share
        self.check_head: CheckHead | None = None
        self.output_budget = OutputBudget(limits.output_bytes)
        self.body_budget = BodyBudget(limits.bodies_total_bytes)
        self.head_cache = HeadCache()
        self.connections: set[Connection] = set()
        self.peers: dict[str, int] = {}  # connections by address
        self.tenants: dict[str, int] = {}  # connections by tenant, once a request has shown it
        self.stopping = False
        self.no_connections: asyncio.Event = asyncio.Event()
        self.now_s = 0.0  # the time of the loop at the last sweep
        self.date_line = b""  # the Date header, of the same moment
        self.tick()

    def tick(self) -> None:
        self.now_s = self.loop.time()
        self.date_line = b"Date: %b\r\n" % formatdate(usegmt=True).encode()

    def admit(self, connection: Connection, peer: str, per_peer: bool) -> str | None:
        """Count a new connection. Returns the reason if it has to be refused."""
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

    def leave(self, connection: Connection, peer: str, tenant: str) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.change_tenant(tenant, "")
        count = self.peers[peer] - 1
        if count:
            self.peers[peer] = count
        else:
            del self.peers[peer]
        if not self.connections:
            self.no_connections.set()

    def change_tenant(self, before: str, after: str) -> None:
        """A connection works for another tenant, or for none, from now on."""
        if before:
            self.tenants[before] -= 1
            if not self.tenants[before]:
                del self.tenants[before]
        if after:
            self.tenants[after] = self.tenants.get(after, 0) + 1
        self.turns.share_turns(self.tenants)

    def check_large(self, head: RequestHead, peer: str, certificate: PeerCertificate | None) -> None:
        """Before a large body is read: may its sender send it? Raises `RequestRefused`."""
        refused = self.check_head(head, peer, certificate) if self.check_head is not None else None
        if refused is not None:
            raise RequestRefused(*refused)

    def error_response(self, request: Request, error: BaseException) -> Response:
        """The response if a handler raised; there is one even if `on_error` raises too."""
        self.report(f"the handler of {request.method} {request.raw_path!r} raised", error)
        try:
            return self._on_error(request, error)
        except Exception as second:
            self.report("on_error raised", second)
            return plain_error(request, error)

    def refusal_response(self, status: int, message: str) -> Response:
        """The response to a refused request."""
        try:
            return self._on_bad_request(status, message)
        except Exception as error:
            self.report("on_bad_request raised", error)
            return plain_bad_request(status, message)

    def report(self, message: str, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": message, "exception": error})
