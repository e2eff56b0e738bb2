"""Every bound of the HTTP layer, in one frozen value.

Owns the numbers and the reason for each default; enforcing them is the work of `incoming` (sizes), `connection`
(deadlines, pipelining, writes) and `listener` (connections). Knows nothing of routes: a bound here holds for every
request alike.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
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
