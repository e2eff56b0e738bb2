"""Waiting for a condition, with a deadline: the one place where a test may sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PAUSE_S = 0.01


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Poll until the condition holds; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"{condition.__qualname__} did not hold within {seconds} s"
        await asyncio.sleep(PAUSE_S)


def until_now(condition: Callable[[], bool], seconds: float, *, pause_s: float = PAUSE_S) -> None:
    """The same without an event loop. `pause_s` is longer for conditions that cost something."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition.__qualname__} did not hold within {seconds} s"
        time.sleep(pause_s)
