"""Accepts connections, checks their timeouts, and stops gracefully.

Owns the listening sockets with their TCP options, the single timer that checks all timeouts (the sweep), and the order
of a graceful stop. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl as tls
from typing import TYPE_CHECKING

from driftq.server.http.connection import Connection
from driftq.server.http.limits import HttpLimits
from driftq.server.http.service import (
    CheckHead,
    OnBadRequest,
    OnError,
    OnResponse,
    Service,
    plain_bad_request,
    plain_error,
)

if TYPE_CHECKING:
    from driftq.engine.loop_monitor import LoopMonitor
    from driftq.server.http.response import Handler


class CannotListen(Exception):
    """The address cannot be listened on."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        super().__init__(f"cannot listen on {address}: {_hint(host, port, error)}")
        self.address = address


def _hint(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            "another program uses this port, perhaps another broker. Stop it, or choose another port with "
            f"--listen {host}:PORT (port 0 picks a free one)."
        )
    if error.errno == errno.EACCES:
        return "no permission. Ports below 1024 need privileges: choose a higher one with --listen."
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address. Choose one of its own with --listen."
    return error.strerror or str(error)


class Listener:
    """A running HTTP server. Made by `serve`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._servers: list[asyncio.AbstractServer] = []
        self._listening: list[socket.socket] = []  # of TCP; each server has a duplicate of its own
        self._interval_s = service.limits.sweep_interval_s()
        self._timer: asyncio.TimerHandle | None = None
        self._timed_sweep = service.monitor.timed("timeouts", self.sweep)
        self.addresses: list[str] = []  # "127.0.0.1:8080", "[::1]:8080", or the path of a Unix socket

    @property
    def connection_count(self) -> int:
        return len(self._service.connections)

    @property
    def stream_count(self) -> int:
        return sum(connection.is_streaming() for connection in self._service.connections)

    @property
    def port(self) -> int:
        """The TCP port that was bound; needed if the requested port was 0."""
        return int(self.addresses[0].rpartition(":")[2])

    async def open_inet(self, host: str, port: int, ssl: tls.SSLContext | None) -> None:
        try:
            await self._open_inet(host, port, ssl)
        except OSError as error:
            raise CannotListen(host, port, error) from error

    async def _open_inet(self, host: str, port: int, ssl: tls.SSLContext | None) -> None:
        service = self._service
        loop = service.loop
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listening = socket.socket(family, kind, protocol)
            try:
                prepare(listening, service.limits)
                if port == 0 and self.addresses:
                    address = (address[0], self.port, *address[2:])
                listening.bind(address)
                self._servers.append(await self._serve_socket(listening, ssl))
            except BaseException:
                listening.close()
                raise
            self._listening.append(listening)
            bound_host, bound_port = listening.getsockname()[:2]
            self.addresses.append(f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}")

    async def _serve_socket(self, listening: socket.socket, ssl: tls.SSLContext | None) -> asyncio.AbstractServer:
        """Accept connections of a duplicate of this socket: closing the server leaves the socket as it is."""
        service = self._service
        duplicate = listening.dup()
        try:
            return await service.loop.create_server(
                lambda: Connection(service),
                sock=duplicate,
                ssl=ssl,
                backlog=service.limits.backlog,
                ssl_handshake_timeout=service.limits.header_deadline_s if ssl is not None else None,
            )
        except BaseException:
            duplicate.close()
            raise

    async def use_tls(self, context: tls.SSLContext) -> None:
        """Serve new connections with another context. Open ones keep theirs, and none that arrives is refused: the
        sockets listen all the time."""
        old = self._servers[: len(self._listening)]
        self._servers[: len(old)] = [await self._serve_socket(listening, context) for listening in self._listening]
        for server in old:
            server.close()

    async def open_unix(self, path: str) -> None:
        service = self._service
        server = await service.loop.create_unix_server(
            lambda: Connection(service), path, backlog=service.limits.backlog
        )
        self._servers.append(server)
        self.addresses.append(path)

    def check_heads(self, check: CheckHead) -> None:
        """From now on, ask before the body of a large request is read."""
        self._service.check_head = check

    def connections_of(self, tenant: str) -> int:
        return self._service.tenants.get(tenant, 0)

    def sweep(self) -> None:
        """Check the timeouts of every connection. A timeout may be late by the interval between two sweeps."""
        service = self._service
        self._timer = service.loop.call_later(self._interval_s, self._timed_sweep)
        service.tick()
        now_s = service.now_s
        for connection in tuple(service.connections):
            connection.check(now_s)

    async def stop(self, grace_s: float = 2.0) -> bool:
        """Stop accepting, let requests finish and streams end, abort the rest. True: nothing had to be aborted."""
        service = self._service
        service.stopping = True
        for server in self._servers:
            server.close()
        for listening in self._listening:
            listening.close()
        for connection in tuple(service.connections):
            connection.stop()
        clean = await self._wait_for_no_connections(grace_s)
        for connection in tuple(service.connections):
            connection.abort()
        await self._wait_for_no_connections(1.0)
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            with contextlib.suppress(TimeoutError):  # do not wait for a TLS handshake in progress
                await asyncio.wait_for(server.wait_closed(), 0.5)
        return clean

    async def _wait_for_no_connections(self, timeout_s: float) -> bool:
        if not self._service.connections:
            return True
        self._service.no_connections.clear()
        try:
            await asyncio.wait_for(self._service.no_connections.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


def prepare(listening: socket.socket, limits: HttpLimits) -> None:
    """Set the options of a listening socket. Accepted sockets inherit them, so a connection needs no calls for it."""
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if listening.family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    options = {
        "TCP_KEEPIDLE": limits.tcp_keepalive_idle_s,
        "TCP_KEEPINTVL": limits.tcp_keepalive_interval_s,
        "TCP_KEEPCNT": limits.tcp_keepalive_count,
        "TCP_USER_TIMEOUT": max(1, int(limits.write_stall_s * 1000)),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Not every platform has all of them.
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def serve(
    handler: Handler,
    host: str | None = "127.0.0.1",
    port: int = 0,
    limits: HttpLimits | None = None,
    ssl: tls.SSLContext | None = None,
    unix: str | None = None,
    on_bad_request: OnBadRequest = plain_bad_request,
    on_error: OnError = plain_error,
    on_response: OnResponse | None = None,
    monitor: LoopMonitor | None = None,
) -> Listener:
    """Listen on `host:port` (unless host is None) and on the Unix socket `unix`. Port 0 picks a free one."""
    if ssl is not None and ssl.minimum_version < tls.TLSVersion.TLSv1_2:
        raise ValueError("TLS below 1.2 is not supported: set minimum_version of the SSLContext")
    if host is None and unix is None:
        raise ValueError("nothing to listen on")
    service = Service(
        handler, limits or HttpLimits(), asyncio.get_running_loop(), on_bad_request, on_error, on_response, monitor
    )
    listener = Listener(service)
    try:
        if host is not None:
            await listener.open_inet(host, port, ssl)
        if unix is not None:
            await listener.open_unix(unix)
    except BaseException:
        await listener.stop(0)
        raise
    listener.sweep()
    return listener
