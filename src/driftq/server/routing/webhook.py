"""A router somewhere else: one POST with the message as JSON for each decision.

Only https, or http on this machine; redirects are not followed; an answer has a size limit. A few connections are kept
open. The time limit is the caller's: a call that is given up takes its connection with it.

The body is `{"topic", "key", "value" or "value_base64", "envelope", "task"}`, the answer `200` with a decision
(`{"label", "target_topic", "partition_override", "meta"}`, or `null`), or `204` for none.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from httptools import HttpParserError, HttpResponseParser

from driftq.server.routing.protocol import BadDecision, Decision, Message, checked
from driftq.server.settings import SettingsError

ANSWER_BYTES_MAX = 64 << 10
HEAD_BYTES_MAX = 16 << 10
IDLE_MAX = 16
READ_BYTES = 64 << 10
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class WebhookFailed(Exception):
    """The other side did not give an answer that can be used."""


class _Stale(Exception):
    """A kept connection turned out to be closed before a byte of the answer came."""


class Target(NamedTuple):
    """Where to ask."""

    host: str
    port: int
    tls: bool
    head: bytes


def target_of(url: str) -> Target:
    """Checked; raises `SettingsError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"router.target {url!r}: {error}") from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"router.target must be an http(s) URL, not {url!r}")
    if parts.username is not None or parts.fragment:
        raise SettingsError("router.target: a URL with a user name or a fragment is not accepted")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise SettingsError(f"router.target: messages leave this machine only by https, not to {url}")
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: driftq-router\r\n"
        "Content-Type: application/json\r\nAccept: application/json\r\n"
    )
    return Target(host, port or (443 if tls else 80), tls, head.encode())


class WebhookRouter:
    """Asks over HTTP."""

    kind = "webhook"
    inline = False

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = target_of(url)
        self._tls = (tls or ssl.create_default_context()) if self._target.tls else None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def route(self, message: Message) -> Decision | None:
        status, body = await self._post(encoded(message))
        if status == 204:
            return None
        if status != 200:
            raise WebhookFailed(f"the router answered {status}")
        try:
            return checked(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadDecision(f"not JSON: {error}") from None

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        request = b"%bContent-Length: %d\r\n\r\n%b" % (self._target.head, len(body), body)
        while self._idle:
            try:
                return await self._exchange(*self._idle.pop(), request)
            except _Stale:
                continue
        target = self._target
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=self._tls, limit=READ_BYTES)
        try:
            return await self._exchange(reader, writer, request)
        except _Stale:
            raise WebhookFailed("the router closed the connection without an answer") from None

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, bytes]:
        answer = _Answer()
        keep = False
        try:
            writer.write(request)
            try:
                await writer.drain()
            except ConnectionError:
                raise _Stale from None
            await answer.read_from(reader)
            keep = answer.reusable and len(self._idle) < IDLE_MAX
            return answer.status, answer.body
        finally:
            if keep:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


class _Answer:
    """One response, as it comes in."""

    def __init__(self) -> None:
        self._parser: Any = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._done = False
        self.reusable = False
        self.status = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_body(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes <= ANSWER_BYTES_MAX:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._done = True
        self.status = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()  # the parser knows only now

    async def read_from(self, reader: asyncio.StreamReader) -> None:
        received = 0
        while not self._done:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                if not received:
                    raise _Stale
                raise WebhookFailed("the router's answer ended early")
            received += len(data)
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                raise WebhookFailed(f"the router does not speak HTTP: {error}") from None
            if self._size_bytes > ANSWER_BYTES_MAX or received > ANSWER_BYTES_MAX + HEAD_BYTES_MAX:
                raise WebhookFailed(f"the router's answer is longer than {ANSWER_BYTES_MAX} bytes")


def encoded(message: Message) -> bytes:
    shown: dict[str, Any] = {"topic": message.topic, "key": message.key, "envelope": message.envelope}
    try:
        shown["value"] = message.value.decode()
    except UnicodeDecodeError:
        shown["value_base64"] = base64.b64encode(message.value).decode()
    if message.task:
        shown["task"] = message.task
    return msgspec.json.encode(shown)
