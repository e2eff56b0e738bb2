"""How fast a peer must go on: the deadlines of heads, bodies and pauses between requests.

Owns when the present phase of reading began and what it had brought by then. Knows nothing of timers: it is asked at
each sweep, so a request costs no timer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

IDLE: Final = 0  # between two requests
HEAD: Final = 1  # some bytes of a head have come
BODY: Final = 2  # the head is complete, the body is not


class Late(Enum):
    HEAD = "the request head took too long"
    BODY = "the request body comes too slowly"
    IDLE = "idle for too long"


class Timeouts:
    """`since_s` is set by the connection whenever a phase begins."""

    __slots__ = ("_limits", "since_s", "window_bytes")

    def __init__(self, limits: HttpLimits, now_s: float) -> None:
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


# --- Every bound of the HTTP layer, in one frozen value ---


KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one peer may ask of the server. A breach is answered with the status named, then the connection closes."""

    # The target of the request line (414). Existing clients carry whole JSON values in the query: hence not 8 KiB.
    target_bytes: int = MIB
    # All header fields together (431), counted as name + value + 4 for the colon, the space and the line end.
    header_block_bytes: int = 16 * KIB
    header_count: int = 100
    # One request body (413), checked on Content-Length before reading and while a chunked body arrives.
    body_bytes: int = 16 * MIB
    # Half-received bodies of all connections together (503): what ten thousand slow uploads may hold in memory.
    bodies_total_bytes: int = 512 * MIB

    # Connections beyond these are answered with 503 and closed.
    connections: int = 10_000
    connections_per_peer: int = 5_000
    backlog: int = 2_048

    # From the first byte of a head (or from accepting the connection) to its blank line (408).
    header_deadline_s: float = 10.0
    # In every window of this length a body must advance by rate × window, or end (408).
    body_window_s: float = 10.0
    body_rate_bytes_per_s: int = KIB
    # A connection between two requests.
    idle_s: float = 75.0
    # Output that does not move at all for this long cuts the connection; also TCP_USER_TIMEOUT.
    write_stall_s: float = 30.0
    # Past this much unsent output nothing more is produced or started for a connection; it resumes at a quarter.
    write_buffer_bytes: int = 256 * KIB
    # Requests of one connection that are started and not yet answered.
    pipelined: int = 128
    # After a refusal the rest of the input is read and thrown away this long, so that the peer can read the answer.
    linger_s: float = 2.0

    # Half-open peers: first probe after idle, then count probes at this interval.
    tcp_keepalive_idle_s: int = 30
    tcp_keepalive_interval_s: int = 10
    tcp_keepalive_count: int = 3

    def sweep_interval_s(self) -> float:
        """How often deadlines are looked at: a quarter of the shortest, between 20 ms and 1 s."""
        shortest = min(self.header_deadline_s, self.body_window_s, self.idle_s, self.write_stall_s, self.linger_s)
        return max(0.02, min(1.0, shortest / 4))
