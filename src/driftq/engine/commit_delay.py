"""How long a commit waits for callers that were just answered.

Callers that wait for their replies before they ask again split into two camps: while one camp's sync runs, the other
arrives and waits, and every sync carries only one of them. Whoever was answered a moment ago is likely to come again,
so the next commit waits until as many have come, but never longer than a sync takes: then a wrong guess costs at most
what a sync too many would have cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_MAX_S = 0.001  # a caller that takes longer to come again is not waited for, however slow the disk
EMPTY_TURN_S = 0.000_02  # a turn of the loop that took no longer had nothing to do


class CommitDelay:
    """Fed with every commit; asked before the next."""

    def __init__(self, on_empty_turn: Callable[[float], None], now_s: Callable[[], float] = time.perf_counter) -> None:
        self._on_empty_turn = on_empty_turn
        self._now_s = now_s
        self._expected = 0
        self._until_s = 0.0
        self._looked_s = 0.0

    def note(self, callers: int, append_s: float) -> None:
        """So many have been answered by a commit, or waited for the next already."""
        self._expected = callers
        self._until_s = self._now_s() + min(WAIT_MAX_S, append_s)

    def has_all(self, callers: int) -> bool:
        return callers >= self._expected

    def waits(self, callers: int) -> bool:
        """More are expected, and it is not too late for them. Asked in every turn of the loop until it is not so."""
        if callers >= self._expected:
            return False
        now_s = self._now_s()
        if now_s - self._looked_s < EMPTY_TURN_S:
            self._on_empty_turn(now_s - self._looked_s)
        self._looked_s = now_s
        return now_s < self._until_s
