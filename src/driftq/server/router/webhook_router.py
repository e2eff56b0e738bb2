"""A router behind a URL: one POST with the message as JSON for each decision.

The body is `{"topic", "key", "value" or "value_base64", "envelope", "task"}`. The response is `200` with a decision
(`{"label", "target_topic", "partition_override", "meta"}`, or `null`), or `204` for none. Which addresses may be called
and how large a response may be is up to `server.outbound`; the time limit is the caller's.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.outbound.client import OutboundFailed, target_of
from driftq.settings.loader import SettingsError
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput, checked

if TYPE_CHECKING:
    from driftq.server.outbound.client import OutboundClient


class WebhookRouter:
    """Calls a router over HTTP."""

    kind = "webhook"
    inline = False

    def __init__(self, url: str, outbound: OutboundClient) -> None:
        try:
            self._target = target_of(url)
            outbound.check(self._target)
        except AddressRefused as refused:
            raise SettingsError(f"router.target: {refused}") from None
        self._outbound = outbound

    async def route(self, message: RouteInput) -> RouteDecision | None:
        status, body = await self._outbound.post(self._target, encoded(message), "driftq-router", keep_alive=True)
        if status == 204:
            return None
        if status != 200:
            raise OutboundFailed(f"the router answered {status}")
        try:
            return checked(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRouteDecision(f"not JSON: {error}") from None

    async def close(self) -> None:
        """The outbound client closes the connections."""


def encoded(message: RouteInput) -> bytes:
    fields: dict[str, Any] = {"topic": message.topic, "key": message.key, "envelope": message.envelope}
    try:
        fields["value"] = message.value.decode()
    except UnicodeDecodeError:
        fields["value_base64"] = base64.b64encode(message.value).decode()
    if message.task:
        fields["task"] = message.task
    return msgspec.json.encode(fields)
