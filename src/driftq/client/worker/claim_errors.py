"""Calls that workers repeat: which errors end a worker, and how often the others are reported.

A broker that does not answer is reported by `Presence`, once for all workers of a process.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from driftq.client.errors import DriftQError, NotConnected, NotFound, OutcomeUnknown, Refused

if TYPE_CHECKING:
    from driftq.client.transport.sansio import PeerHistory

logger = logging.getLogger("driftq.worker")

WARNING_S = 30.0  # how often the same is reported
NOTICED_S = 3.0  # by then, `Presence` has noticed that a broker does not answer


class RepeatedErrors:
    """The errors of a call that is repeated until it succeeds."""

    def __init__(self, peer: PeerHistory) -> None:
        self._peer = peer
        self._failing_s: float | None = None  # since when
        self._reported_s = float("-inf")

    def on_success(self) -> None:
        self._failing_s = None
        self._reported_s = float("-inf")

    def is_due(self, error: DriftQError) -> bool:
        """Whether to report it now."""
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = now_s
        is_noticed = self._peer.is_lost or now_s < self._failing_s + NOTICED_S
        if now_s < self._reported_s + WARNING_S or (is_noticed and isinstance(error, NotConnected | OutcomeUnknown)):
            return False
        self._reported_s = now_s
        return True


class AwaitedTopics:
    """Topics that do not exist, for which the workers of a process wait."""

    def __init__(self) -> None:
        self._reported_s: dict[str, float] = {}

    def is_missing(self, topic: str) -> None:
        if time.monotonic() >= self._reported_s.get(topic, float("-inf")) + WARNING_S:
            self._reported_s[topic] = time.monotonic()
            logger.warning("topic %s does not exist; waiting for it. Create it: driftq topics create %s", topic, topic)

    def exists(self, topic: str) -> None:
        if self._reported_s.pop(topic, None) is not None:
            logger.info("topic %s exists now", topic)


class ClaimErrors:
    """The failed claims of one run. With `awaited_topics`, a topic that does not exist is waited for."""

    def __init__(self, topic: str, peer: PeerHistory) -> None:
        self.awaited_topics: AwaitedTopics | None = None
        self._topic = topic
        self._peer = peer
        self._errors = RepeatedErrors(peer)

    def on_success(self) -> None:
        self._errors.on_success()
        if self.awaited_topics is not None:
            self.awaited_topics.exists(self._topic)

    def check(self, error: BaseException, *, drain: bool) -> None:
        """Log an error after which to try again; raise any other."""
        if self.awaited_topics is not None and isinstance(error, NotFound):
            self.awaited_topics.is_missing(self._topic)
        elif not isinstance(error, DriftQError) or (isinstance(error, Refused) and not error.retryable):
            raise error
        elif drain and not self._peer.ever_connected:
            raise error  # the address is probably wrong
        elif self._errors.is_due(error):
            logger.warning("cannot claim from %s, retrying: %s", self._topic, error)
