"""HTTP clients that generate load: one connection, requests written as bytes, replies matched in order. They use little
CPU, so that the server is what is measured."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools


class LoadClient(asyncio.Protocol):
    """Pipelines requests on one connection; each gets its reply's status and body."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[tuple[int, bytes]]] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> LoadClient:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        waiter = self._waiting.popleft()
        if not waiter.done():
            waiter.set_result((self._parser.get_status_code(), body))

    def send(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        waiter: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._transport.write(request)
        return waiter

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ClosedLoopClient(asyncio.Protocol):
    """Sends the next request when the reply to the last one arrives, until the time is over. It creates no futures or
    tasks, so that its own cost is small and the same for every server."""

    def __init__(self, make: Callable[[], bytes], until_s: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._make = make
        self._until_s = until_s
        self._sent_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        request = self._make()
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now_s = time.perf_counter()
        self.latencies.append(now_s - self._sent_s)
        status = self._parser.get_status_code()
        if status not in (200, 204):
            self.done.set_exception(AssertionError(f"the server answered {status}"))
        elif now_s < self._until_s:
            self._send()
        else:
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server hung up"))


async def closed_loop(
    port: int, make: Callable[[], bytes], connections: int, seconds: float
) -> tuple[float, list[float]]:
    """Requests per second over `connections` connections, and the latency of each request."""
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()
    connected = [
        await loop.create_connection(lambda: ClosedLoopClient(make, began_s + seconds), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for _, client in connected))
    wall_s = time.perf_counter() - began_s
    for transport, _ in connected:
        transport.close()
    latencies = [latency for _, client in connected for latency in client.latencies]
    return len(latencies) / wall_s, latencies


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
