"""Messages that were claimed together and are handled one after the other: the leases of those that wait are renewed.

Pure: it says when to renew and which messages are left; its caller asks the broker.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from driftq.client.claims import Held
from driftq.wire.queue import SettleReply

RENEW_S = 1.0  # what waited for less than this has as good as its whole lease

H = TypeVar("H", bound=Held)


class Prefetched(Generic[H]):
    """What one claim gave, first come first served."""

    def __init__(self, messages: list[H], lease_ms: int | None, now_s: float) -> None:
        self.waiting = messages
        self._renew_s = min(RENEW_S, lease_ms / 3_000) if lease_ms is not None else RENEW_S
        self._renewed_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether to extend `waiting` before the next message is handed out."""
        return bool(self.waiting) and now_s - self._renewed_s >= self._renew_s

    def renewed(self, reply: SettleReply, now_s: float) -> None:
        """Those whose lease was lost come again by themselves, here or elsewhere."""
        lost = {(each.partition, each.offset) for each in reply.refused}
        self.waiting = [each for each in self.waiting if (each.delivered.partition, each.delivered.offset) not in lost]
        self._renewed_s = now_s

    def next(self) -> H:
        return self.waiting.pop(0)
