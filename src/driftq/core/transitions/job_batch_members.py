"""Produces the jobs of a batch, records them as its members, and cancels them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model import job_batch_facts as b
from driftq.core.model.commands import AdmittedProduce, Produce, ProduceKey
from driftq.core.model.replies import Produced, Rejected
from driftq.core.state.idempotency_keys import job_key
from driftq.core.transitions.cancel import cancel_message
from driftq.wire.message import Head, JobBatchPart, encode_head, read_head
from driftq.wire.records import pack_one

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.job_batches import JobBatch

# Produces a job of the batch with this id. None: its topic is gone.
ProduceJob = Callable[[b.JobTemplate, str], Produced | Rejected | None]


class Nesting(NamedTuple):
    """Where a batch belongs: the batch around it, and how deep it is."""

    parent: int = 0
    at: int = 0  # its index there
    depth: int = 1


def next_number(ctx: DecisionContext) -> int:
    """The number of the next batch that this command creates."""
    for fact in reversed(ctx.facts):
        if isinstance(fact, b.JobBatchCreated):
            return fact.number + 1
    return ctx.state.job_batches.next_number


def record_batch(
    ctx: DecisionContext,
    template: b.JobBatchTemplate,
    nesting: Nesting,
    produce: ProduceJob,
    *,
    sealed: bool = True,
    digest: bytes = b"",
) -> Rejected | None:
    """Record a batch with its members. The first job that is refused is the reply, if `produce` may be refused."""
    number = next_number(ctx)
    created = replace(template, members=())
    ctx.facts.append(b.JobBatchCreated(number, created, ctx.now_ms, *nesting, digest))
    refused = record_members(ctx, number, template, template.members, nesting.depth, produce)
    if refused is not None:
        return refused
    if sealed:
        ctx.facts.append(b.JobBatchSealed(number, ctx.now_ms))
    return None


def record_members(
    ctx: DecisionContext,
    number: int,
    batch: b.JobBatchTemplate,
    templates: tuple[b.JobTemplate | b.JobBatchTemplate, ...],
    depth: int,
    produce: ProduceJob,
    first: int = 0,
) -> Rejected | None:
    """Produce the members of a batch, or keep them as steps if it is a chain."""
    members: list[b.BatchMember] = []
    for index, template in enumerate(templates, first):
        job_id = template.job_id if isinstance(template, b.JobTemplate) else ""
        if batch.kind == b.CHAIN:
            members.append(b.BatchMember(b.WAITING_STEP, 0, job_id, template))
        elif isinstance(template, b.JobBatchTemplate):
            members.append(b.BatchMember(b.CHILD, next_number(ctx)))
            refused = record_batch(ctx, template, Nesting(number, index, depth + 1), produce)
            if refused is not None:
                return refused
        else:
            reply = produce(template, batch.batch_id)
            if isinstance(reply, Rejected):
                return reply
            members.append(b.BatchMember(*place(ctx, reply), job_id))
    if members:
        ctx.facts.append(b.JobBatchAdded(number, tuple(members), ctx.now_ms))
    return None


def cancel_members(ctx: DecisionContext, batch: JobBatch, limit: int) -> None:
    """Cancel up to `limit` members of a batch. A sweep does the rest, and those of nested batches."""
    at = batch.states.find(b.RUNNING)
    while at >= 0 and limit > 0 and not ctx.is_full():
        member = batch.members[at]
        if member.log_id == b.CHILD:
            child = ctx.state.job_batches.by_number[member.offset]
            if not child.cancelled_ms:
                ctx.facts.append(b.JobBatchCancelled(child.number, ctx.now_ms))
                limit -= 1
        else:
            log = ctx.state.logs[member.log_id]
            cancel_message(ctx, ctx.state.topics[log.topic], log, member.offset)
            limit -= 1
        at = batch.states.find(b.RUNNING, at + 1)


def produce_admitted(ctx: DecisionContext, template: b.JobTemplate, part: JobBatchPart) -> Produced | None:
    """Produce a job for the broker: no limit refuses it. If its id is in use by another job, it gets none. None if its
    topic is gone."""
    head = replace(read_head(template.head), job_batch=part)
    command = produce_command(template, ctx.now_ms, head, AdmittedProduce)
    reply = ctx.decide(command)
    if isinstance(reply, Produced) and reply.duplicate:
        reply = ctx.decide(replace(command, job=None))
    return reply if isinstance(reply, Produced) else None


def place(ctx: DecisionContext, produced: Produced | None) -> tuple[int, int]:
    """The log and the offset of a job."""
    if produced is None:
        return b.GONE, 0
    return ctx.state.topics[produced.topic].log_ids[produced.partition], produced.first_offset


def produce_command(
    template: b.JobTemplate, now_ms: int, head: Head | None = None, kind: type[Produce] = Produce
) -> Produce:
    """The command that produces a template now; with another head if there is one."""
    schedule, text = template.schedule, template.head
    if template.delay_ms:
        schedule = replace(schedule, not_before_ms=now_ms + template.delay_ms)
        head = head if head is not None else read_head(text)
        if head.job is not None:
            head = replace(head, job=replace(head.job, not_before_ms=schedule.not_before_ms))
    if head is not None:
        text = encode_head(head)
    is_scheduled = schedule != f.RecordSchedule(0)
    key = ProduceKey(template.tenant, template.topic, job_key(template.job_id), template.digest)
    return kind(
        topic=template.target_topic,
        batch=pack_one(template.value, template.key, text, scheduled=is_scheduled),
        count=1,
        payload_bytes=len(template.value) + len(template.key) + len(text),
        key=template.key,
        partition=template.partition,
        marks=(schedule,) if is_scheduled else (),
        job=key if template.job_id else None,
    )
