"""Claims that fail: which of them end a worker, and how often the others are reported."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from driftq.client.errors import DriftQError, NotFound, Refused

if TYPE_CHECKING:
    from driftq.client.transport.sansio import PeerHistory

logger = logging.getLogger("driftq.worker")

WARNING_S = 30.0  # how often a topic that does not exist, or a broker that does not answer, is reported


class ClaimErrors:
    """The failed claims of one run. With `waits_for_topic`, a topic that does not exist is waited for."""

    def __init__(self, topic: str, peer: PeerHistory) -> None:
        self.waits_for_topic = False
        self._topic = topic
        self._peer = peer
        self._no_topic_s = self._lost_s = float("-inf")  # when it was last logged

    def on_success(self) -> None:
        self._lost_s = float("-inf")

    def check(self, error: BaseException, *, drain: bool) -> None:
        """Log an error after which to try again; raise any other."""
        if self.waits_for_topic and isinstance(error, NotFound):
            self._warn_of_no_topic()
        elif not isinstance(error, DriftQError) or (isinstance(error, Refused) and not error.retryable):
            raise error
        elif drain and not self._peer.ever_connected:
            raise error  # the address is probably wrong
        elif time.monotonic() >= self._lost_s + WARNING_S:
            self._lost_s = time.monotonic()
            logger.warning("cannot claim from %s, retrying: %s", self._topic, error)

    def _warn_of_no_topic(self) -> None:
        if time.monotonic() >= self._no_topic_s + WARNING_S:
            self._no_topic_s = time.monotonic()
            topic = self._topic
            logger.warning("topic %s does not exist; waiting for it. Create it: driftq topics create %s", topic, topic)
