"""Commit offsets: a reader that keeps its own offsets reports how far it has read.

Such a group has a lag, limits producers and becomes idle like any other, and no message of it is ever claimed. One
command moves the group in many partitions of many topics, in one frame: all of them or none. It may move back, because
the reader's own record decides: a query that resumes from an older checkpoint reads its rows again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import facts as f
from driftq.core.model.replies import Done, Rejected, Reply
from driftq.core.state.backlog import has_caught_up
from driftq.core.transitions.lookups import bad_new_group, bad_partition, no_such_topic
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import CommitOffsets
    from driftq.core.state.groups import Group, Topic

COMMITTED_MAX = 2_000  # partitions of one command; one topic has fewer


def commit_offsets(ctx: DecisionContext, command: CommitOffsets) -> Reply:
    if not 1 <= len(command.offsets) <= COMMITTED_MAX:
        return Rejected(Code.INVALID_ARGUMENT, f"a commit has 1 to {COMMITTED_MAX} offsets, not {len(command.offsets)}")
    by_topic: dict[str, dict[int, int]] = {}
    for topic_name, partition, offset in command.offsets:
        topic = ctx.state.topics.get(topic_name)
        if topic is None:
            return no_such_topic(topic_name)
        if not 0 <= partition < len(topic.log_ids):
            return bad_partition(partition, topic)
        log = ctx.state.logs[topic.log_ids[partition]]
        if not 0 <= offset <= log.end:
            message = f"{topic_name}/{partition} ends at offset {log.end}; a group cannot have read up to {offset}"
            return Rejected(Code.INVALID_ARGUMENT, message)
        by_topic.setdefault(topic_name, {})[partition] = max(offset, log.start)  # retention may be ahead of the reader
    created = 0
    for topic_name, offsets in by_topic.items():
        topic = ctx.state.topics[topic_name]
        group = topic.groups.get(command.group)
        refused = (
            _move(ctx, group, offsets) if group is not None else _create(ctx, topic, command.group, offsets, created)
        )
        if refused is not None:
            return refused
        created += group is None
    return Done(changed=bool(ctx.facts))


def _move(ctx: DecisionContext, group: Group, offsets: dict[int, int]) -> Rejected | None:
    if not group.commits_offsets:
        message = (
            f"group {group.name} of {group.topic} is used by workers, which claim from it; commit offsets for another "
            f"group, or `driftq groups delete {group.topic} {group.name}` if they are gone"
        )
        return Rejected(Code.CONFLICT, message)
    if group.idle and has_caught_up(ctx.state, ctx.limits, group):
        ctx.facts.append(f.GroupCaughtUp(group.group_id, ctx.now_ms))
    for partition, offset in offsets.items():
        progress = group.progress[partition]
        if progress.cursor != offset:  # nothing else moves it
            ctx.facts.append(f.GroupSought(group.group_id, progress.log_id, offset, ctx.now_ms))
    return None


def _create(ctx: DecisionContext, topic: Topic, name: str, offsets: dict[int, int], created: int) -> Rejected | None:
    """A group that starts at these offsets, and in partitions that are not named at their start."""
    refused = bad_new_group(ctx, topic, name)
    if refused:
        return refused
    logs = [ctx.state.logs[log_id] for log_id in topic.log_ids]
    starts = tuple(offsets.get(log.partition, log.start) for log in logs)
    group_id = ctx.state.next_group_id + created
    ctx.facts.append(f.GroupCreated(group_id, topic.name, name, ctx.now_ms, starts, commits_offsets=True))
    return None
