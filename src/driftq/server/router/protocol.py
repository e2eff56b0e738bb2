"""The protocol of a router.

A router takes a `RouteInput` and returns a `RouteDecision`, or None to leave the message as it is. It may be a
function, a coroutine function, or an object (or class) with a method `route`. It cannot change the payload and cannot
stop a message: if it fails or takes too long, the message is produced unrouted. Both types are in
`driftq.wire.router`, because pipelines use them too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from driftq.wire.router import RouteDecision, RouteInput


class Router(Protocol):
    """Implemented by rules, Python and webhook routers. If `inline`, `route` returns its decision at once."""

    kind: str
    inline: bool

    def route(self, message: RouteInput) -> RouteDecision | Awaitable[RouteDecision | None] | None:
        """The decision. An exception counts as none."""

    async def close(self) -> None: ...
