"""Time and chance for a running broker.

`SystemClock` shows wall-clock milliseconds that never go back and never jump: it starts at the wall clock, goes on with
the monotonic one and leans towards the wall slowly. A lease neither ends early nor late because somebody set the time.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol

SLEW_MS_PER_S = 5.0
_SECOND_NS = 1_000_000_000


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def start_at(self, at_ms: int) -> None:
        """Never show less than this: the last time that is already written down."""


class SystemClock:
    """Wall-clock time without its jumps. A look costs one reading of the monotonic clock."""

    def __init__(self) -> None:
        seen_ns = time.monotonic_ns()
        self._ahead_ns = time.time_ns() - seen_ns  # of the monotonic clock
        self._lean_at_ns = seen_ns + _SECOND_NS
        self._shown_ms = 0

    def now_ms(self) -> int:
        seen_ns = time.monotonic_ns()
        if seen_ns >= self._lean_at_ns:
            self._lean(seen_ns)
        now_ms = (seen_ns + self._ahead_ns) // 1_000_000
        if now_ms > self._shown_ms:
            self._shown_ms = now_ms
        return self._shown_ms

    def _lean(self, seen_ns: int) -> None:
        """Go a little towards the wall clock, for each second that has passed."""
        most_ns = int(SLEW_MS_PER_S * 1e6 * (1 + (seen_ns - self._lean_at_ns) / _SECOND_NS))
        drift_ns = time.time_ns() - seen_ns - self._ahead_ns
        self._ahead_ns += max(-most_ns, min(most_ns, drift_ns))
        self._lean_at_ns = seen_ns + _SECOND_NS

    def start_at(self, at_ms: int) -> None:
        behind_ms = at_ms - self.now_ms()
        if behind_ms > 0:
            self._ahead_ns += behind_ms * 1_000_000


class SystemChance:
    """Tokens nobody can guess, and spread for retries."""

    def uniform(self) -> float:
        return random.random()

    def token(self) -> str:
        return secrets.token_urlsafe(16)
