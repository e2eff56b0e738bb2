"""A router somewhere else: one POST with the message as JSON for each decision.

Where it may be and what its answer may be is for `server.outbound`. A few connections are kept open. The time limit is
the caller's: a call that is given up takes its connection with it.

The body is `{"topic", "key", "value" or "value_base64", "envelope", "task"}`, the answer `200` with a decision
(`{"label", "target_topic", "partition_override", "meta"}`, or `null`), or `204` for none.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any

import msgspec

from driftq.server.outbound import Answer, Connection, Outbound, OutboundFailed, Refused, Stale, target_of
from driftq.settings.loader import SettingsError
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput, checked

IDLE_MAX = 16


class WebhookRouter:
    """Asks over HTTP."""

    kind = "webhook"
    inline = False

    def __init__(self, url: str, outbound: Outbound) -> None:
        try:
            self._target = target_of(url)
            outbound.check(self._target)
        except Refused as refused:
            raise SettingsError(f"router.target: {refused}") from None
        self._outbound = outbound
        self._head = self._target.head("driftq-router")
        self._tls = ssl.create_default_context() if self._target.tls else None
        self._idle: list[Connection] = []

    async def route(self, message: RouteInput) -> RouteDecision | None:
        status, body = await self._post(encoded(message))
        if status == 204:
            return None
        if status != 200:
            raise OutboundFailed(f"the router answered {status}")
        try:
            return checked(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRouteDecision(f"not JSON: {error}") from None

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        request = b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        while self._idle:
            try:
                return await self._exchange(*self._idle.pop(), request)
            except Stale:
                continue
        reader, writer = await self._outbound.connect(self._target, self._tls)
        try:
            return await self._exchange(reader, writer, request)
        except Stale:
            raise OutboundFailed("the router closed the connection without an answer") from None

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, bytes]:
        answer = Answer()
        keep = False
        try:
            writer.write(request)
            try:
                await writer.drain()
            except ConnectionError:
                raise Stale from None
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


def encoded(message: RouteInput) -> bytes:
    shown: dict[str, Any] = {"topic": message.topic, "key": message.key, "envelope": message.envelope}
    try:
        shown["value"] = message.value.decode()
    except UnicodeDecodeError:
        shown["value_base64"] = base64.b64encode(message.value).decode()
    if message.task:
        shown["task"] = message.task
    return msgspec.json.encode(shown)
