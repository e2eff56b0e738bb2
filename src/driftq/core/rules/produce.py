"""Produce: append a batch to a partition. The checks are in this order, so that a repeat is answered with the first
result even if the partition is full:

1. The topic and the partition exist.
2. The idempotency key or job id is new; else the reply is that of the first produce.
3. The producer's sequence number is the next one; else it is a duplicate or refused (`core.state.producers`).
4. The sizes, lanes and deadlines are within the limits.
5. There is room: the slowest group is not too far behind (`core.state.backlog`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from driftq.core.model.commands import AdmittedProduce
from driftq.core.model.facts import FAIR_TENANT, AppendMetadata, LaneKey, ProducerSequence, RecordSchedule
from driftq.core.model.replies import Produced, Rejected, Reply
from driftq.core.state.backlog import Backlog, backlog_of
from driftq.core.state.idempotency_keys import CRC_END, ProducedKey, key_ttl_ms, produce_scope
from driftq.core.state.lanes import SHARED_TENANT
from driftq.core.state.producers import SequenceJudgement, SequenceVerdict
from driftq.core.transitions.lookups import no_such_topic, sequence_refusal, target_log
from driftq.wire.errors import Code
from driftq.wire.message import PRIORITY_MAX

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import Produce, ProduceKey
    from driftq.core.state.groups import Topic
    from driftq.core.state.logs import Log


def produce(ctx: DecisionContext, command: Produce) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    log = target_log(ctx, topic, command.partition, command.key)
    if isinstance(log, Rejected):
        return log
    for key in (command.once, command.job):
        repeated = _repeated(ctx, key) if key is not None else None
        if repeated is not None:
            return repeated
    by = command.producer
    if by is not None:
        judgement = log.producers.judge(by)
        if judgement.verdict is not SequenceVerdict.ACCEPT:
            return _sequence_reply(judgement, by, topic, log, command.count)
        if judgement.epoch != by.epoch:
            by = ProducerSequence(by.producer, judgement.epoch, by.seq, by.digest)
    refused = _check_limits(ctx, topic, log, command)
    if refused is not None and type(command) is not AdmittedProduce:
        return refused
    along = _metadata(ctx, log, command, by) if command.once or command.job or command.marks or by else None
    first_offset = ctx.append(log, command.batch, command.count, command.payload_bytes, along)
    return Produced(topic.name, log.partition, first_offset, command.count)


def _repeated(ctx: DecisionContext, once: ProduceKey) -> Reply | None:
    first = ctx.state.keys.find(produce_scope(once), ctx.now_ms)
    log = ctx.state.logs.get(first.log_id) if first is not None else None
    if first is None or log is None:
        return None  # never used, expired, or deleted with its topic
    if once.strict and not _is_same_message(first, once):
        return Rejected(
            Code.KEY_CONFLICT,
            f"idempotency key {once.key!r} was used with another message",
            {"offset": first.offset, "idempotency_key": once.key},
        )
    return Produced(log.topic, log.partition, first.offset, first.records, True)


def _is_same_message(first: ProducedKey, once: ProduceKey) -> bool:
    if first.digest < CRC_END <= once.digest:
        return first.digest == once.value_crc  # from a version that stored only a checksum of the value
    return first.digest == once.digest


def _sequence_reply(judgement: SequenceJudgement, by: ProducerSequence, topic: Topic, log: Log, count: int) -> Reply:
    if judgement.verdict is SequenceVerdict.DUPLICATE:
        return Produced(topic.name, log.partition, judgement.first_offset, count, duplicate=True)
    return sequence_refusal(judgement, by)


def _check_limits(ctx: DecisionContext, topic: Topic, log: Log, command: Produce) -> Rejected | None:
    limits = ctx.limits
    bytes_max = topic.config.backlog_bytes_max or limits.partition_bytes
    size = command.payload_bytes
    if size > bytes_max or (size > limits.message_bytes and command.count == 1) or size > limits.batch_bytes:
        largest = min(bytes_max, limits.message_bytes if command.count == 1 else limits.batch_bytes)
        what = "message" if command.count == 1 else "batch"
        return Rejected(
            Code.TOO_LARGE, f"the {what} has {size} bytes, and at most {largest} fit", {"limit_bytes": largest}
        )
    if (command.once or command.job) and len(ctx.state.keys) >= limits.keys_max:
        return _overloaded(ctx, "too_many_keys", f"{limits.keys_max} idempotency keys are remembered, the most allowed")
    if command.marks:
        refused = _bad_marks(ctx, log, command)
        if refused is not None:
            return refused
    if not log.readers:
        return None  # no group can be behind; retention bounds the log
    messages_max = topic.config.backlog_messages_max or limits.partition_messages
    end = ctx.ends.get(log.log_id, log.end) + command.count
    if end - log.low_floor <= messages_max and log.bytes_from(log.low_floor) + size <= bytes_max:
        return None
    backlog = backlog_of(ctx.state, limits, log)  # `low_floor` may be lower than the real floor
    if backlog is None:
        return None
    if end - backlog.floor > messages_max:
        waiting = end - command.count - backlog.floor
        return _backlog_refusal(
            ctx, "partition_buffer_full", log, backlog, f"{waiting} of {messages_max} messages", messages_max
        )
    if backlog.payload_bytes + size > bytes_max:
        why = f"{backlog.payload_bytes} of {bytes_max} bytes"
        return _backlog_refusal(ctx, "partition_buffer_bytes_full", log, backlog, why, bytes_max)
    return None


def _backlog_refusal(ctx: DecisionContext, reason: str, log: Log, backlog: Backlog, waits: str, limit: int) -> Rejected:
    """A refusal that names the group with the backlog, and commands that help."""
    delete, seek, raise_limit = backlog.remedies()
    idle = "" if ctx.limits.groups_idle_ms else "; the setting groups.idle_ms ignores groups that are not used"
    why = (
        f"{waits} wait for group {backlog.group.name} in partition {log.partition} of {log.topic}). "
        f"Start its consumers, or: `{delete}` if it is not used any more; `{seek}` to skip what waits; "
        f"`{raise_limit}` for a higher limit{idle}"
    )
    details = {
        "reason": reason,
        "retry_after_ms": ctx.limits.overload_retry_ms,
        "topic": log.topic,
        "partition": log.partition,
        "group": backlog.group.name,
        "lag": backlog.lag,
        "limit": limit,
        "commands": [delete, seek, raise_limit],
    }
    return Rejected(Code.OVERLOADED, f"producer overload: {reason} ({why}", details)


def _overloaded(ctx: DecisionContext, reason: str, why: str) -> Rejected:
    details = {"reason": reason, "retry_after_ms": ctx.limits.overload_retry_ms}
    return Rejected(Code.OVERLOADED, f"producer overload: {reason} ({why})", details)


def _bad_marks(ctx: DecisionContext, log: Log, command: Produce) -> Rejected | None:
    last = -1
    for mark in command.marks:
        if not last < mark.index < command.count:
            return Rejected(Code.INVALID_ARGUMENT, "marks name records of the batch, in order")
        last = mark.index
        if not 0 <= mark.priority <= PRIORITY_MAX:
            return Rejected(Code.INVALID_ARGUMENT, f"priority must be 0 to {PRIORITY_MAX}")
        if mark.deadline_ms and mark.deadline_ms <= ctx.now_ms:
            return Rejected(Code.DEADLINE_EXCEEDED, "message deadline exceeded")
    if len(log.lanes.by_key) + len(command.marks) <= ctx.limits.lanes_per_log_max:
        return None
    lanes = {_lane(mark) for mark in stored_marks(ctx, log, command.marks)} - {_lane(RecordSchedule(0))}
    if len(log.lanes.by_key) + sum(key not in log.lanes.by_key for key in lanes) > ctx.limits.lanes_per_log_max:
        message = f"a partition holds at most {ctx.limits.lanes_per_log_max} different tasks, labels and priorities"
        return Rejected(Code.OVERLOADED, message, {"reason": "too_many_lanes"})
    return None


def _lane(mark: RecordSchedule) -> LaneKey:
    return LaneKey(mark.priority, mark.task, mark.label, mark.tenant)


def stored_marks(ctx: DecisionContext, log: Log, marks: tuple[RecordSchedule, ...]) -> tuple[RecordSchedule, ...]:
    """The schedules as they are stored. Only a fair topic keeps the tenant. There a tenant has lanes of its own, or
    shares lanes once there are many; it never has both, so that its messages keep their order."""
    if not any(mark.tenant for mark in marks):
        return marks
    if ctx.state.topics[log.topic].config.fair != FAIR_TENANT:
        without = (msgspec.structs.replace(mark, tenant="") for mark in marks)
        return tuple(mark for mark in without if mark != RecordSchedule(mark.index))
    known = set(log.lanes.tenants)
    kept: list[RecordSchedule] = []
    for mark in marks:
        if mark.tenant and mark.tenant not in known:
            full = len(log.lanes.by_key) + len(known) - len(log.lanes.tenants) >= ctx.limits.tenant_lanes_max
            tenant = SHARED_TENANT if full or SHARED_TENANT in known else mark.tenant
            known.add(tenant)
            mark = msgspec.structs.replace(mark, tenant=tenant)
        kept.append(mark)
    return tuple(kept)


def _metadata(ctx: DecisionContext, log: Log, command: Produce, by: ProducerSequence | None) -> AppendMetadata:
    once, job = command.once, command.job
    marks = stored_marks(ctx, log, command.marks) if command.marks else ()
    if once is None and job is None:
        return AppendMetadata(producer=by, marks=marks)
    digest = once.digest if once is not None else job.digest if job is not None else 0
    return AppendMetadata(
        producer=by,
        key=produce_scope(once) if once is not None else "",
        key_digest=digest,
        key_expires_ms=ctx.now_ms + key_ttl_ms(once, ctx.limits) if once is not None else 0,
        marks=marks,
        job=produce_scope(job) if job is not None else "",
        job_ttl_ms=key_ttl_ms(job, ctx.limits) if job is not None else 0,
    )
