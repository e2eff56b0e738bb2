"""A claim that waits for messages: it stands in the line of its group until there may be some.

A wake-up is a hint, not a promise: whoever is woken claims again, and looks again after a while in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core import commands as c
from driftq.core.replies import Claimed, Rejected

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.engine.watch import Place

CLAIM_AGAIN_S = 5.0  # a claimer looks again at least this often, whatever it was told


async def claim_or_wait(engine: Engine, command: c.Claim, wait_ms: int) -> Claimed | Rejected:
    """Claim; if there is nothing, wait for up to `wait_ms` until there is."""
    until_ms = engine.now_ms() + wait_ms
    while True:
        place = _stand(engine, command) if wait_ms else None
        try:
            reply = await engine.submit(command)
            if not isinstance(reply, Claimed):
                assert isinstance(reply, Rejected)
                return reply
            rest_ms = until_ms - engine.now_ms()
            if reply.deliveries or rest_ms <= 0:
                break
            if reply.next_ms is not None:
                rest_ms = min(rest_ms, max(1, reply.next_ms - engine.now_ms()))
            if place is not None:
                await place.wait(min(CLAIM_AGAIN_S, rest_ms / 1_000))
                place = None
        finally:
            if place is not None:
                place.leave()
    if reply.deliveries:
        engine.watch.wake_group(reply.group_id, 1)  # there may be more for the next in line
    return reply


def _stand(engine: Engine, command: c.Claim) -> Place | None:
    """A place in the line of the claim's group; None while the group is new, and then the claim looks again."""
    topic = engine.latest_state.topics.get(command.topic)
    group = topic.groups.get(command.group) if topic is not None else None
    if group is None:
        return None
    return engine.watch.stand(group.group_id, choosy=command.task is not None or command.label is not None)
