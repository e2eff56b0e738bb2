"""Finds what a command names, or explains why it cannot: lookups and refusals that several rules share.

A lookup returns the thing it found, or a `Rejected` that the rule returns as its reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from driftq.core.model.facts import GroupCreated, ProducerSequence
from driftq.core.model.replies import Produced, PurgeResult, Rejected
from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.core.state.producers import SequenceJudgement, SequenceVerdict
from driftq.wire.audit import AUDIT_TOPIC
from driftq.wire.errors import Code
from driftq.wire.namespaces import SEPARATOR, Namespace, own_name, tenant_of
from driftq.wire.partitions import partition_of
from driftq.wire.schedules import SCHEDULE_NAME_LENGTH_MAX

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import Held
    from driftq.core.state.groups import Group, Topic
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State
    from driftq.core.state.streams import StreamRecord

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,249}", re.ASCII)  # of a topic or a group
_SCHEDULE_NAME = re.compile(rf"[A-Za-z0-9._:-]{{1,{SCHEDULE_NAME_LENGTH_MAX}}}", re.ASCII)


# --- topics and groups ---


def purge_of(state: State, name: str) -> PurgeResult | Rejected:
    """What a purge of a topic drops, or why it cannot."""
    topic = state.topics.get(name)
    refused = audit_refusal(name) if topic is not None else no_such_topic(name)
    if refused is not None or topic is None:
        return refused or no_such_topic(name)
    logs = [state.logs[log_id] for log_id in topic.log_ids]
    progress = [progress for group in topic.groups.values() for progress in group.progress]
    return PurgeResult(
        sum(log.end - log.start for log in logs),
        sum(part.in_flight for part in progress),
        sum(part.resting for part in progress),
    )


def no_such_topic(topic: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"topic does not exist (create it first): {topic}")


def no_such_group(topic: str, group: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"topic {topic} has no group {group}; groups exist from their first claim on")


def bad_name(kind: str, name: str) -> Rejected | None:
    if _NAME.fullmatch(name):
        return None
    return Rejected(
        Code.INVALID_ARGUMENT, f"a {kind} name has 1 to 249 characters of A-Z a-z 0-9 . _ - : (got {name!r})"
    )


def bad_topic_name(ctx: DecisionContext, topic: str) -> Rejected | None:
    """Why a topic cannot have this name. The name of a tenant's topic has the tenant in front, which must exist."""
    if SEPARATOR not in topic:
        return bad_name("topic", topic)
    tenant = tenant_of(topic)
    if not tenant:
        return bad_name("topic", topic)
    if tenant not in ctx.state.tenants.by_name:
        return no_such_tenant(tenant)
    return bad_name("topic", Namespace(tenant).own(topic))


def over_quota(ctx: DecisionContext, name: str, quota: str, more: int = 1) -> Rejected | None:
    """Why the tenant that a name belongs to cannot have another topic, stream, group or schedule."""
    tenant = ctx.state.tenants.of(name)
    if tenant is None:
        return None
    limit, used = getattr(tenant.quotas, quota), getattr(tenant, quota)
    if not limit or used + more <= limit:
        return None
    return quota_exceeded(tenant.name, quota, used, limit, ctx.limits.overload_retry_ms)


def quota_exceeded(tenant: str, quota: str, used: int, limit: int, retry_after_ms: int) -> Rejected:
    message = (
        f"tenant {tenant} has no room in its quota of {quota}: {used} of {limit} are used. Delete or finish something, "
        f"or ask an administrator: driftq tenants set {tenant} --{quota.replace('_', '-')} N"
    )
    details = {
        "reason": "tenant_quota", "quota": quota, "used": used, "limit": limit, "retry_after_ms": retry_after_ms,
    }  # fmt: skip
    return Rejected(Code.OVERLOADED, message, details)


def no_such_tenant(tenant: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"there is no tenant {tenant}; create it first: driftq tenants create {tenant}")


def bad_partition(partition: int, topic: Topic) -> Rejected:
    return Rejected(
        Code.INVALID_ARGUMENT, f"partition {partition} is out of range: {topic.name} has {len(topic.log_ids)}"
    )


