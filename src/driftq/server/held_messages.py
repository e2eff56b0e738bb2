"""Messages that a consumer holds under a lease, on the server's side.

claim ──▶ held ──▶ settled by the consumer       held_runs: which messages a call names
             ├──▶ never reached the consumer      give_back: no attempt is counted
             └──▶ its record cannot be read       set_aside: counts as a failed attempt, so it waits in backoff
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.server.http.request import BadRequest

if TYPE_CHECKING:
    from driftq.core.model.replies import Delivery
    from driftq.engine.engine import Engine
    from driftq.wire.claims import HeldItem

SETTLE_MAX = 10_000


def held_runs(items: Sequence[HeldItem]) -> tuple[c.Held, ...]:
    """The messages of a settle call. Neighbours under one token become one run, so that acking a whole claim costs as
    much as acking one message."""
    if not 1 <= len(items) <= SETTLE_MAX:
        raise BadRequest(f"messages must name 1 to {SETTLE_MAX} messages")
    runs: list[c.Held] = []
    for item in items:
        end = item.end if item.end is not None else item.offset + 1
        if end <= item.offset:
            raise BadRequest("end must be greater than offset")
        last = runs[-1] if runs else None
        if last is not None and (last.partition, last.end, last.token) == (item.partition, item.offset, item.token):
            runs[-1] = c.Held(item.partition, last.first, end, item.token)
        else:
            runs.append(c.Held(item.partition, item.offset, end, item.token))
    return tuple(runs)


def give_back(engine: Engine, claim: c.Claim, deliveries: Iterable[Delivery], token: str) -> None:
    """Release messages that were claimed and not sent."""
    held = tuple(c.Held(delivery.partition, delivery.first, delivery.end, token) for delivery in deliveries)
    if held:
        engine.submit_to(c.ReleaseMessages(claim.topic, claim.group, claim.owner, held, sent=False), _ignore)


def set_aside(engine: Engine, claim: c.Claim, held: c.Held) -> None:
    """Nack messages whose records cannot be read. Released, they would be claimed again at once, and again."""
    engine.submit_to(c.Nack(claim.topic, claim.group, claim.owner, (held,), "the record cannot be read"), _ignore)


def _ignore(_: object) -> None:
    """The claim may have ended in the meantime; then there is nothing to do."""
