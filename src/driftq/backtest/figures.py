"""The figures of a backtest, or of the record itself: waits, work and ends. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Figures(NamedTuple):
    """What became of the messages under one policy. Waits are from produce to first delivery."""

    name: str
    messages: int
    acked: int
    dead: int
    open: int  # neither acked nor dead when the backtest ended
    attempts: int
    unseen: int  # attempts that the record does not tell about, which counted as failed
    work_ms: int  # the time of workers, failed attempts included
    wait_p50_ms: int
    wait_p95_ms: int
    wait_max_ms: int
    done_p95_ms: int  # from produce to ack
    tenant_wait_p95_ms: dict[str, int]

    def cost(self, hourly_price: float) -> float:
        return self.work_ms / 3_600_000 * hourly_price


class Tally:
    """Collects what happens to messages."""

    def __init__(self) -> None:
        self.dead = 0
        self.unseen = 0
        self._attempts = 0
        self._work_ms = 0
        self._waits: dict[str, list[int]] = {}
        self._done: list[int] = []

    def delivered(self, tenant_id: str, wait_ms: int) -> None:
        """The first delivery of a message."""
        self._waits.setdefault(tenant_id, []).append(wait_ms)

    def worked(self, duration_ms: int) -> None:
        self._attempts += 1
        self._work_ms += duration_ms

    def acked(self, latency_ms: int) -> None:
        self._done.append(latency_ms)

    def figures(self, name: str, messages: int) -> Figures:
        waits = sorted(wait for tenant_waits in self._waits.values() for wait in tenant_waits)
        return Figures(
            name,
            messages,
            len(self._done),
            self.dead,
            messages - len(self._done) - self.dead,
            self._attempts,
            self.unseen,
            self._work_ms,
            quantile(waits, 0.5),
            quantile(waits, 0.95),
            quantile(waits, 1.0),
            quantile(sorted(self._done), 0.95),
            {tenant: quantile(sorted(waits), 0.95) for tenant, waits in sorted(self._waits.items())},
        )


def quantile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least this share does not exceed; 0 of nothing."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0
