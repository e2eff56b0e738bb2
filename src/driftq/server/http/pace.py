"""How fast a peer must go on: the deadlines of heads, bodies and pauses between requests.

Owns when the present phase of reading began and what it had brought by then. Knows nothing of timers: it is asked at
each sweep, so a request costs no timer of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from driftq.server.http.limits import Limits

IDLE: Final = 0  # between two requests
HEAD: Final = 1  # some bytes of a head have come
BODY: Final = 2  # the head is complete, the body is not


class Late(Enum):
    HEAD = "the request head took too long"
    BODY = "the request body comes too slowly"
    IDLE = "idle for too long"


class Pace:
    """`since_s` is set by the connection whenever a phase begins."""

    __slots__ = ("_limits", "since_s", "window_bytes")

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self.since_s = now_s
        self.window_bytes = 0

    def late(self, now_s: float, phase: int, body_received: int, is_fresh: bool) -> Late | None:
        """What has taken too long, if anything. A fresh connection owes its first head as if it had begun it."""
        limits = self._limits
        elapsed_s = now_s - self.since_s
        if phase == HEAD:
            return Late.HEAD if elapsed_s > limits.header_deadline_s else None
        if phase == IDLE:
            return Late.IDLE if elapsed_s > (limits.header_deadline_s if is_fresh else limits.idle_s) else None
        if elapsed_s <= limits.body_window_s:
            return None
        if body_received - self.window_bytes < limits.body_rate_bytes_per_s * limits.body_window_s:
            return Late.BODY
        self.since_s = now_s
        self.window_bytes = body_received
        return None
