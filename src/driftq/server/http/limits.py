"""The limits of the HTTP layer, and the check of its timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one peer may use. Exceeding a limit gets the status in parentheses, then the connection closes."""

    # The target of the request line (414). Clients send whole JSON values in the query, so 8 KiB is too little.
    target_bytes: int = MIB
    # All header fields together (431), counted as name + value + 4 for the colon, the space and the line end.
    header_block_bytes: int = 16 * KIB
    header_count: int = 100
    # One request body (413), checked against Content-Length before reading, and while a chunked body arrives.
    body_bytes: int = 16 * MIB
    # Large bodies of all connections together, from their first byte to the response (503): what ten thousand slow
    # uploads may hold in memory. When it is used up, those that hold more than their share are refused.
    bodies_total_bytes: int = 128 * MIB
    # Large requests that are started and have no response yet, over all connections; further ones wait.
    started_bytes: int = MIB

    # Further connections get 503 and are closed.
    connections: int = 10_000
    connections_per_peer: int = 5_000
    backlog: int = 2_048

    # From the first byte of a head (or from accepting the connection) to its blank line (408).
    header_deadline_s: float = 10.0
    # In every window of this length a body must advance by rate × window, or end (408).
    body_window_s: float = 10.0
    body_rate_bytes_per_s: int = KIB
    # How long a connection may be idle between two requests.
    idle_s: float = 75.0
    # A connection is aborted if none of its output is sent for this long; also TCP_USER_TIMEOUT.
    write_stall_s: float = 30.0
    # With more unsent output than this, a connection produces and starts nothing; it resumes at a quarter.
    write_buffer_bytes: int = 128 * KIB
    # Unsent output of all connections together; see `output_budget` for what happens when it is used up.
    output_bytes: int = 256 * MIB
    # Started requests of one connection that have no response yet.
    pipelined: int = 128
    # After a refusal, input is read and discarded for this long, so that the peer can read the response.
    linger_s: float = 2.0

    # TCP keep-alive, for half-open peers: the first probe after idle, then so many probes at this interval.
    tcp_keepalive_idle_s: int = 30
    tcp_keepalive_interval_s: int = 10
    tcp_keepalive_count: int = 3

    def sweep_interval_s(self) -> float:
        """How often timeouts are checked: a quarter of the shortest, between 20 ms and 1 s."""
        shortest = min(self.header_deadline_s, self.body_window_s, self.idle_s, self.write_stall_s, self.linger_s)
        return max(0.02, min(1.0, shortest / 4))


# The parser cannot be paused inside one call. Pieces of at most this size bound what a flood of tiny pipelined requests
# can make us parse ahead.
PIECE_BYTES: Final = 16 * KIB
# A larger body counts against `bodies_total_bytes` and `started_bytes`.
LARGE_BODY_BYTES: Final = 64 * KIB

# The phases of reading.
IDLE: Final = 0  # between two requests
HEAD: Final = 1  # a part of a head has arrived
BODY: Final = 2  # the head is complete, the body is not


class TimeoutReason(Enum):
    """What took too long, as the client reads it in a 408."""

    HEAD = "the request head took too long"
    BODY = "the request body arrives too slowly"
    IDLE = "idle for too long"


class Timeouts:
    """The clock of one connection. It has no timer: the sweep asks, so a request costs nothing here.

    The connection sets `since_s` when a phase of reading begins, and `window_bytes` to 0. While a body arrives, both
    move forward with every window in which it was fast enough.
    """

    __slots__ = ("_limits", "since_s", "window_bytes")

    def __init__(self, limits: HttpLimits, now_s: float) -> None:
        self._limits = limits
        self.since_s = now_s  # when the present phase, or window of a body, began
        self.window_bytes = 0  # bytes of the body that had arrived by then

    def exceeded(self, now_s: float, phase: int, body_received: int, is_new: bool) -> TimeoutReason | None:
        """The timeout that has passed, if any. A new connection has to send its first head within the head timeout."""
        limits = self._limits
        elapsed_s = now_s - self.since_s
        if phase == HEAD:
            return TimeoutReason.HEAD if elapsed_s > limits.header_deadline_s else None
        if phase == IDLE:
            return TimeoutReason.IDLE if elapsed_s > (limits.header_deadline_s if is_new else limits.idle_s) else None
        if elapsed_s <= limits.body_window_s:
            return None
        if body_received - self.window_bytes < limits.body_rate_bytes_per_s * limits.body_window_s:
            return TimeoutReason.BODY
        self.since_s = now_s
        self.window_bytes = body_received
        return None
