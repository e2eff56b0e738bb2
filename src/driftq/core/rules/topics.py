"""Topics and groups: create, configure, delete, start over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.replies import Done, Rejected, Reply, TopicReady
from driftq.core.state.groups import DEAD_PREFIX, HISTORY_SUFFIX, Group, Topic
from driftq.core.state.progress import Progress
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,249}", re.ASCII)


def no_such_topic(topic: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"topic does not exist (create it first): {topic}")


def no_such_group(topic: str, group: str) -> Rejected:
    return Rejected(Code.NOT_FOUND, f"topic {topic} has no group {group}; groups exist from their first claim on")


def group_of(ctx: DecisionContext, topic_name: str, group_name: str) -> Group | Rejected:
    """The group of a topic, or why there is none."""
    topic = ctx.state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    return topic.groups.get(group_name) or no_such_group(topic_name, group_name)


def bad_name(kind: str, name: str) -> Rejected | None:
    if _NAME.fullmatch(name):
        return None
    return Rejected(
        Code.INVALID_ARGUMENT, f"a {kind} name has 1 to 249 characters of A-Z a-z 0-9 . _ - : (got {name!r})"
    )


def create_topic(ctx: DecisionContext, command: c.CreateTopic) -> Reply:
    refused = bad_name("topic", command.topic)
    if refused:
        return refused
    topic = ctx.state.topics.get(command.topic)
    if command.topic.startswith(DEAD_PREFIX) and topic is None:
        return Rejected(Code.INVALID_ARGUMENT, f"the prefix {DEAD_PREFIX} is reserved for dead letters")
    if not 1 <= command.partitions <= ctx.limits.partitions_max:
        return Rejected(Code.INVALID_ARGUMENT, f"partitions must be 1 to {ctx.limits.partitions_max}")
    if topic is not None:
        count = len(topic.log_ids)
        if count == command.partitions:
            return TopicReady(command.topic, count, created=False)
        return Rejected(
            Code.ALREADY_EXISTS, f"topic already exists: {command.topic} with {count} partitions", {"partitions": count}
        )
    refused = _too_many_topics(ctx)
    if refused:
        return refused
    ctx.facts.append(
        f.TopicCreated(command.topic, ctx.state.next_log_id, command.partitions, ctx.now_ms, command.config)
    )
    if command.config.history:
        refused = _keep_history(ctx, command.topic, command.partitions)
        if refused:
            return refused
    return TopicReady(command.topic, command.partitions, created=True)


def _too_many_topics(ctx: DecisionContext) -> Rejected | None:
    created = sum(2 for fact in ctx.facts if type(fact) is f.TopicCreated)
    if len(ctx.state.topics) + created < 2 * ctx.limits.topics_max:  # each topic has its dead-letter twin
        return None
    return Rejected(Code.OVERLOADED, f"there are {ctx.limits.topics_max} topics, the most allowed")


def _keep_history(ctx: DecisionContext, topic: str, partitions: int) -> Rejected | None:
    """Make the companion that tells what happens, unless it is there from an earlier time."""
    if topic.startswith(DEAD_PREFIX) or topic.endswith(HISTORY_SUFFIX):
        return Rejected(
            Code.INVALID_ARGUMENT, f"{topic} cannot have a history: it is dead letters, or a history itself"
        )
    name = topic + HISTORY_SUFFIX
    refused = bad_name("topic", name)
    if refused:
        return refused
    known = ctx.state.topics.get(name)
    if known is not None:
        count = len(known.log_ids)
        if count == partitions:
            return None
        message = f"{name} is there with {count} partitions, not {partitions}: delete it first"
        return Rejected(Code.ALREADY_EXISTS, message, {"partitions": count})
    refused = _too_many_topics(ctx)
    if refused:
        return refused
    created = sum(2 * fact.partitions for fact in ctx.facts if type(fact) is f.TopicCreated)
    first_log_id = ctx.state.next_log_id + created
    ctx.facts.append(f.TopicCreated(name, first_log_id, partitions, ctx.now_ms, f.TopicConfig()))
    return None


def told_in(ctx: DecisionContext, topic: Topic) -> Topic | None:
    """The topic whose history is told in this one, if there is one."""
    if not topic.name.endswith(HISTORY_SUFFIX):
        return None
    told = ctx.state.topics.get(topic.name.removesuffix(HISTORY_SUFFIX))
    return told if told is not None and told.config.history else None


def configure_topic(ctx: DecisionContext, command: c.ConfigureTopic) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if topic.config == command.config:
        return Done(changed=False)
    ctx.facts.append(f.TopicConfigured(command.topic, command.config))
    if command.config.history and not topic.config.history:
        refused = _keep_history(ctx, command.topic, len(topic.log_ids))
        if refused:
            return refused
    return Done()


def delete_topic(ctx: DecisionContext, command: c.DeleteTopic) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if topic.dead_of:
        return Rejected(Code.INVALID_ARGUMENT, f"dead letters go with their topic: delete {topic.dead_of}")
    told = told_in(ctx, topic)
    if told is not None:
        message = f"{command.topic} is being written: turn off the history of {told.name} first"
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
    log = ctx.state.logs[topic.log_ids[command.partition]]
    if not log.start <= command.offset <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
    if command.offset == log.start:
        return Done(changed=False)
    ctx.facts.append(f.Trimmed(log.log_id, command.offset, ctx.now_ms))
    return Done()


def bad_partition(partition: int, topic: Topic) -> Rejected:
    return Rejected(
        Code.INVALID_ARGUMENT, f"partition {partition} is out of range: {topic.name} has {len(topic.log_ids)}"
    )


# --- groups ---


def create_group(ctx: DecisionContext, command: c.CreateGroup) -> Reply:
    found = find_group(ctx, command.topic, command.group, command.start)
    return found if isinstance(found, Rejected) else Done(changed=bool(ctx.facts))


def find_group(ctx: DecisionContext, topic_name: str, name: str, start: str | int) -> Group | Rejected:
    """The group, or a new one that this case registers."""
    topic = ctx.state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    group = topic.groups.get(name)
    if group is not None:
        return group
    refused = bad_name("group", name)
    if refused:
        return refused
    if len(topic.groups) >= ctx.limits.groups_per_topic_max:
        return Rejected(
            Code.OVERLOADED, f"topic {topic_name} has {len(topic.groups)} groups, the most allowed; delete one"
        )
    starts = tuple(_start_offset(ctx, log_id, start) for log_id in topic.log_ids)
    group_id = ctx.state.next_group_id
    ctx.facts.append(f.GroupCreated(group_id, topic_name, name, ctx.now_ms, starts))
    group = Group(group_id, topic_name, name, ctx.now_ms)
    for log_id, offset in zip(topic.log_ids, starts, strict=True):
        progress = Progress(group_id, log_id, offset)
        progress.delay_all(ctx.state.logs[log_id].delayed, ctx.now_ms)
        progress.pass_over(ctx.state.logs[log_id].passed_over(name))
        group.progress.append(progress)
    return group


def _start_offset(ctx: DecisionContext, log_id: int, start: str | int) -> int:
    """Where "earliest", "latest" or a time lies in a log."""
    log = ctx.state.logs[log_id]
    if start == "earliest":
        return log.start
    if start == "latest":
        return log.end
    assert isinstance(start, int), f"a start is earliest, latest or a time, not {start!r}"
    return max(log.start, min(log.end, ctx.reader.offset_at(log_id, start)))


def seek_group(ctx: DecisionContext, command: c.SeekGroup) -> Reply:
    """`to` is an offset when a partition is named; else "earliest", "latest" or a time for all partitions."""
    group = group_of(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.topic]
    if command.partition is None:
        targets = [(log_id, _start_offset(ctx, log_id, command.to)) for log_id in topic.log_ids]
    else:
        if not 0 <= command.partition < len(topic.log_ids):
            return bad_partition(command.partition, topic)
        log = ctx.state.logs[topic.log_ids[command.partition]]
        offset = command.to if isinstance(command.to, int) else _start_offset(ctx, log.log_id, command.to)
        if not log.start <= offset <= log.end:
            return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
        targets = [(log.log_id, offset)]
    for log_id, offset in targets:
        ctx.facts.append(f.GroupSought(group.group_id, log_id, offset, ctx.now_ms))
    return Done()


def pause_group(ctx: DecisionContext, command: c.PauseGroup) -> Reply:
    group = group_of(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    if group.paused == command.paused:
        return Done(changed=False)
    ctx.facts.append(f.GroupPaused(group.group_id, command.paused))
    return Done()


def delete_group(ctx: DecisionContext, command: c.DeleteGroup) -> Reply:
    group = group_of(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    ctx.facts.append(f.GroupDeleted(group.group_id, ctx.now_ms))
    return Done()
