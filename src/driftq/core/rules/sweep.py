"""What time ends by itself: leases, streams, stages, remembered outcomes and old records. Sweeps are bounded; what is
left over is swept next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.context import DecisionContext, Unreadable
from driftq.core.model.effect_facts import KeysSwept, OutcomesForgotten
from driftq.core.model.facts import ClockSet, GroupIdled, Trimmed
from driftq.core.model.replies import Done, Reply, Swept
from driftq.core.transitions.expiry import delete_stream, forget_stages
from driftq.core.transitions.lease_expiry import expire_leases
from driftq.core.transitions.wakes import expire_wake

if TYPE_CHECKING:
    from driftq.core.model.commands import SetClock, Sweep
    from driftq.core.state.groups import Group

RETENTION_LATE_MS = 30_000  # a record is gone this long after its time, or after a tenth of it, at the latest
RETENTION_PACE_MS = 10_000  # between two sweeps
IDLE_MS = 3_600_000  # a broker without work notes the time this often


def set_clock(ctx: DecisionContext, command: SetClock) -> Reply:
    ctx.facts.append(ClockSet(command.at_ms, ctx.now_ms))
    return Done()


def sweep(ctx: DecisionContext, command: Sweep) -> Reply:
    woken: dict[int, None] = {}
    room = ctx.limits.sweep_max
    for kind, number, log_id in command.subjects:
        if room <= 0:
            break
        if kind == "group":
            room -= _sweep_group(ctx, number, log_id, room)
            woken[number] = None
        elif kind == "stream":
            _sweep_stream(ctx, number)
        elif kind == "wake":
            expire_wake(ctx, number)
        elif kind == "keys":
            until_ms = ctx.state.keys.due_ms(ctx.now_ms)
            if until_ms:
                ctx.facts.append(KeysSwept(ctx.now_ms, until_ms))
        elif kind == "outcomes":
            _sweep_outcomes(ctx, room)
        else:
            _sweep_stages(ctx)
    if command.retention:
        _find_idle_groups(ctx)
        for topic in ctx.state.topics.values():
            if topic.config.retention_ms or topic.config.retention_bytes:
                for each in topic.log_ids:
                    _retain(ctx, each, topic.config.retention_ms, topic.config.retention_bytes)
        for stream in ctx.state.streams.retained.values():
            if not stream.soft_deleted:
                _retain(ctx, stream.log_id, stream.created.retention_ms, stream.created.retention_bytes)
        if ctx.state.last_ms and ctx.now_ms - ctx.state.last_ms >= IDLE_MS and not ctx.facts:
            ctx.facts.append(ClockSet(ctx.now_ms, ctx.now_ms))
    return Swept(tuple(woken), len(ctx.facts))


def _sweep_group(ctx: DecisionContext, group_id: int, log_id: int, most: int) -> int:
    group = ctx.state.groups.get(group_id)
    if group is None or log_id not in ctx.state.logs:
        return 0
    return expire_leases(ctx, group, ctx.state.progress_of(group_id, log_id), most)


def _find_idle_groups(ctx: DecisionContext) -> None:
    """Groups that are behind and did nothing for long. What they hold under a lease counts as doing something."""
    idle_ms = ctx.limits.groups_idle_ms
    if not idle_ms:
        return
    since_ms = ctx.now_ms - idle_ms
    for group in ctx.state.groups.values():
        if group.idle or group.active_ms > since_ms or ctx.state.topics[group.topic].dead_of:
            continue
        if len(ctx.facts) >= ctx.limits.sweep_max:
            return
        if not _holds_leases(ctx, group) and _is_behind(ctx, group, since_ms):
            ctx.facts.append(GroupIdled(group.group_id, ctx.now_ms))


def _holds_leases(ctx: DecisionContext, group: Group) -> bool:
    return any(
        lease.live and until_ms > ctx.now_ms
        for progress in group.progress
        for until_ms, _, lease in progress.lease_heap
    )


def _is_behind(ctx: DecisionContext, group: Group, since_ms: int) -> bool:
    """Whether something waits for it since then."""
    for progress in group.progress:
        if progress.floor < ctx.reader.end(progress.log_id):
            if ctx.reader.time_of(progress.log_id, progress.floor) <= since_ms:
                return True
    return False


def _sweep_stream(ctx: DecisionContext, log_id: int) -> None:
    stream = ctx.state.streams.by_log.get(log_id)
    if stream is not None and not stream.soft_deleted and stream.is_over(ctx.now_ms):
        delete_stream(ctx, stream)


def _sweep_outcomes(ctx: DecisionContext, most: int) -> None:
    count = ctx.state.outcomes.expired(ctx.now_ms, most)
    if count:
        ctx.facts.append(OutcomesForgotten(count))


def _sweep_stages(ctx: DecisionContext) -> None:
    over = tuple(handle for handle, entry in ctx.state.stages.by_handle.items() if entry.expires_ms <= ctx.now_ms)
    if over:
        forget_stages(ctx, over)


def _retain(ctx: DecisionContext, log_id: int, retention_ms: int, retention_bytes: int) -> None:
    """Forget what is too old or too much: whole spans go, oldest first. By size the one being written stays; by age
    records go out of it as well, so that a topic with little traffic keeps nothing for longer."""
    spans = ctx.reader.spans(log_id)
    log = ctx.state.logs[log_id]
    start = log.start
    size = sum(span[2] for span in spans)
    for _, end, span_bytes, last_ms in spans[:-1]:
        too_old = retention_ms and last_ms <= ctx.now_ms - retention_ms
        too_much = retention_bytes and size > retention_bytes
        if not (too_old or too_much):
            break
        start = max(start, end)
        size -= span_bytes
    if retention_ms and spans and spans[-1][0] <= start < spans[-1][1]:
        start = max(start, _young_from(ctx, log_id, retention_ms, start))
    if start > log.start:
        ctx.facts.append(Trimmed(log_id, start, ctx.now_ms))


def _young_from(ctx: DecisionContext, log_id: int, retention_ms: int, start: int) -> int:
    """Where the records begin that are young enough, once some are older than they may get until the next sweeps. Not
    sooner: each step is a fact."""
    slack_ms = max(RETENTION_LATE_MS, retention_ms // 10) - 2 * RETENTION_PACE_MS
    try:
        if ctx.reader.offset_at(log_id, ctx.now_ms - retention_ms - slack_ms) <= start:
            return start
        return ctx.reader.offset_at(log_id, ctx.now_ms - retention_ms + 1)
    except Unreadable:
        return start  # damage: its span goes as a whole
