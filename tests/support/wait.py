"""Waiting for a condition, with a deadline: the one place where a test may sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PAUSE_S = 0.01


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Look again and again until it is so; fails when the time is over."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"{condition.__qualname__} was not so within {seconds} s"
        await asyncio.sleep(PAUSE_S)


def until_now(condition: Callable[[], bool], seconds: float, *, pause_s: float = PAUSE_S) -> None:
    """The same where there is no loop. A look that costs something is taken less often."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition.__qualname__} was not so within {seconds} s"
        time.sleep(pause_s)
