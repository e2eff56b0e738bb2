"""A task that does nothing, in three ways; one that reports when it started; one that keeps a core busy."""

from __future__ import annotations

import time

import driftq

ROUNDS = 200_000


class BeforeAndAfter(driftq.Middleware):
    """Two hooks that do nothing."""

    def before(self, message: object) -> None:
        """Nothing."""

    def after(self, message: object, result: object) -> None:
        """Nothing."""


@driftq.task("plain", topic="plain", concurrency=8)
def plain(number: int) -> None:
    """On one of eight threads."""


@driftq.task("awaited", topic="awaited", concurrency=8)
async def awaited(number: int) -> None:
    """On the event loop."""


@driftq.task("hooked", topic="hooked", concurrency=8, middleware=[BeforeAndAfter()])
async def hooked(number: int) -> None:
    """On the event loop, between two hooks."""


@driftq.task("started", topic="started")
async def started() -> float:
    """When it started."""
    return time.monotonic()


@driftq.task("busy", topic="busy")
def busy(number: int) -> int:
    """About ten milliseconds that hold the interpreter."""
    total = 0
    for value in range(ROUNDS):
        total += value
    return total


TASKS = (plain, awaited, hooked, started, busy)
