"""Messages whose effect is committed for the group: they are settled at dispatch and not delivered.

The record decides: the effect (tenant, topic, group, idempotency key of the envelope) must be COMMITTED. A message that
was delivered before is always looked at, if the group has committed effects at all; a fresh one if it is known to be
the message of such an effect (`core.state.idempotency`). An effect under any other key says nothing about the message:
a worker may have several for one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.context import DecisionContext, Unreadable
from driftq.core.model.commands import EffectKey, Held, Keep
from driftq.core.model.facts import SKIPPED, Extended, Settled
from driftq.core.model.ranges import Range, runs
from driftq.core.model.replies import Rejected, Reply, Settlement
from driftq.core.rules.topics import bad_partition, group_of
from driftq.core.state.idempotency import EffectStatus, effect_scope
from driftq.core.state.timeouts import extensions
from driftq.wire.message import read_head

if TYPE_CHECKING:
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress


def has_done(ctx: DecisionContext, group: Group) -> bool:
    """Whether it is worth looking at all."""
    return ctx.state.effects.committed.has_any(group.topic, group.name)


def done_in(ctx: DecisionContext, group: Group, log: Log, first: int, end: int) -> list[int]:
    """The fresh messages of a range that are not to be delivered."""
    places = ctx.state.effects.committed.places(group.group_id, log.log_id)
    return [offset for offset in places.within(first, end) if is_done(ctx, group, log, offset)]


def is_done(ctx: DecisionContext, group: Group, log: Log, offset: int) -> bool:
    try:
        envelope = read_head(ctx.reader.record(log.log_id, offset).head).envelope
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


# --- Keeping the leases of a connection that reads slowly but settles: see `engine.consumer_window` for which and
# when


def keep(ctx: DecisionContext, command: Keep) -> Reply:
    group = group_of(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    ranges: dict[int, list[Range]] = {}
    for held in command.held:
        if not 0 <= held.partition < len(group.progress):
            return bad_partition(held.partition, ctx.state.topics[group.topic])
        progress = group.progress[held.partition]
        ranges.setdefault(progress.log_id, []).extend(_shorter(progress, held, ctx.now_ms, command.until_ms))
    for log_id, found in ranges.items():
        progress = ctx.state.progress_of(group.group_id, log_id)
        for until_ms, some in extensions(ctx.state.logs[log_id], progress, found, command.until_ms).items():
            ctx.facts.append(Extended(group.group_id, log_id, tuple(some), until_ms))
    return Settlement((), command.until_ms)


def _shorter(progress: Progress, held: Held, now_ms: int, until_ms: int) -> list[Range]:
    """What is held under the token by a lease that still runs and ends before `until_ms`."""
    found = [
        (low, high)
        for low, high, lease in progress.held.overlapping(held.first, held.end)
        if lease.token == held.token and now_ms < lease.until_ms < until_ms
    ]
    for offset in progress.entries_in(held.first, held.end):
        entry = progress.entries[offset]
        lease = entry.lease
        if entry.held and lease is not None and lease.token == held.token and now_ms < lease.until_ms < until_ms:
            found.append((offset, offset + 1))
    return sorted(found)
