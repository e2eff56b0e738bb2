"""Messages whose effect is committed for the group: a claim settles them instead of delivering them.

The record decides: the effect (tenant, topic, group, idempotency key of the envelope) must be committed. Reading every
record would be slow, so a claim checks only these:

1. Messages that were delivered before, if the group has committed effects at all.
2. Fresh messages that are known to belong to a committed effect (`core.state.effects.CommittedKeys`).

Effects under other keys do not matter: a worker may have several effects for one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.context import DecisionContext, Unreadable
from driftq.core.model.commands import EffectKey
from driftq.core.model.facts import SKIPPED, Settled
from driftq.core.model.ranges import runs
from driftq.core.state.effects import EffectStatus, effect_scope
from driftq.wire.message import read_head

if TYPE_CHECKING:
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log


def has_committed_effects(ctx: DecisionContext, group: Group) -> bool:
    """Whether any message of the group may have to be skipped."""
    return ctx.state.effects.committed.has_any(group.topic, group.name)


def committed_in(ctx: DecisionContext, group: Group, log: Log, first: int, end: int) -> list[int]:
    """The fresh messages of a range whose effect is committed."""
    places = ctx.state.effects.committed.places(group.group_id, log.log_id)
    return [offset for offset in places.within(first, end) if is_committed(ctx, group, log, offset)]


def is_committed(ctx: DecisionContext, group: Group, log: Log, offset: int) -> bool:
    try:
        envelope = read_head(ctx.reader.head(log.log_id, offset)).envelope
    except Unreadable:
        return False
    if envelope is None or not envelope.idempotency_key:
        return False
    scope = effect_scope(EffectKey(envelope.tenant_id, group.topic, group.name, envelope.idempotency_key))
    effect = ctx.state.effects.find(scope)
    if effect is None or effect.status is not EffectStatus.COMMITTED:
        return False
    return not ctx.state.is_forgettable_at(effect, ctx.now_ms)


def skip(ctx: DecisionContext, group: Group, log: Log, offsets: list[int]) -> None:
    """Settle messages, in ascending order, without a delivery."""
    if offsets:
        ctx.facts.append(Settled(group.group_id, log.log_id, tuple(runs(offsets)), SKIPPED, ctx.now_ms))
