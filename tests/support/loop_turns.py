"""The CPU time of single turns of the event loop: what a piece of work costs all other requests.

CPU time of this thread, not wall time, so that a busy machine does not fail a test. The garbage collector is off in the
meantime: its cost depends on what other tests left in memory. The work runs in a task of its own, because the turn in
which a measurement starts is not measured.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import events
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class LoopTurns(NamedTuple):
    """In seconds of CPU time."""

    longest: float
    total: float


async def measured(work: Coroutine[Any, Any, T]) -> tuple[T, LoopTurns]:
    """Run something; returns its result and what its turns cost, with everything else that ran on the loop."""
    turns: list[float] = []
    run = events.Handle._run

    def timed(handle: events.Handle) -> Any:
        start = time.thread_time()
        try:
            return run(handle)
        finally:
            turns.append(time.thread_time() - start)

    events.Handle._run = timed  # type: ignore[method-assign]
    gc.disable()
    try:
        result = await asyncio.ensure_future(work)
    finally:
        gc.enable()
        events.Handle._run = run  # type: ignore[method-assign]
    return result, LoopTurns(max(turns), sum(turns))
