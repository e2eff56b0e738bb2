"""Sweep: ends what has expired. Leases, wakes, streams, stages, keys, outcomes, results, job batches, and records past
their retention.

The driver calls it when a deadline has passed (`Broker.due`), and now and then for what has no deadline: retention,
idle groups, effect keys (`regular_sweeps`). A sweep is bounded; the next one does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from driftq.core.context import DecisionContext, Unreadable
from driftq.core.model.commands import Sweep
from driftq.core.model.effect_facts import EffectsChecked, KeysSwept, OutcomesForgotten
from driftq.core.model.facts import KEEP_ALL, KEEP_NONE, ClockSet, GroupIdled, Trimmed
from driftq.core.model.job_batch_facts import JobBatchesForgotten
from driftq.core.model.job_facts import ResultsForgotten
from driftq.core.model.replies import Done, Reply, Swept
from driftq.core.transitions.expiry import delete_stream, expire_leases, forget_stages
from driftq.core.transitions.job_batch_members import cancel_members
from driftq.core.transitions.wakes import expire_wake

if TYPE_CHECKING:
    from driftq.core.model.commands import SetClock, Subject
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State

RETENTION_LATE_MS = 30_000  # a record is dropped at most this late, or late by a tenth of its retention
RETENTION_PACE_MS = 10_000  # between two rounds of regular sweeps
SWEEP_SUBJECTS = 50  # of one regular sweep
EFFECTS_CHECKED = 5_000  # effect keys that one sweep checks
EFFECT_SWEEPS_MAX = 20  # in one round
PENDING_TRIMMED = 10_000  # offsets that one sweep drops from a log of which a group has more pending messages
PENDING_SWEEPS_MAX = 100  # of such a log in one round
RESULTS_FORGOTTEN = 2_500  # results that one sweep forgets
IDLE_MS = 3_600_000  # an idle broker records the time this often


def regular_sweeps(state: State, limits: BrokerLimits) -> Iterator[Sweep]:
    """One round of sweeps of everything that has no deadline, to be decided one after the other. What is created or
    deleted in the meantime makes no difference."""
    subjects: list[Subject] = []
    for subject in _regular_subjects(state, limits):
        subjects.append(subject)
        if len(subjects) == SWEEP_SUBJECTS or subject[0] in ("effects", "pending"):
            yield Sweep(tuple(subjects))
            subjects = []
    yield Sweep((*subjects, ("time", 0, 0)))


def _regular_subjects(state: State, limits: BrokerLimits) -> Iterator[Subject]:
    for group_id in list(state.groups) if limits.groups_idle_ms else ():
        yield "idle", group_id, 0
    for topic in list(state.topics.values()):
        if topic.config.retention_ms or topic.config.retention_bytes:
            for log_id in topic.log_ids:
                yield from _pending_subjects(state, log_id)
                yield "retention", log_id, 0
    for log_id in list(state.streams.retained):
        yield "retention", log_id, 0
    for _ in range(min(EFFECT_SWEEPS_MAX, -(-len(state.effects) // EFFECTS_CHECKED))):
        yield "effects", 0, 0


def _pending_subjects(state: State, log_id: int) -> Iterator[Subject]:
    """Sweeps of a log whose retention may end very many pending messages, for as long as they drop something."""
    for _ in range(PENDING_SWEEPS_MAX):
        log = state.logs.get(log_id)
        if log is None or not _has_many_pending(state, log):
            return
        start = log.start
        yield "pending", log_id, 0
        if log.start == start:
            return


def set_clock(ctx: DecisionContext, command: SetClock) -> Reply:
    ctx.facts.append(ClockSet(command.at_ms, ctx.now_ms))
    return Done()


def sweep(ctx: DecisionContext, command: Sweep) -> Reply:
    woken: dict[int, None] = {}
    room = ctx.limits.sweep_max
    groups = sum(subject[0] == "group" for subject in command.subjects)
    share = max(1, room // max(1, groups))  # a group with very many expired leases does not delay those of others
    for kind, number, subject_log in command.subjects:
        if room <= 0:
            break
        if kind == "group":
            room -= _sweep_group(ctx, number, subject_log, min(room, share))
            woken[number] = None
        else:
            before = len(ctx.facts)
            _SWEEPS[kind](ctx, number, room)
            room -= len(ctx.facts) - before
    return Swept(tuple(woken), len(ctx.facts))


def _sweep_group(ctx: DecisionContext, group_id: int, log_id: int, limit: int) -> int:
    group = ctx.state.groups.get(group_id)
    if group is None or log_id not in ctx.state.logs:
        return 0
    return expire_leases(ctx, group, ctx.state.progress_of(group_id, log_id), limit)


def _find_idle_group(ctx: DecisionContext, group_id: int, limit: int) -> None:
    """Mark a group as idle that is behind and was unused for long. A group that holds a lease is in use."""
    idle_ms, group = ctx.limits.groups_idle_ms, ctx.state.groups.get(group_id)
    since_ms = ctx.now_ms - idle_ms
    if not idle_ms or group is None or group.idle or group.active_ms > since_ms:
        return
    if ctx.state.topics[group.topic].dead_of:
        return
    if not _holds_leases(ctx, group) and _is_behind(ctx, group, since_ms):
        ctx.facts.append(GroupIdled(group.group_id, ctx.now_ms))


def _holds_leases(ctx: DecisionContext, group: Group) -> bool:
    return any(progress.lease_timers.after(ctx.now_ms) is not None for progress in group.progress)


def _is_behind(ctx: DecisionContext, group: Group, since_ms: int) -> bool:
    """Whether a message has been waiting for the group since then."""
    for progress in group.progress:
        if progress.floor < ctx.reader.end(progress.log_id):
            if ctx.reader.time_of(progress.log_id, progress.floor) <= since_ms:
                return True
    return False


def _sweep_stream(ctx: DecisionContext, log_id: int, limit: int) -> None:
    stream = ctx.state.streams.by_log.get(log_id)
    if stream is not None and not stream.soft_deleted and stream.is_over(ctx.now_ms):
        delete_stream(ctx, stream)


def _sweep_wake(ctx: DecisionContext, number: int, limit: int) -> None:
    expire_wake(ctx, number)


def _sweep_keys(ctx: DecisionContext, number: int, limit: int) -> None:
    until_ms = ctx.state.keys.due_ms(ctx.now_ms)
    if until_ms:
        ctx.facts.append(KeysSwept(ctx.now_ms, until_ms))


def _sweep_effects(ctx: DecisionContext, number: int, limit: int) -> None:
    """Check some effect keys. If there are more than that, the queue of keys moves on even if none of them expired."""
    effects = ctx.state.effects
    count = min(len(effects), EFFECTS_CHECKED)
    is_over = (ctx.state.is_sweepable_at(effect, ctx.now_ms) for effect in effects.next_checked(count))
    if len(effects) > count or any(is_over):
        ctx.facts.append(EffectsChecked(ctx.now_ms, count))


def _sweep_outcomes(ctx: DecisionContext, number: int, limit: int) -> None:
    count = ctx.state.outcomes.expired(ctx.now_ms, limit)
    if count:
        ctx.facts.append(OutcomesForgotten(count))


def _sweep_results(ctx: DecisionContext, number: int, limit: int) -> None:
    count = ctx.state.results.expired(ctx.now_ms, RESULTS_FORGOTTEN)
    if count:
        ctx.facts.append(ResultsForgotten(count))


def _sweep_job_batch(ctx: DecisionContext, number: int, limit: int) -> None:
    """Cancel more members of a batch that was cancelled. What is due to end ends after this rule."""
    batch = ctx.state.job_batches.by_number.get(number)
    if batch is not None and batch.cancelled_ms and batch.ended is None:
        cancel_members(ctx, batch, limit)


def _sweep_job_batches(ctx: DecisionContext, number: int, limit: int) -> None:
    numbers = ctx.state.job_batches.expired(ctx.now_ms, limit)
    if numbers:
        ctx.facts.append(JobBatchesForgotten(numbers))


def _sweep_stages(ctx: DecisionContext, number: int, limit: int) -> None:
    stages = ctx.state.stages.by_handle.items()
    expired = tuple(islice((handle for handle, entry in stages if entry.expires_ms <= ctx.now_ms), limit))
    if expired:
        forget_stages(ctx, expired)


def _record_time(ctx: DecisionContext, number: int, limit: int) -> None:
    """An idle broker records the time now and then."""
    if ctx.state.last_ms and ctx.now_ms - ctx.state.last_ms >= IDLE_MS and not ctx.facts:
        ctx.facts.append(ClockSet(ctx.now_ms, ctx.now_ms))


# --- retention ---


def _retain_log(ctx: DecisionContext, log_id: int, limit: int) -> None:
    """Trim a log of a topic, or of a stream, to its retention."""
    log, stream = ctx.state.logs.get(log_id), ctx.state.streams.retained.get(log_id)
    if log is None or log.start == log.end:
        return
    if log.topic:
        config = ctx.state.topics[log.topic].config
        _retain(ctx, log_id, config.retention_ms, config.retention_bytes, _kept_from(ctx, log, config.keep_unread))
    elif stream is not None and not stream.soft_deleted:
        _retain(ctx, log_id, stream.created.retention_ms, stream.created.retention_bytes, log.end)


def _kept_from(ctx: DecisionContext, log: Log, keep_unread: str) -> int:
    """The first offset that retention must keep for a group: the lowest floor of those for which it waits; the end of
    the log if there is none. It stops waiting for a group that has used nothing for a while although something was
    there, so that a reader that is gone does not keep a log permanently."""
    since_ms, kept = ctx.now_ms - ctx.limits.keep_unread_ms, ctx.reader.end(log.log_id)
    if keep_unread == KEEP_NONE or not ctx.limits.keep_unread_ms:
        return kept
    for group_id in log.readers:
        group = ctx.state.groups[group_id]
        first = max(log.start, group.progress[log.partition].floor)
        if first >= kept or group.idle or not (group.commits_offsets or keep_unread == KEEP_ALL):
            continue
        if group.active_ms > since_ms or ctx.reader.time_of(log.log_id, first) > since_ms:
            kept = first
    return kept


def _retain(ctx: DecisionContext, log_id: int, retention_ms: int, retention_bytes: int, kept: int) -> None:
    """Trim a log to its retention, but not past `kept`: whole spans, oldest first. The span being written is kept when
    trimming by size; by age it is trimmed too, so that a topic with little traffic does not keep records longer."""
    log = ctx.state.logs[log_id]
    start = log.start
    if kept <= start:
        return
    spans = ctx.reader.spans(log_id)
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
    start = min(start, kept)
    if _has_many_pending(ctx.state, log):
        start = min(start, log.start + PENDING_TRIMMED)
    if start > log.start:
        ctx.facts.append(Trimmed(log_id, start, ctx.now_ms))


def _has_many_pending(state: State, log: Log) -> bool:
    """Whether a trim of the whole log would take too long. A trim goes through all delayed messages of a log, so with
    many of them one trim takes less time than many."""
    if len(log.delays) > PENDING_TRIMMED:
        return False
    if state.job_batches.first_of_many(log.log_id, PENDING_TRIMMED) is not None:
        return True
    return any(len(state.progress_of(group_id, log.log_id).entries) > PENDING_TRIMMED for group_id in log.readers)


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


_SWEEPS: dict[str, Callable[[DecisionContext, int, int], None]] = {
    "stream": _sweep_stream,
    "wake": _sweep_wake,
    "keys": _sweep_keys,
    "effects": _sweep_effects,
    "outcomes": _sweep_outcomes,
    "results": _sweep_results,
    "job_batch": _sweep_job_batch,
    "job_batches": _sweep_job_batches,
    "stages": _sweep_stages,
    "retention": _retain_log,
    "pending": _retain_log,
    "idle": _find_idle_group,
    "time": _record_time,
}
