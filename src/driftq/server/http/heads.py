"""Heads that were parsed before, recognised by their bytes.

A client on a kept-alive connection sends the same few heads again and again. A head that the parser has accepted means
the same the next time, byte for byte, so it need not be parsed again. Owns the memory of such heads and its bound; what
a head means is the parser's business alone.
"""

from __future__ import annotations

from typing import Final

from driftq.server.http.request import Head

HEADS_MAX: Final = 1_024
HEAD_BYTES_MAX: Final = 1_024
MISSES_MAX: Final = 16
REST_REQUESTS: Final = 256


class KnownHeads:
    """Shared by the connections of a listener. Forgets everything when it is full, which is rare and cheap."""

    __slots__ = ("by_bytes",)

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, Head] = {}

    def remember(self, raw: bytes, head: Head) -> None:
        if len(self.by_bytes) >= HEADS_MAX:
            self.by_bytes.clear()
        self.by_bytes[raw] = head


def is_memorable(raw: bytes) -> bool:
    """Only what starts like a request line: empty lines before it belong to no head."""
    return len(raw) <= HEAD_BYTES_MAX and raw[:1].isupper()
