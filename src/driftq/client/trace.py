"""The tracer of this process, if there is one. `driftq.telemetry` sets it; without it every call branches once.

This module knows no OpenTelemetry: a program that does not trace never imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from driftq.client.worker.hooks import Middleware
    from driftq.wire.message import Envelope
    from driftq.wire.produce import ProduceItem

OnEnd = Callable[[BaseException | None], None]


class ClientTracer(Protocol):
    """Makes the spans of a client and puts their context into envelopes."""

    def sent(self, topic: str, items: Sequence[ProduceItem]) -> tuple[list[ProduceItem], OnEnd]:
        """A call that sends these messages begins: the messages with its trace, and what to call at its end."""

    def created(self, topic: str, envelope: Envelope | None) -> Envelope:
        """A message is made that is sent later, with others: its envelope with its trace."""

    def middleware(self) -> Middleware:
        """What traces the attempts of a worker."""


active: ClientTracer | None = None


def use(tracer: ClientTracer | None) -> None:
    """Trace with this from now on; None ends it."""
    global active  # noqa: PLW0603  # one tracer for a process, as OpenTelemetry has it
    active = tracer
