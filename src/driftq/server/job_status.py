"""The state of a job: for each group that reads its topic, and over all of them. Pure reads of the broker's state.

    id ──find_job──▶ log and offset ──job_status──▶ JobStatus: a state for each group, attempts, progress
                                     └─result_of──▶ JobResult: whether it has ended, and with what

A job without an id of its own is named `topic:partition:offset`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, Raw
from msgspec.structs import replace

from driftq.core.model.commands import EffectKey, ProduceKey
from driftq.core.state.effects import EffectStatus
from driftq.core.state.idempotency_keys import ProducedKey, job_key
from driftq.core.state.jobs import Attempt, claims
from driftq.core.state.progress import MessageState
from driftq.wire.fields import to_rfc3339
from driftq.wire.jobs import JobAttempt, JobGroupState, JobResult, JobStateName

if TYPE_CHECKING:
    from driftq.core.model.job_facts import ResultStored
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Entry
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State
    from driftq.engine.queries import StateView

_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)

# The state of a job over all groups that claim it: the least finished one, then the worst end.
_STATE_ORDER: tuple[JobStateName, ...] = (
    "running", "retrying", "scheduled", "ready", "dead", "cancelled", "finished", "succeeded", "skipped",
)  # fmt: skip
_FINAL_STATES: dict[str, JobStateName] = {
    "succeeded": "succeeded", "dead": "dead", "cancelled": "cancelled", "skipped": "skipped",
}  # fmt: skip
ENDED = frozenset(("dead", "cancelled", "finished", "succeeded", "skipped"))


class JobStatus(NamedTuple):
    """Where a job is, and its state."""

    log_id: int
    topic: str
    partition: int
    offset: int
    is_kept: bool  # its record is not deleted
    is_made_due: bool  # its delay was ended early
    state: JobStateName | None  # None: no group claims it yet
    groups: list[JobGroupState]


def job_status(view: StateView, tenant: str, topic_name: str, job_id: str) -> JobStatus | None:
    state = view.state
    key = find_job(state, view.now_ms, tenant, topic_name, job_id)
    log = state.logs[key.log_id] if key is not None else None
    if key is None or log is None or key.offset >= log.end:
        return None
    is_kept = key.offset >= log.start
    groups = [_group_state(view, group, log, key.offset, tenant, job_id) for group in _groups(view, log)]
    if not (is_kept or key.ttl_ms or any(result_at(view, group, log, key.offset) for group in _groups(view, log))):
        return None  # named by its offset, and deleted
    overall = _overall(groups)
    if overall is None and key.offset in log.cancelled:
        overall = "cancelled"
    elif overall is None and not is_kept:
        overall = "finished"
    is_made_due = key.offset in log.made_due
    return JobStatus(log.log_id, log.topic, log.partition, key.offset, is_kept, is_made_due, overall, groups)


def _groups(view: StateView, log: Log) -> list[Group]:
    """Without those that read jobs and do not run them."""
    return [group for group in view.state.topics[log.topic].groups.values() if not group.commits_offsets]


def find_job(state: State, now_ms: int, tenant: str, topic_name: str, job_id: str) -> ProducedKey | None:
    key = state.keys.job_of(ProduceKey(tenant, topic_name, job_key(job_id)), now_ms)
    return key if key is not None and key.log_id in state.logs else _by_offset(state, job_id)


def _by_offset(state: State, job_id: str) -> ProducedKey | None:
    """The job named `topic:partition:offset`."""
    name, _, offset = job_id.rpartition(":")
    name, _, partition = name.rpartition(":")
    topic = state.topics.get(name)
    if topic is None or not all(_NUMBER.fullmatch(part) for part in (partition, offset)):
        return None
    if int(partition) >= len(topic.log_ids):
        return None
    return ProducedKey(topic.log_ids[int(partition)], int(offset), 1, 0, 0)


def _group_state(view: StateView, group: Group, log: Log, offset: int, tenant: str, job_id: str) -> JobGroupState:
    """The job's state for one group, its attempts, and the result if a worker committed one under the job's id."""
    state = view.state
    place, lease, entry = group.progress[log.partition].state_of(offset)
    history = state.job_attempts.of(log.log_id, offset)
    attempts = [attempt for attempt in history if attempt.group_id == group.group_id]
    name = _state_name(place, entry, attempts, view.now_ms)
    if name == "finished" and history:
        name = "skipped"  # other groups have attempts, this one has none
    if not (place in (MessageState.SETTLED, MessageState.HELD) or attempts or claims(group, log, offset)):
        name = "unclaimed"
    is_waiting = entry is not None and place is MessageState.RESTING
    is_held = lease is not None and place is MessageState.HELD
    report = state.reports.find(group.group_id, log.log_id, offset)
    effect = state.effects.of(EffectKey(tenant, log.topic, group.name, job_id))
    is_committed = effect is not None and effect.status is EffectStatus.COMMITTED
    return JobGroupState(
        group=group.name,
        state=name,
        due_at=to_rfc3339(entry.retry_at_ms) if entry is not None and is_waiting else None,
        owner=lease.owner if lease is not None and is_held else None,
        lease_until=to_rfc3339(lease.until_ms) if lease is not None and is_held else None,
        attempts=[attempt_info(attempt) for attempt in attempts if attempt.number],
        result=effect.result.decode("utf-8", "replace") if effect is not None and is_committed else None,
        progress=Raw(report.progress) if report is not None else UNSET,
        progress_at=to_rfc3339(report.at_ms) if report is not None else None,
    )


def _state_name(place: MessageState, entry: Entry | None, attempts: list[Attempt], now_ms: int) -> JobStateName:
    if place is MessageState.SETTLED:
        return _FINAL_STATES.get(attempts[-1].end if attempts else "", "finished")
    if place is MessageState.RESTING and entry is not None:
        if entry.attempts or entry.releases:
            return "retrying"
        return "scheduled" if entry.retry_at_ms > now_ms else "ready"
    return "running" if place is MessageState.HELD else "ready"


def attempt_info(attempt: Attempt) -> JobAttempt:
    """An attempt as the API shows it."""
    return JobAttempt(
        attempt=attempt.number,
        owner=attempt.owner,
        began_at=to_rfc3339(attempt.began_ms),
        ended_at=to_rfc3339(attempt.ended_ms) if attempt.end else None,
        end=attempt.end or "running",  # type: ignore[arg-type]  # one of the names that `core.state.jobs` uses
        error=attempt.error,
    )


def _overall(groups: list[JobGroupState]) -> JobStateName | None:
    """The state over all groups that claim the job; None if no group claims it."""
    names = {group.state for group in groups}
    return next((name for name in _STATE_ORDER if name in names), None)


class JobSummary(NamedTuple):
    """A job over all groups that claim it, for lists."""

    state: JobStateName
    attempts: int
    error: str
    owner: str
    due_ms: int


def job_summary(view: StateView, log: Log, offset: int) -> JobSummary:
    """Cheap: nothing is read from the log."""
    history = view.state.job_attempts.of(log.log_id, offset)
    names: set[JobStateName] = set()
    attempts, due_ms, error, owner = (
        sum(attempt.number > 0 for attempt in history),
        0,
        history[-1].error if history else "",
        "",
    )
    for group in view.state.topics[log.topic].groups.values():
        if group.commits_offsets:
            continue
        place, lease, entry = group.progress[log.partition].state_of(offset)
        own = [attempt for attempt in history if attempt.group_id == group.group_id]
        name = _state_name(place, entry, own, view.now_ms)
        if name == "finished" and history:
            name = "skipped"
        if not (place in (MessageState.SETTLED, MessageState.HELD) or own or claims(group, log, offset)):
            name = "unclaimed"
        names.add(name)
        if entry is not None:
            attempts, error = max(attempts, entry.attempts), error or entry.error
            due_ms = entry.retry_at_ms if place is MessageState.RESTING else due_ms
        if lease is not None and place is MessageState.HELD:
            owner = lease.owner
    overall = next((name for name in _STATE_ORDER if name in names), None)
    if overall is None:
        overall = "cancelled" if offset in log.cancelled else "scheduled" if offset in log.delays.times else "ready"
    return JobSummary(overall, attempts, error, owner, due_ms)


# --- results ---


def result_at(view: StateView, group: Group, log: Log, offset: int) -> ResultStored | None:
    return view.state.results.find(group.group_id, log.log_id, offset, view.now_ms)


def result_of(view: StateView, status: JobStatus, job_id: str, group_name: str) -> JobResult:
    """A job's result for one group, or without a name over all groups that claim it: the first result that a group
    stored, and the error of the first one in which it died."""
    log = view.state.logs[status.log_id]
    shown = [group for group in status.groups if group_name in ("", group.group) and group.state != "unclaimed"]
    if group_name:
        state: JobStateName = shown[0].state if shown else status.state if status.state == "cancelled" else "ready"
    else:
        state = status.state or "ready"
    reply = JobResult(id=job_id, topic=status.topic, state=state, done=state in ENDED)
    if not reply.done:
        running = next((group for group in shown if group.progress is not UNSET), None)
        return replace(reply, progress=running.progress, progress_at=running.progress_at) if running else reply
    groups = view.state.topics[status.topic].groups
    stored = [result_at(view, groups[group.group], log, status.offset) for group in shown]
    value = next((result for result in stored if result is not None and not result.traceback), None)
    ended_ms = _ended_ms(view, status, groups, shown)
    forgotten_ms = view.state.results.forgotten_ms
    is_forgotten = value is None and state not in ("dead", "cancelled") and 0 < forgotten_ms >= ended_ms
    return replace(
        reply,
        result=Raw(value.result) if value is not None else None,
        error=next((group.attempts[-1].error for group in shown if group.state == "dead" and group.attempts), ""),
        traceback=next((result.traceback for result in stored if result is not None and result.traceback), ""),
        ended_at=to_rfc3339(ended_ms) if ended_ms else None,
        expired=is_forgotten,
    )


def _ended_ms(view: StateView, status: JobStatus, groups: dict[str, Group], shown: list[JobGroupState]) -> int:
    """When the job ended for the last of these groups; 0 if that is forgotten."""
    numbers = {groups[group.group].group_id for group in shown}
    history = view.state.job_attempts.of(status.log_id, status.offset)
    return max((attempt.ended_ms for attempt in history if attempt.group_id in numbers), default=0)