def bad_lease(ctx: DecisionContext, lease_ms: int) -> Rejected | None:
    low, high = ctx.limits.lease_ms_min, ctx.limits.lease_ms_max
    if low <= lease_ms <= high:
        return None
    return Rejected(Code.INVALID_ARGUMENT, f"lease_ms must be {low} to {high}")


def find_group(ctx: DecisionContext, topic_name: str, group_name: str) -> Group | Rejected:
    topic = ctx.state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    return topic.groups.get(group_name) or no_such_group(topic_name, group_name)


def find_or_create_group(ctx: DecisionContext, topic_name: str, name: str, start: str | int) -> Group | Rejected:
    """The group, or the one that this command creates, as it will be once its fact is applied."""
    topic = ctx.state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    group = topic.groups.get(name)
    if group is not None and group.commits_offsets:
        return Rejected(
            Code.CONFLICT,
            f"group {name} of {topic_name} commits the offsets of a reader (a Spark query), so nothing can be "
            f"claimed from it; use another group, or `driftq groups delete {topic_name} {name}` if that reader is gone",
        )
    if group is not None:
        return group
    refused = bad_new_group(ctx, topic, name)
    if refused:
        return refused
    starts = tuple(start_offset(ctx, log_id, start) for log_id in topic.log_ids)
    fact = GroupCreated(ctx.state.next_group_id, topic_name, name, ctx.now_ms, starts)
    ctx.facts.append(fact)
    return ctx.state.preview_group(fact)


def audit_refusal(topic: str) -> Rejected | None:
    """Why the audit, of the broker or under its name in a tenant, cannot be written or changed by a caller."""
    if own_name(topic) != AUDIT_TOPIC:
        return None
    message = (
        f"{AUDIT_TOPIC} is the audit: only the broker writes there, and what it keeps is a setting, audit.retention_ms"
    )
    return Rejected(Code.INVALID_ARGUMENT, message)


def bad_new_group(ctx: DecisionContext, topic: Topic, name: str) -> Rejected | None:
    """Why a topic cannot have a new group of this name."""
    if len(topic.groups) < ctx.limits.groups_per_topic_max:
        return bad_name("group", name) or over_quota(ctx, topic.name, "groups")
    return bad_name("group", name) or Rejected(
        Code.OVERLOADED, f"topic {topic.name} has {len(topic.groups)} groups, the most allowed; delete one"
    )


def start_offset(ctx: DecisionContext, log_id: int, start: str | int) -> int:
    """The offset in a log for "earliest", "latest" or a time in milliseconds."""
    log = ctx.state.logs[log_id]
    if start == "earliest":
        return log.start
    if start == "latest":
        return log.end
    assert isinstance(start, int), f"a start is earliest, latest or a time, not {start!r}"
    return max(log.start, min(log.end, ctx.reader.offset_at(log_id, start)))


def history_source(ctx: DecisionContext, topic: Topic) -> Topic | None:
    """The topic whose history is written to this one, if there is one."""
    if not topic.name.endswith(HISTORY_SUFFIX):
        return None
    source = ctx.state.topics.get(topic.name.removesuffix(HISTORY_SUFFIX))
    return source if source is not None and source.config.history else None


def target_log(ctx: DecisionContext, topic: Topic, partition: int | None, key: bytes) -> Log | Rejected:
    """The log that a produce appends to: of the partition it names, or of the one its key hashes to."""
    if topic.dead_of:
        return Rejected(Code.INVALID_ARGUMENT, f"{topic.name} holds dead letters; only the broker writes there")
    refused = audit_refusal(topic.name)
    if refused is not None:
        return refused
    if topic.name.endswith(HISTORY_SUFFIX) and history_source(ctx, topic) is not None:
        return Rejected(Code.INVALID_ARGUMENT, f"{topic.name} holds a history; only the broker writes there")
    log_ids = topic.log_ids
    if partition is None:
        partition = partition_of(key, len(log_ids)) if key else 0
    elif not 0 <= partition < len(log_ids):
        return bad_partition(partition, topic)
    return ctx.state.logs[log_ids[partition]]


