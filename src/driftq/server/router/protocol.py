"""The protocol of a router.

A router is anything that takes a `RouteInput` and gives a `RouteDecision`, or None for "leave it as it is". It may be a
function, a coroutine function, or an object (or class) with a method `route`. It decides; it cannot change the payload
and cannot stop a message: if it fails or is late the message goes its way unrouted. Both types are
in `driftq.wire.router`, because pipelines use them too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from driftq.wire.router import RouteDecision, RouteInput


class Router(Protocol):
    """The seam: rules, Python and webhooks are behind it. `inline` says that `route` answers at once, by itself."""

    kind: str
    inline: bool

    def route(self, message: RouteInput) -> RouteDecision | Awaitable[RouteDecision | None] | None:
        """Raises whatever it likes: that counts as no decision."""

    async def close(self) -> None: ...
