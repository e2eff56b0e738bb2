"""What time ends by itself: leases, streams, stages, remembered outcomes and old records. Sweeps are bounded; what is
left over is swept next."""

from __future__ import annotations

from driftq.core.activity import GroupIdled
from driftq.core.case import Case, Unreadable
from driftq.core.commands import SetClock, Sweep
from driftq.core.facts import KeysSwept, Trimmed
from driftq.core.groups import Group
from driftq.core.outcomes import OutcomesForgotten
from driftq.core.replies import Done, Reply, Swept
from driftq.core.rules import subscriptions
from driftq.core.rules.failing import expire_leases
from driftq.core.rules.stages import forget_handles
from driftq.core.rules.streams import delete_over
from driftq.core.timers import ClockSet

RETENTION_LATE_MS = 30_000  # a record is gone this long after its time, or after a tenth of it, at the latest
RETENTION_PACE_MS = 10_000  # between two sweeps
IDLE_MS = 3_600_000  # a broker without work notes the time this often


def set_clock(case: Case, command: SetClock) -> Reply:
    case.facts.append(ClockSet(command.at_ms, case.now_ms))
    return Done()


def sweep(case: Case, command: Sweep) -> Reply:
    woken: dict[int, None] = {}
    room = case.limits.sweep_max
    for kind, number, log_id in command.subjects:
        if room <= 0:
            break
        if kind == "group":
            room -= _sweep_group(case, number, log_id, room)
            woken[number] = None
        elif kind == "stream":
            _sweep_stream(case, number)
        elif kind == "wake":
            subscriptions.expire(case, number)
        elif kind == "keys":
            until_ms = case.state.keys.due_ms(case.now_ms)
            if until_ms:
                case.facts.append(KeysSwept(case.now_ms, until_ms))
        elif kind == "outcomes":
            _sweep_outcomes(case, room)
        else:
            _sweep_stages(case)
    if command.retention:
        _find_idle_groups(case)
        for topic in case.state.topics.values():
            if topic.config.retention_ms or topic.config.retention_bytes:
                for each in topic.log_ids:
                    _retain(case, each, topic.config.retention_ms, topic.config.retention_bytes)
        for stream in case.state.streams.retained.values():
            if not stream.soft_deleted:
                _retain(case, stream.log_id, stream.created.retention_ms, stream.created.retention_bytes)
        if case.state.last_ms and case.now_ms - case.state.last_ms >= IDLE_MS and not case.facts:
            case.facts.append(ClockSet(case.now_ms, case.now_ms))
    return Swept(tuple(woken), len(case.facts))


def _sweep_group(case: Case, group_id: int, log_id: int, most: int) -> int:
    group = case.state.groups.get(group_id)
    if group is None or log_id not in case.state.logs:
        return 0
    return expire_leases(case, group, case.state.progress_of(group_id, log_id), most)


def _find_idle_groups(case: Case) -> None:
    """Groups that are behind and did nothing for long. What they hold under a lease counts as doing something."""
    idle_ms = case.limits.groups_idle_ms
    if not idle_ms:
        return
    since_ms = case.now_ms - idle_ms
    for group in case.state.groups.values():
        if group.idle or group.active_ms > since_ms or case.state.topics[group.topic].dead_of:
            continue
        if len(case.facts) >= case.limits.sweep_max:
            return
        if not _holds_leases(case, group) and _is_behind(case, group, since_ms):
            case.facts.append(GroupIdled(group.group_id, case.now_ms))


def _holds_leases(case: Case, group: Group) -> bool:
    return any(
        lease.live and until_ms > case.now_ms
        for progress in group.progress
        for until_ms, _, lease in progress.lease_heap
    )


def _is_behind(case: Case, group: Group, since_ms: int) -> bool:
    """Whether something waits for it since then."""
    for progress in group.progress:
        if progress.floor < case.reader.end(progress.log_id):
            if case.reader.time_of(progress.log_id, progress.floor) <= since_ms:
                return True
    return False


def _sweep_stream(case: Case, log_id: int) -> None:
    stream = case.state.streams.by_log.get(log_id)
    if stream is not None and not stream.soft_deleted and stream.is_over(case.now_ms):
        delete_over(case, stream)


def _sweep_outcomes(case: Case, most: int) -> None:
    count = case.state.outcomes.expired(case.now_ms, most)
    if count:
        case.facts.append(OutcomesForgotten(count))


def _sweep_stages(case: Case) -> None:
    over = tuple(handle for handle, entry in case.state.stages.by_handle.items() if entry.expires_ms <= case.now_ms)
    if over:
        forget_handles(case, over)


def _retain(case: Case, log_id: int, retention_ms: int, retention_bytes: int) -> None:
    """Forget what is too old or too much: whole spans go, oldest first. By size the one being written stays; by age
    records go out of it as well, so that a topic with little traffic keeps nothing for longer."""
    spans = case.reader.spans(log_id)
    log = case.state.logs[log_id]
    start = log.start
    size = sum(span[2] for span in spans)
    for _, end, span_bytes, last_ms in spans[:-1]:
        too_old = retention_ms and last_ms <= case.now_ms - retention_ms
        too_much = retention_bytes and size > retention_bytes
        if not (too_old or too_much):
            break
        start = max(start, end)
        size -= span_bytes
    if retention_ms and spans and spans[-1][0] <= start < spans[-1][1]:
        start = max(start, _young_from(case, log_id, retention_ms, start))
    if start > log.start:
        case.facts.append(Trimmed(log_id, start, case.now_ms))


def _young_from(case: Case, log_id: int, retention_ms: int, start: int) -> int:
    """Where the records begin that are young enough, once some are older than they may get until the next sweeps. Not
    sooner: each step is a fact."""
    slack_ms = max(RETENTION_LATE_MS, retention_ms // 10) - 2 * RETENTION_PACE_MS
    try:
        if case.reader.offset_at(log_id, case.now_ms - retention_ms - slack_ms) <= start:
            return start
        return case.reader.offset_at(log_id, case.now_ms - retention_ms + 1)
    except Unreadable:
        return start  # damage: its span goes as a whole
