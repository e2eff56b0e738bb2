"""Job batches: create, add members, seal, cancel. What the end of a member means is decided by
`core.transitions.job_batches`, after every command.

Creating and adding are all or nothing, and idempotent: a batch is known by its id and a digest of the request, and an
addition by the index of its first member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import job_batch_facts as b
from driftq.core.model.job_batches import JobBatchChanged
from driftq.core.model.replies import Done, Produced, Rejected, Reply
from driftq.core.state.job_batches import batches_in, count_of, depth_of, jobs_in, template_bytes
from driftq.core.transitions.job_batch_members import (
    Nesting,
    cancel_members,
    produce_command,
    record_batch,
    record_members,
)
from driftq.core.transitions.lookups import bad_name, no_such_topic, target_log
from driftq.wire.errors import Code
from driftq.wire.namespaces import own_name

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.job_batches import AddToJobBatch, CancelJobBatch, CreateJobBatch
    from driftq.core.state.job_batches import JobBatch

MEMBERS_PER_CALL_MAX = 1_000


def create(ctx: DecisionContext, command: CreateJobBatch) -> Reply:
    template, known = command.template, ctx.state.job_batches.find(command.template.batch_id)
    if known is not None:
        return _repeated(ctx, command, known)
    parent: JobBatch | None = None
    nesting = Nesting()
    if command.parent_id:
        open_batch = _open_batch(ctx, command.parent_id)
        if isinstance(open_batch, Rejected):
            return open_batch
        parent = open_batch
        nesting = Nesting(parent.number, len(parent.members), parent.created.depth + 1)
    if template.kind == b.CHAIN and not command.sealed:
        return Rejected(Code.INVALID_ARGUMENT, "a chain is created with all of its steps: nothing can be added to it")
    refused = _bad_batch_count(ctx, (template,)) or _bad_templates(ctx, (template,), nesting.depth - 1)
    if refused is not None:
        return refused
    if parent is not None and len(parent.members) >= ctx.limits.job_batch_jobs_max:
        return _too_many_members(ctx, parent.batch_id)
    if parent is not None:
        number = ctx.state.job_batches.next_number
        ctx.facts.append(b.JobBatchAdded(parent.number, (b.BatchMember(b.CHILD, number),), ctx.now_ms))
    refused = record_batch(
        ctx, template, nesting, lambda job, _: _produce(ctx, job), sealed=command.sealed, digest=command.digest
    )
    return refused or JobBatchChanged(template.batch_id, len(template.members), command.sealed)


def _repeated(ctx: DecisionContext, command: CreateJobBatch, known: JobBatch) -> Reply:
    parent = ctx.state.job_batches.by_number.get(known.parent)
    parent_id = parent.batch_id if parent is not None else ""
    if known.created.digest != command.digest or parent_id != command.parent_id:
        message = f"job batch {own_name(known.batch_id)} exists and was created by another request"
        return Rejected(Code.CONFLICT, message)
    return JobBatchChanged(known.batch_id, len(known.members), known.sealed, changed=False)


def add(ctx: DecisionContext, command: AddToJobBatch) -> Reply:
    batch = ctx.state.job_batches.find(command.batch_id)
    if batch is None:
        return no_such_batch(command.batch_id)
    count, end = len(batch.members), command.first + len(command.members)
    is_repeat = end <= count
    if is_repeat and (batch.sealed or not command.seal):
        return JobBatchChanged(batch.batch_id, count, batch.sealed, changed=False)
    open_batch = _open_batch(ctx, command.batch_id)
    if isinstance(open_batch, Rejected):
        return open_batch
    if not is_repeat:
        refused = _add_members(ctx, batch, command)
        if refused is not None:
            return refused
    if command.seal:
        ctx.facts.append(b.JobBatchSealed(batch.number, ctx.now_ms))
    return JobBatchChanged(batch.batch_id, max(count, end), command.seal)


def _add_members(ctx: DecisionContext, batch: JobBatch, command: AddToJobBatch) -> Rejected | None:
    count = len(batch.members)
    if command.first != count:
        message = f"job batch {own_name(batch.batch_id)} has {count} members, so `first` of the next ones is {count}"
        return Rejected(Code.CONFLICT, message, {"count": count})
    if count + len(command.members) > ctx.limits.job_batch_jobs_max:
        return _too_many_members(ctx, batch.batch_id)
    refused = _bad_batch_count(ctx, command.members) or _bad_templates(ctx, command.members, batch.created.depth)
    if refused is not None:
        return refused
    template, depth = batch.created.created, batch.created.depth
    return record_members(ctx, batch.number, template, command.members, depth, lambda job, _: _produce(ctx, job), count)


def cancel(ctx: DecisionContext, command: CancelJobBatch) -> Reply:
    batch = ctx.state.job_batches.find(command.batch_id)
    if batch is None:
        return no_such_batch(command.batch_id)
    if batch.ended is not None or batch.cancelled_ms:
        return Done(changed=False)
    ctx.facts.append(b.JobBatchCancelled(batch.number, ctx.now_ms))
    cancel_members(ctx, batch, ctx.limits.sweep_max)
    return Done()


def no_such_batch(batch_id: str) -> Rejected:
    message = f"there is no job batch {own_name(batch_id)} (they are kept for a while after their end)"
    return Rejected(Code.NOT_FOUND, message)


def _open_batch(ctx: DecisionContext, batch_id: str) -> JobBatch | Rejected:
    """A batch to which members can be added."""
    batch = ctx.state.job_batches.find(batch_id)
    if batch is None:
        return no_such_batch(batch_id)
    if not batch.sealed:
        return batch
    state = "is cancelled" if batch.cancelled_ms else "is sealed"
    return Rejected(Code.CONFLICT, f"job batch {own_name(batch_id)} {state}: nothing can be added to it")


def _produce(ctx: DecisionContext, job: b.JobTemplate) -> Produced | Rejected:
    reply = ctx.decide(produce_command(job, ctx.now_ms))
    if isinstance(reply, Produced) and reply.duplicate:
        message = f"job id {job.job_id!r} of topic {own_name(job.topic)} is in use by a job that is not in this batch"
        return Rejected(Code.CONFLICT, message, {"id": job.job_id})
    assert isinstance(reply, Produced | Rejected), "a produce is done or refused"
    return reply


# --- limits ---


def _too_many_members(ctx: DecisionContext, batch_id: str) -> Rejected:
    largest = ctx.limits.job_batch_jobs_max
    message = f"job batch {own_name(batch_id)} may have at most {largest} members: nest batches, or make several"
    return Rejected(Code.TOO_LARGE, message, {"limit": largest})


def _bad_batch_count(
    ctx: DecisionContext, templates: tuple[b.JobTemplate | b.JobBatchTemplate, ...]
) -> Rejected | None:
    """Why no more batches fit."""
    batches = [batch for template in templates for batch in batches_in(template)]
    if not batches:
        return None
    table, largest = ctx.state.job_batches, ctx.limits.job_batches_max
    if len(table) + len(batches) > largest:
        message = f"{len(table)} of {largest} job batches are remembered: wait until some expire, or give them a ttl_ms"
        return Rejected(Code.OVERLOADED, message, _overload(ctx, "too_many_job_batches"))
    ids: set[str] = set()
    for batch in batches:
        refused = bad_name("job batch", own_name(batch.batch_id))
        if refused is not None:
            return refused
        if batch.batch_id in ids or table.find(batch.batch_id) is not None:
            return Rejected(Code.CONFLICT, f"job batch {own_name(batch.batch_id)} exists")
        ids.add(batch.batch_id)
    return None


def _bad_templates(
    ctx: DecisionContext, templates: tuple[b.JobTemplate | b.JobBatchTemplate, ...], depth: int
) -> Rejected | None:
    """Why these members cannot be added to a batch at this depth (0: they are the outermost batch)."""
    limits = ctx.limits
    if sum(map(count_of, templates)) > MEMBERS_PER_CALL_MAX + 1:
        message = f"one call adds at most {MEMBERS_PER_CALL_MAX} members, nested ones included: add the rest afterwards"
        return Rejected(Code.TOO_LARGE, message, {"limit": MEMBERS_PER_CALL_MAX})
    if depth + max(map(depth_of, templates), default=0) > limits.job_batch_depth_max:
        return Rejected(Code.INVALID_ARGUMENT, f"job batches are nested at most {limits.job_batch_depth_max} deep")
    size = sum(map(template_bytes, templates))
    if size > limits.batch_bytes:
        message = f"the members have {size} bytes; one call takes at most {limits.batch_bytes}: add the rest afterwards"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": limits.batch_bytes})
    largest = limits.job_batches_waiting_bytes
    if ctx.state.job_batches.waiting_bytes + size > largest:
        message = f"steps and callbacks of all job batches may have {largest} bytes: wait until some batches end"
        return Rejected(Code.OVERLOADED, message, _overload(ctx, "too_many_job_batch_bytes"))
    return _bad_jobs(ctx, templates)


def _bad_jobs(ctx: DecisionContext, templates: tuple[b.JobTemplate | b.JobBatchTemplate, ...]) -> Rejected | None:
    """Whether each job can be produced, those too that are produced later; and whether their ids differ."""
    ids: set[tuple[str, str, str]] = set()
    for template in templates:
        for job in jobs_in(template):
            refused = _bad_job(ctx, job)
            if refused is not None:
                return refused
            if job.job_id and (job.tenant, job.topic, job.job_id) in ids:
                return Rejected(Code.INVALID_ARGUMENT, f"two jobs have the id {job.job_id!r}")
            ids.add((job.tenant, job.topic, job.job_id))
    return None


def _bad_job(ctx: DecisionContext, job: b.JobTemplate) -> Rejected | None:
    topic = ctx.state.topics.get(job.target_topic)
    if topic is None:
        return no_such_topic(job.target_topic)
    log = target_log(ctx, topic, job.partition, job.key)
    if isinstance(log, Rejected):
        return log
    size, largest = len(job.value) + len(job.key) + len(job.head), ctx.limits.message_bytes
    if size > largest:
        message = f"the message has {size} bytes, and at most {largest} fit"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
    return None


def _overload(ctx: DecisionContext, reason: str) -> dict[str, object]:
    return {"reason": reason, "retry_after_ms": ctx.limits.overload_retry_ms}
