"""A lean HTTP client for load: one connection, requests written as bytes, replies counted in order. Costs little, so
that what is measured is the server."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools


class WireClient(asyncio.Protocol):
    """Pipelines requests on one connection; each gets its reply's status and body."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[tuple[int, bytes]]] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> WireClient:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

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


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
