"""One attempt at a message: the call of its handler, on the event loop or on a thread.

`current_message()` returns the message of the attempt in which it is called: in the handler, in the functions that it
calls and in the tasks that it starts. Each attempt sets a context variable, which costs less than a microsecond.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client.errors import InvalidCall
from driftq.client.message import AsyncMessage, Message
from driftq.client.pending_call import current
from driftq.client.worker.hooks import current_context_or_new, enter_context

if TYPE_CHECKING:
    from driftq.client.worker.options import Handler

AnyMessage = Message | AsyncMessage


def current_message() -> Any:
    """The message that is being handled: a `Message` in a plain function, an `AsyncMessage` in an async one.

    For tasks, which get their arguments and not the message: `driftq.current_message().attempts`. Raises `InvalidCall`
    outside of a worker.
    """
    message = current.get(None)
    if message is None:
        raise InvalidCall("there is no current message: this code was not called by a worker")
    return message


class RunningAttempt:
    """A message whose handler is running."""

    __slots__ = ("started_s", "aborted_as", "message", "task")

    def __init__(self, message: AnyMessage, task: asyncio.Task[None]) -> None:
        self.message = message
        self.task = task
        self.started_s = time.monotonic()
        self.aborted_as: str | None = None  # the verb, or "lost", if the loop aborted it


class AttemptResult(NamedTuple):
    """What a handler returned, or raised."""

    value: Any = None
    error: BaseException | None = None


class HandlerCaller:
    """Calls the handler of a worker: an async one is awaited, a plain one runs on a thread."""

    def __init__(self, handler: Handler, concurrency: int, *, is_async: bool) -> None:
        self._handler = handler
        self._threads: ThreadPoolExecutor | None = None
        if not is_async:
            context = current_context_or_new()  # a thread does not inherit it
            self._threads = ThreadPoolExecutor(concurrency, "driftq-worker", enter_context, (context,))

    @property
    def is_async(self) -> bool:
        return self._threads is None

    async def call(self, message: AnyMessage) -> AttemptResult:
        """Never raises, unless this task is cancelled. An exit that a handler asks for ends its attempt, not the
        process."""
        if self._threads is not None:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, _call_on_thread, self._handler, message
            )
        current.set(message)
        try:
            value = await self._handler(message)
            return AttemptResult(value, message.forgotten)
        except (Exception, SystemExit) as error:
            return AttemptResult(None, error)

    def close(self) -> None:
        """Threads that still run are left alone: they cannot be stopped."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _call_on_thread(handler: Callable[[Any], Any], message: AnyMessage) -> AttemptResult:
    """The error is returned: a future would replace a `TimeoutError` with a new one that has no traceback."""
    current.set(message)
    try:
        return AttemptResult(handler(message))
    except (Exception, SystemExit) as error:
        return AttemptResult(None, error)
