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


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def start_at(self, at_ms: int) -> None:
        """Never show less than this: the last time that is already written down."""


class SystemClock:
    """Wall-clock time without its jumps."""

    def __init__(self) -> None:
        self._shown_ms = time.time() * 1_000
        self._seen_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        seen_ns = time.monotonic_ns()
        passed_ms = (seen_ns - self._seen_ns) / 1e6
        self._seen_ns = seen_ns
        self._shown_ms += passed_ms
        most = passed_ms * SLEW_MS_PER_S / 1_000
        self._shown_ms += max(-most, min(most, time.time() * 1_000 - self._shown_ms))
        return int(self._shown_ms)

    def start_at(self, at_ms: int) -> None:
        self._shown_ms = max(self._shown_ms, float(at_ms))


class SystemChance:
    """Tokens nobody can guess, and spread for retries."""

    def uniform(self) -> float:
        return random.random()

    def token(self) -> str:
        return secrets.token_urlsafe(16)
