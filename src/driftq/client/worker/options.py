"""What a worker claims, how it works, and what it did: plain data for the decorator and for the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from driftq.client.errors import InvalidCall

LEASE_MS_MIN = 100

Handler = Callable[[Any], Awaitable[Any] | Any]


class WorkerSubscription(NamedTuple):
    """What a worker claims."""

    topic: str
    group: str
    task: str | None = None
    label: str | None = None
    start: str = "earliest"


class WorkerOptions(NamedTuple):
    """How a worker works; see `driftq.worker`."""

    concurrency: int = 1
    prefetch: int | None = None
    lease_ms: int = 30_000
    timeout_ms: int = 300_000
    drain_ms: int = 30_000

    def check(self) -> None:
        if self.concurrency < 1 or (self.prefetch is not None and self.prefetch < 0):
            raise InvalidCall("concurrency must be at least 1, prefetch at least 0")
        if self.lease_ms < LEASE_MS_MIN:
            raise InvalidCall(f"lease_ms must be at least {LEASE_MS_MIN}: a shorter lease cannot be renewed in time")

    @property
    def held_max(self) -> int:
        """Messages that a worker holds at most: those that run and those that wait."""
        return self.concurrency + (self.concurrency if self.prefetch is None else self.prefetch)


class WorkerCounts:
    """What a run did."""

    __slots__ = ("acked", "failed", "lost", "rejected", "released", "timed_out")

    def __init__(self) -> None:
        self.acked = self.failed = self.rejected = self.released = self.lost = self.timed_out = 0

    def count(self, verb: str, count: int) -> None:
        match verb:
            case "ack/batch":
                self.acked += count
            case "nack/batch":
                self.failed += count
            case "reject":
                self.rejected += count
            case _:
                self.released += count

    def __repr__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
