"""What a worker claims, how it works, and what it did: data, for the decorator and for the machinery behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from driftq.client.errors import InvalidCall

Handler = Callable[[Any], Awaitable[Any] | Any]


class Subscription(NamedTuple):
    """What a worker claims."""

    topic: str
    group: str
    task: str | None = None
    label: str | None = None
    start: str = "earliest"


class WorkOptions(NamedTuple):
    """How a worker works; see `driftq.worker`."""

    concurrency: int = 1
    prefetch: int | None = None
    lease_ms: int = 30_000
    timeout_ms: int = 300_000
    drain_ms: int = 30_000

    def check(self) -> None:
        if self.concurrency < 1 or (self.prefetch is not None and self.prefetch < 0):
            raise InvalidCall("concurrency is at least 1, prefetch at least 0")
        if self.lease_ms < 100:
            raise InvalidCall("a lease shorter than 100 ms cannot be kept alive")

    @property
    def held_max(self) -> int:
        """Messages that run or wait here at the same time."""
        return self.concurrency + (self.concurrency if self.prefetch is None else self.prefetch)


class Counts:
    """What a run did."""

    __slots__ = ("acked", "failed", "lost", "rejected", "released", "timed_out")

    def __init__(self) -> None:
        self.acked = self.failed = self.rejected = self.released = self.lost = self.timed_out = 0

    def count(self, verb: str, many: int) -> None:
        match verb:
            case "ack/batch":
                self.acked += many
            case "nack/batch":
                self.failed += many
            case "reject":
                self.rejected += many
            case _:
                self.released += many

    def __repr__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
