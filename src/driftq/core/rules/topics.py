"""Topics and groups: create, configure, trim, seek, pause, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.replies import Done, Rejected, Reply, TopicReady
from driftq.core.state.groups import DEAD_PREFIX, HISTORY_SUFFIX
from driftq.core.transitions.lookups import (
    audit_refusal,
    bad_lease,
    bad_partition,
    bad_topic_name,
    find_group,
    find_or_create_group,
    history_source,
    no_such_topic,
    over_quota,
    start_offset,
)
from driftq.wire.errors import Code
from driftq.wire.namespaces import own_name

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext


def create_topic(ctx: DecisionContext, command: c.CreateTopic) -> Reply:
    refused = bad_topic_name(ctx, command.topic) or audit_refusal(command.topic)
    if refused:
        return refused
    topic = ctx.state.topics.get(command.topic)
    if own_name(command.topic).startswith(DEAD_PREFIX) and topic is None:
        return Rejected(Code.INVALID_ARGUMENT, f"the prefix {DEAD_PREFIX} is reserved for dead letters")
    if not 1 <= command.partitions <= ctx.limits.partitions_max:
        return Rejected(Code.INVALID_ARGUMENT, f"partitions must be 1 to {ctx.limits.partitions_max}")
    if topic is not None:
        count = len(topic.log_ids)
        if count == command.partitions:
            return TopicReady(command.topic, count, created=False)
        return Rejected(
            Code.ALREADY_EXISTS,
            f"topic already exists: {command.topic} with {count} partition{'s' * (count != 1)}",
            {"partitions": count},
        )
    refused = _bad_config(ctx, command.config) or _too_many_topics(ctx, command.topic)
    if refused:
        return refused
    ctx.facts.append(
        f.TopicCreated(command.topic, ctx.state.next_log_id, command.partitions, ctx.now_ms, command.config)
    )
    if command.config.history:
        refused = _create_history(ctx, command.topic, command.partitions)
        if refused:
            return refused
    return TopicReady(command.topic, command.partitions, created=True)


def _bad_config(ctx: DecisionContext, config: f.TopicConfig, before: f.TopicConfig | None = None) -> Rejected | None:
    """Only what changes is checked: a topic may have settings from a time when more was allowed."""
    policy = config.retry if before is None or config.retry != before.retry else None
    problem = policy.problem() if policy is not None else ""
    if problem:
        return Rejected(Code.INVALID_ARGUMENT, f"invalid retry.{problem}")
    is_new_lease = config.lease_ms and (before is None or config.lease_ms != before.lease_ms)
    return bad_lease(ctx, config.lease_ms) if is_new_lease else None


def _too_many_topics(ctx: DecisionContext, name: str) -> Rejected | None:
    created = sum(1 for fact in ctx.facts if type(fact) is f.TopicCreated)
    if len(ctx.state.topics) + 2 * created < 2 * ctx.limits.topics_max:  # each topic has a dead-letter topic
        return over_quota(ctx, name, "topics", created + 1)
    return Rejected(Code.OVERLOADED, f"there are {ctx.limits.topics_max} topics, the most allowed")


def _create_history(ctx: DecisionContext, topic: str, partitions: int) -> Rejected | None:
    """Create the history topic, unless it exists from an earlier time."""
    if topic.startswith(DEAD_PREFIX) or topic.endswith(HISTORY_SUFFIX):
        return Rejected(
            Code.INVALID_ARGUMENT, f"{topic} cannot have a history: it is dead letters, or a history itself"
        )
    name = topic + HISTORY_SUFFIX
    refused = bad_topic_name(ctx, name)
    if refused:
        return refused
    known = ctx.state.topics.get(name)
    if known is not None:
        count = len(known.log_ids)
        if count == partitions:
            return None
        message = f"{name} is there with {count} partitions, not {partitions}: delete it first"
        return Rejected(Code.ALREADY_EXISTS, message, {"partitions": count})
    refused = _too_many_topics(ctx, name)
    if refused:
        return refused
    created = sum(2 * fact.partitions for fact in ctx.facts if type(fact) is f.TopicCreated)
    first_log_id = ctx.state.next_log_id + created
    ctx.facts.append(f.TopicCreated(name, first_log_id, partitions, ctx.now_ms, f.TopicConfig()))
    return None


def configure_topic(ctx: DecisionContext, command: c.ConfigureTopic) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if topic.config == command.config:
        return Done(changed=False)
    refused = audit_refusal(command.topic) or _bad_config(ctx, command.config, topic.config)
    if refused:
        return refused
    ctx.facts.append(f.TopicConfigured(command.topic, command.config))
    if command.config.history and not topic.config.history:
        refused = _create_history(ctx, command.topic, len(topic.log_ids))
        if refused:
            return refused
    return Done()


def delete_topic(ctx: DecisionContext, command: c.DeleteTopic) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if topic.dead_of:
        return Rejected(Code.INVALID_ARGUMENT, f"dead letters go with their topic: delete {topic.dead_of}")
    refused = audit_refusal(command.topic)
    if refused:
        return refused
    source = history_source(ctx, topic)
    if source is not None:
        message = f"{command.topic} is being written: turn off the history of {source.name} first"
        return Rejected(Code.CONFLICT, message)
    dead = ctx.state.topics[DEAD_PREFIX + command.topic]
    ctx.facts.append(f.TopicDeleted(command.topic, topic.log_ids + dead.log_ids))
    return Done()


def trim_topic(ctx: DecisionContext, command: c.TrimTopic) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    refused = audit_refusal(command.topic)
    if refused:
        return refused
    log = ctx.state.logs[topic.log_ids[command.partition]]
    if not log.start <= command.offset <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
    if command.offset == log.start:
        return Done(changed=False)
    ctx.facts.append(f.Trimmed(log.log_id, command.offset, ctx.now_ms))
    return Done()


# --- groups ---


def create_group(ctx: DecisionContext, command: c.CreateGroup) -> Reply:
    group = find_or_create_group(ctx, command.topic, command.group, command.start)
    return group if isinstance(group, Rejected) else Done(changed=bool(ctx.facts))


def seek_group(ctx: DecisionContext, command: c.SeekGroup) -> Reply:
    """`to` is an offset when a partition is named; else "earliest", "latest" or a time for all partitions."""
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.topic]
    if command.partition is None:
        targets = [(log_id, start_offset(ctx, log_id, command.to)) for log_id in topic.log_ids]
    else:
        if not 0 <= command.partition < len(topic.log_ids):
            return bad_partition(command.partition, topic)
        log = ctx.state.logs[topic.log_ids[command.partition]]
        offset = command.to if isinstance(command.to, int) else start_offset(ctx, log.log_id, command.to)
        if not log.start <= offset <= log.end:
            return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
        targets = [(log.log_id, offset)]
    for log_id, offset in targets:
        ctx.facts.append(f.GroupSought(group.group_id, log_id, offset, ctx.now_ms))
    return Done()


def pause_group(ctx: DecisionContext, command: c.PauseGroup) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    if group.paused == command.paused:
        return Done(changed=False)
    ctx.facts.append(f.GroupPaused(group.group_id, command.paused))
    return Done()


def delete_group(ctx: DecisionContext, command: c.DeleteGroup) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    ctx.facts.append(f.GroupDeleted(group.group_id, ctx.now_ms))
    return Done()
