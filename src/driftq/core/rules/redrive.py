"""Redrive: send a dead letter back to its topic. It is produced again and settled in one frame, so that a repeated
redrive never doubles it.

A schedule that names a group directs the message to that group: it is settled as skipped for all others in the same
frame, and groups that start later skip it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model.commands import Produce, ProduceKey, Redrive
from driftq.core.model.replies import Done, Produced, Rejected, Reply
from driftq.core.state.idempotency_keys import job_key, produce_scope
from driftq.core.state.progress import MessageState
from driftq.core.transitions.lookups import bad_partition, find_or_create_group
from driftq.wire.errors import Code
from driftq.wire.message import read_head

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext


def redrive(ctx: DecisionContext, command: Redrive) -> Reply:
    group = find_or_create_group(ctx, command.topic, command.group, "earliest")
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.topic]
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    progress = group.progress[command.partition]
    if not 0 <= command.offset < ctx.reader.end(progress.log_id):
        return Rejected(Code.NOT_FOUND, f"there is no dead letter at offset {command.offset}")
    if progress.state_of(command.offset)[0] is MessageState.SETTLED:
        return Done(changed=False)
    reply = ctx.decide(command.produce)
    if not isinstance(reply, Produced):
        return reply
    _keep_id(ctx, progress.log_id, command.offset)
    refused = _direct(ctx, command.produce, reply)
    if refused is not None:
        return refused
    run = ((command.offset, command.offset + 1),)
    ctx.facts.append(f.Settled(group.group_id, progress.log_id, run, f.ACKED, ctx.now_ms))
    return reply


def _keep_id(ctx: DecisionContext, dead_log_id: int, offset: int) -> None:
    """Give the job that runs again its id, unless the id is in use: by another job, or by the original, which other
    groups have not finished."""
    head = read_head(ctx.reader.record(dead_log_id, offset).head)
    state, letter, job = ctx.state, head.dlq, head.job
    topic = state.topics.get(letter.topic) if letter is not None else None
    if letter is None or topic is None or job is None or not job.id or letter.partition >= len(topic.log_ids):
        return
    log_id = topic.log_ids[letter.partition]
    scope, ttl_ms = state.keys.job_at(log_id, letter.offset), ctx.limits.key_ttl_ms
    if scope:
        if state.tenure.is_unfinished(log_id, letter.offset):
            return
        ttl_ms = state.keys.ttl_ms(scope)
    else:
        tenant = head.envelope.tenant_id if head.envelope is not None else ""
        scope = produce_scope(ProduceKey(tenant, letter.topic, job_key(job.id)))
        if state.keys.find(scope, ctx.now_ms) is not None:
            return
    append = ctx.facts[-1]
    assert isinstance(append, f.Appended)
    ctx.facts[-1] = replace(append, along=replace(append.along or f.AppendMetadata(), job=scope, job_ttl_ms=ttl_ms))


def _direct(ctx: DecisionContext, produce: Produce, reply: Produced) -> Rejected | None:
    """Settle a message that is meant for one group for all other groups."""
    topic = ctx.state.topics[reply.topic]
    for mark in produce.marks:
        if not mark.group:
            continue
        if mark.group not in topic.groups:
            message = f"group {mark.group} of topic {topic.name} is gone: create it, or redrive to all groups"
            return Rejected(Code.NOT_FOUND, message)
        run = ((reply.first_offset + mark.index, reply.first_offset + mark.index + 1),)
        for group in topic.groups.values():
            if group.name != mark.group:
                log_id = topic.log_ids[reply.partition]
                ctx.facts.append(f.Settled(group.group_id, log_id, run, f.SKIPPED, ctx.now_ms))
    return None
