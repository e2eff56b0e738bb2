"""Messages whose effect is committed for the group: they are settled at dispatch and not delivered.

The record decides: the effect (tenant, topic, group, idempotency key of the envelope) must be COMMITTED. A message that
was delivered before is always looked at, if the group has committed effects at all; a fresh one if it is known to be
the message of such an effect (`core.committed_keys`). An effect under any other key says nothing about the message: a
worker may have several for one message.
"""

from __future__ import annotations

from driftq.core.case import Case, Unreadable
from driftq.core.commands import EffectKey
from driftq.core.facts import SKIPPED, Settled
from driftq.core.groups import Group
from driftq.core.idempotency import Status, effect_scope
from driftq.core.logs import Log
from driftq.core.ranges import runs
from driftq.wire.message import read_head


def has_done(case: Case, group: Group) -> bool:
    """Whether it is worth looking at all."""
    return case.state.effects.committed.has_any(group.topic, group.name)


def done_in(case: Case, group: Group, log: Log, first: int, end: int) -> list[int]:
    """The fresh messages of a range that are not to be delivered."""
    places = case.state.effects.committed.places(group.group_id, log.log_id)
    return [offset for offset in places.within(first, end) if is_done(case, group, log, offset)]


def is_done(case: Case, group: Group, log: Log, offset: int) -> bool:
    try:
        envelope = read_head(case.reader.record(log.log_id, offset).head).envelope
    except Unreadable:
        return False
    if envelope is None or not envelope.idempotency_key:
        return False
    scope = effect_scope(EffectKey(envelope.tenant_id, group.topic, group.name, envelope.idempotency_key))
    effect = case.state.effects.find(scope)
    if effect is None or effect.status is not Status.COMMITTED:
        return False
    return not case.state.is_forgettable_at(effect, case.now_ms)


def skip(case: Case, group: Group, log: Log, offsets: list[int]) -> None:
    """Settle messages, in ascending order, without a delivery."""
    if offsets:
        case.facts.append(Settled(group.group_id, log.log_id, tuple(runs(offsets)), SKIPPED, case.now_ms))
