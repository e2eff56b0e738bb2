"""Sweep: ends what has expired. Leases, wakes, streams, stages, keys, outcomes, and records past their retention.

The driver calls it when a deadline has passed (`Broker.due`). A sweep is bounded; the next one does the rest.
"""

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

RETENTION_LATE_MS = 30_000  # a record is dropped at most this late, or late by a tenth of its retention
RETENTION_PACE_MS = 10_000  # between two sweeps with retention
IDLE_MS = 3_600_000  # an idle broker records the time this often


def set_clock(ctx: DecisionContext, command: SetClock) -> Reply:
    ctx.facts.append(ClockSet(command.at_ms, ctx.now_ms))
    return Done()


def sweep(ctx: DecisionContext, command: Sweep) -> Reply:
    woken: dict[int, None] = {}
    room = ctx.limits.sweep_max
    for kind, number, subject_log in command.subjects:
        if room <= 0:
            break
        if kind == "group":
            room -= _sweep_group(ctx, number, subject_log, room)
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
                for log_id in topic.log_ids:
                    _retain(ctx, log_id, topic.config.retention_ms, topic.config.retention_bytes)
        for stream in ctx.state.streams.retained.values():
            if not stream.soft_deleted:
                _retain(ctx, stream.log_id, stream.created.retention_ms, stream.created.retention_bytes)
        if ctx.state.last_ms and ctx.now_ms - ctx.state.last_ms >= IDLE_MS and not ctx.facts:
            ctx.facts.append(ClockSet(ctx.now_ms, ctx.now_ms))
    return Swept(tuple(woken), len(ctx.facts))


def _sweep_group(ctx: DecisionContext, group_id: int, log_id: int, limit: int) -> int:
    group = ctx.state.groups.get(group_id)
    if group is None or log_id not in ctx.state.logs:
        return 0
    return expire_leases(ctx, group, ctx.state.progress_of(group_id, log_id), limit)


def _find_idle_groups(ctx: DecisionContext) -> None:
    """Mark groups as idle that are behind and were unused for long. A group that holds a lease is in use."""
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
    """Whether a message has been waiting for the group since then."""
    for progress in group.progress:
        if progress.floor < ctx.reader.end(progress.log_id):
            if ctx.reader.time_of(progress.log_id, progress.floor) <= since_ms:
                return True
    return False


def _sweep_stream(ctx: DecisionContext, log_id: int) -> None:
    stream = ctx.state.streams.by_log.get(log_id)
    if stream is not None and not stream.soft_deleted and stream.is_over(ctx.now_ms):
        delete_stream(ctx, stream)


def _sweep_outcomes(ctx: DecisionContext, limit: int) -> None:
    count = ctx.state.outcomes.expired(ctx.now_ms, limit)
    if count:
        ctx.facts.append(OutcomesForgotten(count))


def _sweep_stages(ctx: DecisionContext) -> None:
    expired = tuple(handle for handle, entry in ctx.state.stages.by_handle.items() if entry.expires_ms <= ctx.now_ms)
    if expired:
        forget_stages(ctx, expired)


def _retain(ctx: DecisionContext, log_id: int, retention_ms: int, retention_bytes: int) -> None:
    """Trim a log to its retention: whole spans, oldest first. The span being written is kept when trimming by size; by
    age it is trimmed too, so that a topic with little traffic does not keep records longer."""
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
    """The first offset that is young enough, if some records are too old by more than the slack. The slack avoids a
    fact per sweep."""
    slack_ms = max(RETENTION_LATE_MS, retention_ms // 10) - 2 * RETENTION_PACE_MS
    try:
        if ctx.reader.offset_at(log_id, ctx.now_ms - retention_ms - slack_ms) <= start:
            return start
        return ctx.reader.offset_at(log_id, ctx.now_ms - retention_ms + 1)
    except Unreadable:
        return start  # damaged: its span is dropped as a whole
