"""What a router sees and what it may say. The one page an author of a router needs.

A router is anything that takes a `Message` and gives a `Decision`, or None for "leave it as it is". It may be a
function, a coroutine function, or an object (or class) with a method `route`. It decides; it cannot change the payload
and cannot stop a message: if it fails or is late the message goes its way unrouted. The two words themselves are in
`driftq.wire.routing`, because pipelines speak them too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from driftq.wire.routing import BadDecision as BadDecision
from driftq.wire.routing import Decision as Decision
from driftq.wire.routing import Message as Message
from driftq.wire.routing import checked as checked


class Router(Protocol):
    """The seam: rules, Python and webhooks are behind it. `inline` says that `route` answers at once, by itself."""

    kind: str
    inline: bool

    def route(self, message: Message) -> Decision | Awaitable[Decision | None] | None:
        """Raises whatever it likes: that counts as no decision."""

    async def close(self) -> None: ...
