"""One budget for the memory of all output: what the peers have not taken yet, and what waits to be written.

A peer that reads takes no memory for long, so only those that do not read count. Nothing waits for them:

    used < half     a connection may hold `HttpLimits.write_buffer_bytes` of unsent output, and the source of a reply
                    keeps what it has read from the log while it waits for the socket
    used >= half    *tight*: a connection may hold `TIGHT_BUFFER_BYTES`, and a source that waits drops what it has read
                    and reads it again later. So several thousand peers that do not read fit into the other half
    a whole body    that has to be made at once may take half of what is free. So large ones become shorter or are
                    refused (503) long before small ones are; those up to `SMALL_BODY_BYTES` are always sent

Pure. Knows nothing of connections.
"""

from __future__ import annotations

from typing import Final

TIGHT_BUFFER_BYTES: Final = 16 * 1024
SMALL_BODY_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024  # a reply is made in pieces of about this size


class OutputBudget:
    """Bytes of output in memory, over all connections."""

    __slots__ = ("_limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def is_tight(self) -> bool:
        return 2 * self.used_bytes >= self._limit_bytes

    def body_bytes_max(self) -> int:
        """The largest body that may be made at once."""
        return max(SMALL_BODY_BYTES, (self._limit_bytes - self.used_bytes) // 2)

    def hold(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
