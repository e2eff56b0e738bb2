"""The key that signs wakes, and the webhooks that are called with it: one of each for a server.

The first request that needs the key creates it, durably; others wait for it. Webhooks are called from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model.replies import Rejected, Reply
from driftq.core.model.subscriptions import MakeSigningKey
from driftq.server.streams.webhooks import SEED_BYTES, Signer, Webhooks

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.outbound.client import OutboundClient


class SigningKey:
    """The signing key of one server."""

    def __init__(self, engine: Engine, outbound: OutboundClient, timeout_ms: int) -> None:
        self._engine = engine
        self._outbound = outbound
        self._timeout_ms = timeout_ms
        self._waiting: list[Callable[[Rejected | None], None]] | None = None
        self._webhooks: Webhooks | None = None
        self.signer: Signer | None = None  # None: there is no key yet
        if engine.latest_state.subscriptions.seed:
            self._on_key(None)

    def need(self, then: Callable[[Rejected | None], None]) -> None:
        """Call `then` when there is a key, or with the reason why there is none."""
        if self.signer is not None:
            then(None)
        elif self._waiting is not None:
            self._waiting.append(then)
        else:
            self._waiting = [then]
            self._engine.submit_to(MakeSigningKey(os.urandom(SEED_BYTES)), self._on_key)

    def _on_key(self, reply: Reply | None) -> None:
        waiting, self._waiting = self._waiting or [], None
        refused = reply if isinstance(reply, Rejected) else None  # there is no key: the next request tries again
        if refused is None:
            self.signer = Signer(self._engine.latest_state.subscriptions.seed)
            self._webhooks = Webhooks(self._engine, self.signer, self._outbound, self._timeout_ms)
        for then in waiting:
            then(refused)

    def failures_of(self, number: int) -> int:
        """How often the webhook of a subscription failed since its last success."""
        return self._webhooks.failures(number) if self._webhooks is not None else 0
