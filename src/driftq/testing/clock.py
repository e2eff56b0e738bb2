"""A clock that a test moves by hand. It is the engine's clock in a `MemoryBroker`, and in DriftQ's own tests."""

from __future__ import annotations

from driftq.engine.clock import ClockReading

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20+00:00


class HandClock:
    """Stands still until `move` or `set_to`."""

    def __init__(self, at_ms: int = START_MS) -> None:
        self._now_ms = at_ms

    def now_ms(self) -> int:
        return self._now_ms

    def start_at(self, at_ms: int) -> None:
        self._now_ms = max(self._now_ms, at_ms)

    def read(self) -> ClockReading:
        return ClockReading(self._now_ms, self._now_ms, False)

    def set_to(self, at_ms: int) -> None:
        self._now_ms = at_ms

    def move(self, by_ms: int) -> None:
        """Let time pass."""
        if by_ms < 0:
            raise ValueError("time only moves forward; use `set_to` to set the clock back")
        self._now_ms += by_ms