def overlap(held: Sequence[Held]) -> bool:
    """Whether two ranges of a settling call share a message."""
    ranges = sorted((item.partition, item.first, item.end) for item in held)
    return any(a[0] == b[0] and a[2] > b[1] for a, b in pairwise(ranges))


def id_is_taken(reply: Produced) -> Rejected:
    """A job that goes to another topic brings its id, and the id is in use there."""
    message = f"a job with this id is in topic {own_name(reply.topic)} already, at offset {reply.first_offset}"
    return Rejected(Code.CONFLICT, message)


def is_movable(state: State, topic: Topic, log: Log, offset: int) -> bool:
    """Whether a message of a topic is still to be done, and no worker is at it."""
    if not state.tenure.is_unfinished(log.log_id, offset):
        return False
    return not any(_is_held(group.progress[log.partition], offset) for group in topic.groups.values())


def _is_held(progress: Progress, offset: int) -> bool:
    entry = progress.entries.get(offset)
    return entry.held if entry is not None else progress.held.lease_at(offset) is not None


# --- schedules ---


def no_such_schedule(name: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"there is no schedule {name}")


def bad_schedule_name(ctx: DecisionContext, name: str) -> Rejected | None:
    """Why a schedule cannot have this name. That of a tenant's schedule has the tenant in front, which must exist."""
    tenant = tenant_of(name)
    if tenant and tenant not in ctx.state.tenants.by_name:
        return no_such_tenant(tenant)
    own = Namespace(tenant).own(name)
    if _SCHEDULE_NAME.fullmatch(own):
        return None
    allowed = f"1 to {SCHEDULE_NAME_LENGTH_MAX} characters of A-Z a-z 0-9 . _ - :"
    return Rejected(Code.INVALID_ARGUMENT, f"the name of a schedule has {allowed} (got {own!r})")


# --- access ---


def no_such_token(token_id: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"there is no access token {token_id}; it may have been revoked")


# --- streams and producers ---


def no_such_subscription(name: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"there is no subscription {name}", {"reason": "SUBSCRIPTION_NOT_FOUND"})


def no_such_stream(path: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"stream does not exist: {path}")


def find_stream(ctx: DecisionContext, path: str) -> StreamRecord | Rejected:
    """A live stream. An expired one counts as deleted even if no sweep has ended it yet."""
    stream = ctx.state.streams.by_path.get(path)
    is_expired = stream is not None and stream.is_over(ctx.now_ms)
    if stream is None or (is_expired and not stream.forks and not stream.soft_deleted):
        return no_such_stream(path)
    if stream.soft_deleted or is_expired:
        return Rejected(Code.GONE, f"stream is deleted; forks still read it: {path}")
    return stream


def sequence_refusal(judgement: SequenceJudgement, by: ProducerSequence) -> Rejected:
    """The refusal of a producer's sequence number: the same for topics and streams."""
    details = {"epoch": judgement.epoch, "expected_seq": judgement.seq + 1, "received_seq": by.seq}
    match judgement.verdict:
        case SequenceVerdict.STALE_EPOCH:
            message = (
                f"producer {by.producer!r} has moved on to epoch {judgement.epoch}; epoch {by.epoch} may not write"
            )
            return Rejected(Code.STALE_EPOCH, message, details)
        case SequenceVerdict.GAP:
            message = f"producer {by.producer!r}: seq {judgement.seq + 1} comes next, not {by.seq}"
            return Rejected(Code.SEQUENCE_GAP, message, details)
        case SequenceVerdict.EPOCH_NOT_AT_ZERO:
            return Rejected(Code.INVALID_ARGUMENT, f"a new epoch starts at seq 0, not {by.seq}", details)
        case _:
            message = f"producer {by.producer!r}: seq {by.seq} was used with other bytes"
            return Rejected(Code.SEQUENCE_MISMATCH, message, details)
