"""The timer of an engine: it wakes up when something in the broker is due, and submits a sweep.

Timers wake, they do not decide: a lease whose time has passed is free whether or not the timer fired. A late timer
costs latency, never correctness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model.schedules import FireSchedules

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model.commands import Command
    from driftq.engine.clock import Clock
    from driftq.engine.loop_monitor import LoopMonitor


PAUSE_S = 0.01  # after a sweep that left something which is due: others are served, and the disk keeps up
FIRING_PAUSE_S = 0.005  # after firings: what becomes due by then shares a write
LATE_PAUSE_S = 0.002  # the same, at least, if those that are left are late already


class DeadlineTimer:
    """Fires at the broker's next deadline."""

    def __init__(self, broker: Broker, clock: Clock, submit: Callable[[Command], None], monitor: LoopMonitor) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._clock = clock
        self._submit = submit
        self._on_time = monitor.timed("sweep", self._fire)
        self._handle: asyncio.TimerHandle | None = None
        self._deadline_ms: int | None = None  # what the handle was set for
        self._not_before_s = 0.0  # the loop's time; later than now in a pause
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
            delay_s = max(delay_s, self._not_before_s - self._loop.time())
            self._handle = self._loop.call_later(delay_s, self._on_time)

    def _fire(self) -> None:
        self._handle = self._deadline_ms = None
        command = self._broker.due(self._clock.now_ms())
        if command is not None and not self._stopped:
            began_s = time.perf_counter()
            self._submit(command)
            took_s = time.perf_counter() - began_s
            deadline_ms = self._broker.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
                # A hint may be too early; then the pause delays the next deadline by no more than its length.
                late_s = (self._clock.now_ms() - deadline_ms) / 1_000
                self._not_before_s = self._loop.time() + pause_s(command, took_s, late_s)
        self.arm()


def pause_s(command: Command, took_s: float, late_s: float) -> float:
    """The pause after a command that took so long, if what is left is so late. Firings that are late take a third of
    the loop; they are refused when the disk does not keep up."""
    if not isinstance(command, FireSchedules):
        return PAUSE_S
    if late_s <= FIRING_PAUSE_S:
        return FIRING_PAUSE_S
    return min(PAUSE_S, max(LATE_PAUSE_S, 2 * took_s))
