"""One attempt at a message: the call of its handler, on the event loop or on a thread.

`current_message()` returns the message of the attempt in which it is called: in the handler, in the functions that it
calls and in the tasks that it starts. Each attempt sets a context variable, which costs less than a microsecond.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from driftq.client.claims import Reject, raised
from driftq.client.errors import InvalidCall
from driftq.client.pending_call import current

if TYPE_CHECKING:
    from driftq.client.message import AsyncMessage, Message
    from driftq.client.worker.options import Handler

logger = logging.getLogger("driftq.worker")

AnyMessage: TypeAlias = "Message | AsyncMessage"


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
    """A message whose handler is running. `task` is that of an async handler."""

    __slots__ = ("aborted_as", "message", "started_s", "task")

    def __init__(self, message: AnyMessage, task: asyncio.Task[None] | None = None) -> None:
        self.message = message
        self.task = task
        self.started_s = time.monotonic()
        self.aborted_as: str | None = None  # the verb, or "lost", if the loop aborted it


class AttemptResult(NamedTuple):
    """What a handler returned, or raised."""

    value: Any = None
    error: BaseException | None = None


async def awaited(handler: Handler, message: AnyMessage) -> AttemptResult:
    """Call an async handler. Raises nothing, unless the task is cancelled: an exit that a handler asks for ends its
    attempt, not the process."""
    if damage := message.damage:
        return AttemptResult(None, Reject(damage))
    current.set(message)
    try:
        value = await handler(message)
        return AttemptResult(value, message.forgotten)
    except (Exception, SystemExit) as error:
        return AttemptResult(None, error)


def called(handler: Handler, message: AnyMessage) -> AttemptResult:
    """Call a plain handler. Raises nothing."""
    if damage := message.damage:  # its head cannot be decoded: no handler can process it
        return AttemptResult(None, Reject(damage))
    current.set(message)
    try:
        return AttemptResult(handler(message))
    except BaseException as error:  # no error may end the thread
        return AttemptResult(None, error)


def log_failure(message: AnyMessage, reason: str, error: BaseException) -> None:
    logger.warning("%r failed: %s", message, reason, exc_info=raised(error))
