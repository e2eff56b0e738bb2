"""How the messages of a worker move: claimed, run, settled, kept alive meanwhile. On one loop.

    claimer ──▶ ready ──▶ runners (concurrency) ──▶ settler (what has ended, in one call for each kind of end)
                   └────────── keeper: renews every lease in one call, notices what is lost or takes too long

Stopping goes the same way: no more claims, what was not begun is given back uncounted, what runs may end, then the last
settling. Nothing here knows signals or decorators.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client import calls
from driftq.client.blocking import Transport
from driftq.client.claims import Place, settle
from driftq.client.errors import DriftQError, InvalidCall, LeaseLost, Refused
from driftq.client.message import AsyncMessage, Message
from driftq.client.verdicts import RELEASE, Ending, ending_of

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ
    from driftq.client.worker import Subscription

logger = logging.getLogger("driftq.worker")

Handled = Message | AsyncMessage
Handler = Callable[[Any], Awaitable[Any] | Any]

CLAIM_WAIT_MS = 20_000
CLAIM_MAX = 10_000
SETTLE_MAX = 5_000
RETRY_S = 1.0


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


class Running:
    """A message that somebody works on."""

    __slots__ = ("began_s", "broken_off", "message", "task")

    def __init__(self, message: Handled, task: asyncio.Task[None]) -> None:
        self.message = message
        self.task = task
        self.began_s = time.monotonic()
        self.broken_off: str | None = None  # why it was cancelled by us
