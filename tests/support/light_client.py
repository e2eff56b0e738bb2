"""A client that sends one small produce at a time, to see what others cost it.

Its waiting time is measured as the CPU time that the server's threads spend between a request and its response. Unlike
the time on the clock, it does not depend on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.server import Server

QUANTILE = 0.95


class Waits(NamedTuple):
    """How long the responses took, in CPU milliseconds of the server."""

    quantile_ms: float
    longest_ms: float
    count: int


def raw_request(method: str, path: str, body: object = None) -> bytes:
    """The bytes of a request. Anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connect(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def cpu_ms(server: Server) -> float:
    """CPU time of all threads of the server. One that ends while this looks does not count."""
    total_ns = 0
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e6


def resident_mib(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmRSS"))


class LightClient:
    """Produces to `topic`, on one connection."""

    def __init__(self, server: Server, topic: str) -> None:
        self._server = server
        self._sock = connect(server)
        self._request = raw_request("POST", "/v1/produce", {"topic": topic, "value": "x" * 100})

    def close(self) -> None:
        self._sock.close()

    def waits(self, count: int, has_more: Callable[[], bool] = lambda: False) -> Waits:
        """Send `count` requests, and further ones while `has_more` returns true. Each must succeed."""
        waits_ms: list[float] = []
        while len(waits_ms) < count or has_more():
            before_ms = cpu_ms(self._server)
            self._sock.sendall(self._request)
            reply = self._sock.recv(65_536)
            waits_ms.append(cpu_ms(self._server) - before_ms)
            assert reply.startswith(b"HTTP/1.1 200 "), reply
        waits_ms.sort()
        return Waits(waits_ms[int(len(waits_ms) * QUANTILE)], waits_ms[-1], len(waits_ms))
