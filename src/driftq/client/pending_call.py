"""What an async call returns: a coroutine that reports it if it is never awaited.

Python only warns of a coroutine that is dropped. For a client that means a message that was never sent, so it is an
error: it is logged where it happens, the next call of the same client or producer raises it, and inside a worker the
attempt at the current message fails with it.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from driftq.client.errors import InvalidCall

T = TypeVar("T")

logger = logging.getLogger("driftq.client")

# The message of the current attempt, in a worker. Its `forgotten` is set if a call was not awaited.
current: ContextVar[Any] = ContextVar("driftq_message")


class ForgottenCalls:
    """Remembers for one client or producer that a call was not awaited."""

    __slots__ = ("_error",)

    def __init__(self) -> None:
        self._error: InvalidCall | None = None

    def add(self, name: str) -> None:
        error = InvalidCall(f"{name}() was not awaited, so it did not happen: write `await {name}(…)`")
        logger.error("%s", error)
        self._error = error
        message = current.get(None)
        if message is not None:
            message.forgotten = error

    def check(self) -> None:
        """Raise what was forgotten, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class Pending(Coroutine[Any, Any, T]):
    """A call that begins when it is awaited, or when a task is made of it."""

    __slots__ = ("_calls", "_coroutine", "_name", "_started")

    def __init__(self, coroutine: Coroutine[Any, Any, T], calls: ForgottenCalls, name: str) -> None:
        self._coroutine = coroutine
        self._calls = calls
        self._name = name
        self._started = False

    def __await__(self) -> Generator[Any, Any, T]:
        self._started = True
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        self._started = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._started = True
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._started = True
        self._coroutine.close()

    def __del__(self) -> None:
        if not self._started:
            self._coroutine.close()
            self._calls.add(self._name)
