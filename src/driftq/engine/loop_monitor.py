"""Accounts for the time of the event loop: which work held it for how long.

One loop serves all clients, so a long piece of work is a pause for all of them. Each callback of the loop that does
work is a *turn* with a cause: the route of a request, `commit`, `sweep`, `checkpoint` and so on. A turn above `stall_s`
is reported to `on_stall`, which counts it; above `log_s` it is logged too.

    begin ──┬──────────────── a turn: "commit" ────────────────┬── end: 30 ms
            └─ begin ─── a section: "projection", 25 ms ─ end ─┘        └──▶ on_stall("projection", 0.03)

Turns nest: what begins inside of a turn is a section of it. If one section took at least half of the turn, its cause is
the cause of the turn.

Most turns are short, and most are the input of a connection. The loop runs all input that has arrived without a pause
in between, so one reading of the clock ends one such turn and begins the next (`input_ended_s`).

The time is wall time by default, since a pause is a pause, whether the loop computed or waited for a core. Tests pass
the CPU time of the thread instead.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
OnStall = Callable[[str, float], None]  # cause, seconds

STALL_S = 0.02
LOG_S = 0.2

logger = logging.getLogger("driftq.loop")


class LoopMonitor:
    """The turns of one event loop. Called on the loop's thread only."""

    __slots__ = (
        "_depth", "_gc_started_s", "_gc_thread", "_log_s", "_loop", "_reported_at_s", "_reported_s", "_section_cause",
        "_section_s", "clock", "input_ended_s", "on_stall", "stall_s",
    )  # fmt: skip

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, stall_s: float = STALL_S, log_s: float = LOG_S
    ) -> None:
        self.on_stall: OnStall = _ignore  # gets every turn that took `stall_s` or longer
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self.input_ended_s = 0.0  # when the last turn of input ended; 0.0 if the loop may have waited since
        self.stall_s = stall_s
        self._log_s = log_s
        self._depth = 0  # turns and sections that have begun and not ended
        self._section_cause = ""  # the longest section of the present turn, if it is long
        self._section_s = 0.0
        self._reported_at_s = 0.0  # when the last stall was reported, and how long it was
        self._reported_s = 0.0
        self._gc_thread = 0  # garbage collections of this thread are sections
        self._gc_started_s = 0.0

    def begin(self) -> float:
        """A turn begins, or a section of one. Pass the result to `end`, which must follow even after an error."""
        self._depth += 1
        return self.clock()

    def end(self, cause: str, started_s: float) -> None:
        self._depth -= 1
        took_s = self.clock() - started_s
        if took_s >= self.stall_s:
            self._end_long(cause, took_s)

    def begin_input(self) -> float:
        """Input of a connection begins, the first since the loop waited: see `Connection.buffer_updated`."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._forget_input)  # after all input that has arrived
        return self.clock()

    def end_long_input(self, cause: str, started_s: float, took_s: float) -> None:
        """A turn of input took `stall_s` or longer."""
        if self._reported_at_s < started_s or 2 * self._reported_s < took_s:  # a garbage collection reports itself
            self._end_long(cause, took_s)

    def _forget_input(self) -> None:
        self.input_ended_s = 0.0

    def timed(self, cause: str, callback: Callable[..., object]) -> Callable[..., None]:
        """A callback for the loop whose calls are turns."""

        def run(*arguments: object) -> None:
            started_s = self.begin()
            try:
                callback(*arguments)
            finally:
                self.end(cause, started_s)

        return run

    def steps(self, cause: str, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The same coroutine for a task; each of its steps is a turn."""
        return _TimedSteps(self, cause, coroutine)

    def watch_garbage_collection(self) -> None:
        """Make collections on this thread turns or sections of their own, until `close`."""
        self._gc_thread = threading.get_ident()
        gc.callbacks.append(self._on_garbage_collection)

    def close(self) -> None:
        if self._gc_thread:
            self._gc_thread = 0
            gc.callbacks.remove(self._on_garbage_collection)

    def _end_long(self, cause: str, took_s: float) -> None:
        if self._depth:
            if took_s >= self._section_s:
                self._section_cause, self._section_s = cause, took_s
            return
        if 2 * self._section_s >= took_s:
            cause = self._section_cause or cause
        self._section_cause, self._section_s = "", 0.0
        self._reported_at_s, self._reported_s = self.clock(), took_s
        self.on_stall(cause, took_s)
        if took_s >= self._log_s:
            logger.warning("the event loop was held for %.0f ms by: %s", took_s * 1_000, cause)

    def _on_garbage_collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._gc_thread:
            return
        if phase == "start":
            self._gc_started_s = self.begin()
        else:
            self.end("garbage collection", self._gc_started_s)


class _TimedSteps(Coroutine[Any, Any, T]):
    """Passes everything on to a coroutine. A task calls `send` or `throw` once for each step."""

    __slots__ = ("_cause", "_coroutine", "_monitor")

    def __init__(self, monitor: LoopMonitor, cause: str, coroutine: Coroutine[Any, Any, T]) -> None:
        self._monitor = monitor
        self._cause = cause
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        started_s = self._monitor.begin()
        try:
            return self._coroutine.send(value)
        finally:
            self._monitor.end(self._cause, started_s)

    def throw(self, *error: Any) -> Any:
        started_s = self._monitor.begin()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._monitor.end(self._cause, started_s)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


def _ignore(cause: str, took_s: float) -> None:
    pass
