"""The timer of an engine: it wakes up when something in the broker is due, and submits a sweep.

Timers wake, they do not decide: a lease whose time has passed is free whether or not the timer fired. A late timer
costs latency, never correctness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model.commands import Command
    from driftq.engine.clock import Clock


class DeadlineTimer:
    """Fires at the broker's next deadline."""

    def __init__(self, broker: Broker, clock: Clock, submit: Callable[[Command], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._clock = clock
        self._submit = submit
        self._handle: asyncio.TimerHandle | None = None
        self._deadline_ms: int | None = None  # what the handle was set for
        self._stopped = False

    def arm(self) -> None:
        """Set the timer for the next deadline, if that changed."""
        deadline_ms = self._broker.next_deadline_ms()
        if deadline_ms != self._deadline_ms and not self._stopped:
            self._set(deadline_ms)

    def rearm(self) -> None:
        """The clock was set: the same deadline is now nearer or further away."""
        if not self._stopped:
            self._set(self._broker.next_deadline_ms())

    def stop(self) -> None:
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _set(self, deadline_ms: int | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._deadline_ms = deadline_ms
        self._handle = None
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1_000
            self._handle = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = self._deadline_ms = None
        command = self._broker.due(self._clock.now_ms())
        if command is not None and not self._stopped:
            self._submit(command)
        self.arm()
