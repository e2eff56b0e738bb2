"""What is shown of a job batch and of its members. Pure reads of the broker's state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw

from driftq.core.model import job_batch_facts as b
from driftq.server.access.identity import Verdict, decide
from driftq.server.job_status import job_summary
from driftq.wire.fields import to_rfc3339
from driftq.wire.job_batches import (
    JobBatchCounts,
    JobBatchInfo,
    JobBatchMember,
    JobBatchMembersReply,
    JobBatchMessage,
    JobBatchStateName,
    Kind,
)

if TYPE_CHECKING:
    from driftq.core.state.job_batches import JobBatch
    from driftq.engine.queries import StateView
    from driftq.server.access.identity import Identity

RESULTS_BYTES = 1 << 20  # of one page, about

_ENDED: dict[int, JobBatchStateName] = {b.SUCCEEDED: "succeeded", b.FAILED: "failed", b.CANCELLED: "cancelled"}
_MEMBER_STATES = {
    b.SUCCEEDED: "succeeded", b.FAILED: "failed", b.CANCELLED: "cancelled", b.DROPPED: "dropped", b.WAITING: "waiting",
}  # fmt: skip


def is_allowed(identity: Identity | None, verb: str, batch: JobBatch) -> bool:
    """Whether a caller has a right on every topic that a batch, or what is nested in it, uses."""
    return all(decide(identity, verb, topic) is Verdict.ALLOWED for topic in batch.topics)


def state_of(batch: JobBatch) -> JobBatchStateName:
    if batch.ended is not None:
        return _ENDED[batch.ended.state]
    if batch.cancelled_ms:
        return "cancelling"
    return "running" if batch.sealed else "open"


def kind_of(batch: JobBatch) -> Kind:
    return "chain" if batch.created.created.kind == b.CHAIN else "group"


def info_of(view: StateView, batch: JobBatch) -> JobBatchInfo:
    created, ended = batch.created, batch.ended
    counts = batch.counts
    parent = view.state.job_batches.by_number.get(created.parent)
    return JobBatchInfo(
        id=batch.batch_id,
        kind=kind_of(batch),
        state=state_of(batch),
        group=created.created.group,
        count=len(batch.members),
        counts=JobBatchCounts(
            counts[b.RUNNING], counts[b.WAITING], counts[b.SUCCEEDED], counts[b.FAILED], counts[b.CANCELLED],
            counts[b.DROPPED],
        ),
        created_at=to_rfc3339(created.at_ms),
        topics=sorted(batch.topics),
        parent=parent.batch_id if parent is not None else "",
        cancelled_at=to_rfc3339(batch.cancelled_ms) if batch.cancelled_ms else None,
        ended_at=to_rfc3339(ended.at_ms) if ended is not None else None,
        expires_at=to_rfc3339(ended.expires_ms) if ended is not None and ended.expires_ms else None,
        messages=[_message(view, callback) for callback in ended.callbacks] if ended is not None else [],
    )  # fmt: skip


def _message(view: StateView, callback: b.JobBatchCallback) -> JobBatchMessage:
    log = view.state.logs.get(callback.log_id)
    if callback.log_id == b.GONE or log is None:
        error = "its topic did not exist" if callback.log_id == b.GONE else "its topic was deleted"
        return JobBatchMessage(callback.role, error=error)  # type: ignore[arg-type]
    return JobBatchMessage(callback.role, log.topic, log.partition, callback.offset)  # type: ignore[arg-type]


def members_of(
    view: StateView, batch: JobBatch, first: int, limit: int, wanted: str, with_results: bool
) -> JobBatchMembersReply:
    """A page of members, from index `first` on; with a state only those that are in it."""
    jobs: list[JobBatchMember] = []
    size, after = 0, None
    for index, member in islice(enumerate(batch.members), first, None):
        if len(jobs) == limit or size >= RESULTS_BYTES:
            after = str(index - 1)
            break
        shown = _member(view, batch, index, member, with_results)
        if wanted in ("", shown.state):
            jobs.append(shown)
            kept = batch.results.get(index) if with_results else None
            size += len(kept.result) + len(kept.traceback) if kept is not None else 0
    kind, state = kind_of(batch), state_of(batch)
    return JobBatchMembersReply(batch.batch_id, kind, state, len(batch.members), jobs, after, batch.results_lost)


def _member(view: StateView, batch: JobBatch, index: int, member: b.BatchMember, with_results: bool) -> JobBatchMember:
    state = _MEMBER_STATES.get(batch.states[index], "")
    name, topic, partition, offset = "", "", -1, -1
    if member.log_id == b.CHILD:
        child = view.state.job_batches.by_number[member.offset]
        name, state = child.batch_id, state or state_of(child)
    log = view.state.logs.get(member.log_id)
    if log is not None:
        topic, partition, offset = log.topic, log.partition, member.offset
        state = state or job_summary(view, log, offset).state
    kept = batch.results.get(index) if with_results else None
    return JobBatchMember(
        index=index,
        state=state or "running",
        id=member.job_id,
        batch=name,
        topic=topic,
        partition=partition,
        offset=offset,
        result=Raw(kept.result) if kept is not None and kept.result else UNSET,
        error=kept.error if kept is not None else "",
        traceback=kept.traceback if kept is not None else "",
    )


def newest_first(view: StateView, before: int) -> Iterator[JobBatch | None]:
    """Every batch with a number below `before`, the newest first. None where there is nothing, so that a long look can
    be interrupted."""
    batches = view.state.job_batches.by_number
    numbers = sorted((number for number in batches if not before or number < before), reverse=True)
    for number in numbers:
        yield batches.get(number)
