"""Time and chance for a running broker.

`SystemClock` shows wall-clock milliseconds that never go back and never jump by themselves: it starts at the machine's
clock, continues with one that only counts, and is slewed slowly towards the machine's. A lease ends neither early nor
late because the machine's clock was set.

        machine's clock, compared with the broker's time                     the broker's time
        at the start, ahead by up to `downtime_max_ms`                       is the machine's: the broker was down
        apart by up to `drift_max_ms`                                        is slewed to the machine's by 5 ms a second
        further apart, in either direction                                   is *held*: continues on its own

While it is held an operator decides which of the two is right: `set_to` accepts the machine's clock. A clock that was
wrong at the start and is corrected while the broker runs is accepted as at a start. Decision 11 has the reasons.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from typing import NamedTuple, Protocol

from driftq.wire.fields import to_rfc3339

logger = logging.getLogger("driftq.clock")

SLEW_MS_PER_S = 5.0
DOWNTIME_MAX_MS = 3 * 86_400_000  # a long weekend
DRIFT_MAX_MS = 600_000  # slewed away in 33 hours
_SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000
# Where the system has one, a clock that also counts while the machine sleeps: that time was true.
_COUNTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockReading(NamedTuple):
    """The broker's time and the machine's, read at one moment."""

    broker_ms: int
    machine_ms: int
    held: bool

    @property
    def ahead_ms(self) -> int:
        """How far the machine's clock is ahead of the broker's time; negative: it is behind."""
        return self.machine_ms - self.broker_ms

    def advice(self) -> str:
        """For an operator, while it is held."""
        direction = "ahead of" if self.ahead_ms > 0 else "behind"
        return (
            f"the machine's clock ({to_rfc3339(self.machine_ms)}) is {_span(abs(self.ahead_ms))} {direction} the "
            f"broker's time ({to_rfc3339(self.broker_ms)}). The broker's time continues on its own, so that nothing "
            "expires by mistake. If the machine's clock is right, run `driftq clock accept`; if not, set it."
        )


def _span(ms: int) -> str:
    for name, unit_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.1f} {name}"
    return f"{ms / 1_000:.0f} seconds"


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def start_at(self, at_ms: int) -> None:
        """`at_ms` is the last time in the journal; 0 if it is empty. Never return less than this."""

    def read(self) -> ClockReading: ...

    def set_to(self, at_ms: int) -> None:
        """Continue from here, even if it is earlier."""


class SystemClock:
    """Wall-clock time without its jumps. `now_ms` costs one reading of the counting clock."""

    def __init__(self, downtime_max_ms: int = DOWNTIME_MAX_MS, drift_max_ms: int = DRIFT_MAX_MS) -> None:
        self._downtime_max_ns = downtime_max_ms * _MS_NS
        self._drift_max_ns = drift_max_ms * _MS_NS
        seen_ns = _counted_ns()
        self._ahead_ns = time.time_ns() - seen_ns  # how far the broker's time is ahead of the counting clock
        self._slew_at_ns = seen_ns + _SECOND_NS  # when to move towards the machine's clock next
        self._shown_ms = 0  # the last time returned: it never goes back
        self._is_starting = False  # held since the start: the machine's clock has never agreed yet

    def now_ms(self) -> int:
        seen_ns = _counted_ns()
        if seen_ns >= self._slew_at_ns:
            self._slew(seen_ns)
        now_ms = (seen_ns + self._ahead_ns) // _MS_NS
        if now_ms > self._shown_ms:
            self._shown_ms = now_ms
        return self._shown_ms

    def _slew(self, seen_ns: int) -> None:
        """Move a little towards the machine's clock for each second that has passed; not at all while held."""
        step_ns = int(SLEW_MS_PER_S * 1e6 * (1 + (seen_ns - self._slew_at_ns) / _SECOND_NS))
        self._slew_at_ns = seen_ns + _SECOND_NS
        drift_ns = time.time_ns() - seen_ns - self._ahead_ns
        if self._is_starting and -self._drift_max_ns <= drift_ns <= self._downtime_max_ns:
            self._is_starting = False
            self._ahead_ns += max(0, drift_ns)
        elif abs(drift_ns) <= self._drift_max_ns:
            self._ahead_ns += max(-step_ns, min(step_ns, drift_ns))

    def start_at(self, at_ms: int) -> None:
        if not at_ms:
            return
        drift_ns = (self.now_ms() - at_ms) * _MS_NS
        if not 0 <= drift_ns <= self._downtime_max_ns:
            self.set_to(at_ms)
            self._is_starting = drift_ns < -self._drift_max_ns or drift_ns > 0

    def read(self) -> ClockReading:
        broker_ms, machine_ms = self.now_ms(), time.time_ns() // _MS_NS
        return ClockReading(broker_ms, machine_ms, abs(machine_ms - broker_ms) * _MS_NS > self._drift_max_ns)

    def set_to(self, at_ms: int) -> None:
        self._ahead_ns = at_ms * _MS_NS - _counted_ns()
        self._shown_ms = at_ms
        self._is_starting = False


def _counted_ns() -> int:
    return time.clock_gettime_ns(_COUNTING)


class ClockMonitor:
    """Logs when the broker's time is held, and when it is no longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held = False

    def look(self) -> None:
        reading = self._clock.read()
        if reading.held != self._held:
            self._held = reading.held
            if reading.held:
                logger.warning("%s", reading.advice())
            else:
                logger.info("the machine's clock and the broker's time agree")


class SystemChance:
    """Tokens that cannot be guessed, and jitter for retries."""

    def uniform(self) -> float:
        return random.random()

    def token(self) -> str:
        return secrets.token_urlsafe(16)
