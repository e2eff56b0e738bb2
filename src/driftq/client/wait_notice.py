"""Says why a call waits: a broker that refuses for now is asked again, and a program should not wait in silence.

The notice is a warning of the logger `driftq.client`. A program that configures no logging sees it on standard error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from driftq.client.errors import DriftQError, Refused

logger = logging.getLogger("driftq.client")

AGAIN_S = 10.0
FULL = (429, 507)  # too much waits, or the disk is full: this may take long


class WaitNotice:
    """The notices of one call or one producer: at once, and again while the wait goes on."""

    __slots__ = ("_next_s", "_now_s")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")

    def waits(self, error: DriftQError) -> None:
        """The call is tried again because of this refusal."""
        if isinstance(error, Refused) and error.status in FULL and self._now_s() >= self._next_s:
            self._next_s = self._now_s() + AGAIN_S
            logger.warning("waiting for the broker: %s", error.message)
