"""The feed of events: what changes, as server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.server.handlers.codec import error_response
from driftq.server.http import Answer, Request, Streaming

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context


class EventsHandlers:
    """The handler of `/v1/events`."""

    def __init__(self, context: Context) -> None:
        self._feed = context.observers.events

    def follow(self, request: Request) -> Answer:
        if self._feed.is_full:
            headers = [("Retry-After", "10")]
            message = "too many readers follow the events; read the lists instead"
            return error_response(429, "RESOURCE_EXHAUSTED", message, {"retry_after_ms": 10_000}, headers)
        return Streaming(lambda stream: self._feed.follow(stream, request.identity))
