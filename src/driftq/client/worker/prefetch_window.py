"""How many messages a worker holds: those that run, and those that wait for their turn.

A claim costs the broker a sync, so a worker of quick calls has to take many messages at once, and one of slow calls has
to leave them to other workers. The window follows the calls: it is what they handled in the last `AHEAD_S`, within

    concurrency + prefetch            the least, and all if the worker names its `prefetch`
    HELD_PER_CALL_MAX × concurrency   the most

Calls may turn slow while many messages wait: `excess` is how many to give back to other workers. A worker that runs
one call at a time gives nothing back: what it gives back could be overtaken, and it may be the only worker of its group
because its messages have an order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.client.worker.options import WorkerOptions

AHEAD_S = 0.05
MEASURED_S = 0.01  # a shorter time says nothing
HELD_PER_CALL_MAX = 16
GIVEN_BACK_S = 0.5  # what would wait for longer than this is given back


class PrefetchWindow:
    """The window of one run. `on_handled` is called for each call that has ended, `measure` before each claim."""

    def __init__(self, options: WorkerOptions, now_s: float) -> None:
        self.size = self._least = options.held_max
        self._concurrency = options.concurrency
        self._most = max(self._least, HELD_PER_CALL_MAX * options.concurrency)
        self._follows = options.prefetch is None
        self._handled = 0
        self._measured = self._checked = (now_s, 0)  # when, and how many were handled by then

    @property
    def claim_min(self) -> int:
        """How much has to be free before the next claim, so that claims are few and large."""
        return max(1, self.size // (2 if self.size > self._least else 4))

    def on_handled(self) -> None:
        self._handled += 1

    def measure(self, now_s: float) -> None:
        since_s, before = self._measured
        if self._follows and now_s - since_s >= MEASURED_S:
            ahead = int(AHEAD_S * (self._handled - before) / (now_s - since_s))
            self.size = min(max(self._least, ahead), self._most)
            self._measured = (now_s, self._handled)

    def excess(self, waiting: int, now_s: float) -> int:
        """How many of the messages that wait are to be given back. Asked a few times in a second."""
        since_s, before = self._checked
        self._checked = (now_s, self._handled)
        if not self._follows or self._concurrency == 1 or now_s <= since_s:
            return 0
        soon = int(GIVEN_BACK_S * (self._handled - before) / (now_s - since_s))
        return max(0, waiting - max(self._least - self._concurrency, soon))
