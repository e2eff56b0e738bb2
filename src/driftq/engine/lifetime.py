"""The life of an engine: whether it still runs, how it ended, and which calls its end must answer.

    running ──close()──▶ closed      `stopped` is done
       └─────fail()────▶ failed      `stopped` raises; every open call raises `EngineStopped`

It ends once. It knows nothing of what the engine does; callers that only catch `EngineStopped` import it from here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.core.model.replies import Reply


class EngineStopped(Exception):
    """The engine was closed, or a disk failure stopped it: the outcome of unanswered commands is unknown."""


class Lifetime:
    """The life of one engine."""

    __slots__ = ("_loop", "_open_calls", "is_over", "stopped")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self._loop.create_future()  # done when closed, raises when failed
        self.is_over = False  # cached `stopped.done()`: checked on every submit
        self._open_calls: set[asyncio.Future[Reply]] = set()  # what a failure must end

    def new_call(self) -> asyncio.Future[Reply]:
        """A future for a reply. `watch` it if it is not answered at once."""
        return self._loop.create_future()

    def watch(self, call: asyncio.Future[Reply]) -> None:
        """End this call if the engine fails before it is answered."""
        self._open_calls.add(call)
        call.add_done_callback(self._open_calls.discard)

    def close(self) -> bool:
        """Everything was answered. False if the engine had failed before."""
        self.is_over = True
        if not self.stopped.done():
            self.stopped.set_result(None)
        return self.stopped.exception() is None

    def fail(self, error: BaseException) -> None:
        """No reply that still waits may leave: end the open calls."""
        self.is_over = True
        for call in list(self._open_calls):
            if not call.done():  # a cancelled one leaves the set a little later
                call.set_exception(EngineStopped(str(error)))
        stopped = EngineStopped(str(error))
        stopped.__cause__ = error
        self.stopped.set_exception(stopped)
        self.stopped.exception()  # mark it as retrieved: asyncio must not log it if nothing awaits it

    def raise_stopped(self) -> None:
        raise EngineStopped("the engine has stopped") from self.stopped.exception()
