"""What an operator does to messages: retry now, purge a topic, move messages, delete dead letters.

    command             applies to                                     effect
    RetryMessages       in backoff or delayed                          due now, for every group
    PurgeTopic          everything, leased and waiting messages too    dropped from the log
    MoveMessages        not finished, and under no lease               produced again, settled for every group
    DeleteDeadLetters   not redriven                                   settled for the group that redrives

All of them are idempotent. A worker that holds a purged message is refused at its next heartbeat; its ack has no
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model.job_facts import MadeDue
from driftq.core.model.ranges import Range, runs
from driftq.core.model.replies import Done, Produced, PurgeResult, RedriveResult, Rejected, Reply, Touched
from driftq.core.state.idempotency_keys import produce_scope
from driftq.core.transitions.lookups import (
    audit_refusal,
    bad_partition,
    find_or_create_group,
    id_is_taken,
    is_movable,
    no_such_topic,
    purge_of,
)
from driftq.wire.errors import Code
from driftq.wire.namespaces import own_name

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import Produce
    from driftq.core.model.interventions import DeleteDeadLetters, MoveMessages, MovePart, PurgeTopic, RetryMessages
    from driftq.core.state.groups import Topic
    from driftq.core.state.leases import Entry
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress


# --- retry now ---


def retry(ctx: DecisionContext, command: RetryMessages) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    log = ctx.state.logs[topic.log_ids[command.partition]]
    offsets = sorted(dict.fromkeys(command.offsets))
    waiting: dict[int, None] = {}  # for some group
    delayed: dict[int, None] = {}  # by their producer
    for group in topic.groups.values():
        entries = _waiting(group.progress[command.partition], offsets, ctx.now_ms)
        if entries:
            waiting |= dict.fromkeys(entries)
            delayed |= dict.fromkeys(offset for offset, entry in entries.items() if not entry.was_delivered())
            ctx.facts.append(MadeDue(group.group_id, log.log_id, tuple(runs(list(entries))), ctx.now_ms))
    delayed |= dict.fromkeys(_delayed(log, (offset for offset in offsets if offset not in waiting), ctx.now_ms))
    if delayed:  # a group that starts later would wait for them
        ctx.facts.append(MadeDue(0, log.log_id, tuple(runs(sorted(delayed))), ctx.now_ms))
    return Touched(len(waiting | delayed))


def _waiting(progress: Progress, offsets: list[int], now_ms: int) -> dict[int, Entry]:
    """The entries of those that wait, in the order of offsets."""
    known = progress.entries
    entries = {offset: known[offset] for offset in offsets if offset in known}
    return {offset: entry for offset, entry in entries.items() if not entry.held and entry.retry_at_ms > now_ms}


def _delayed(log: Log, offsets: Iterable[int], now_ms: int) -> Iterator[int]:
    """Those that a group which starts now would wait for."""
    times = log.delays.times
    return (offset for offset in offsets if times.get(offset, 0) > now_ms and offset not in log.cancelled)


# --- purge ---


def purge(ctx: DecisionContext, command: PurgeTopic) -> Reply:
    result = purge_of(ctx.state, command.topic)
    if isinstance(result, PurgeResult):
        for log_id in ctx.state.topics[command.topic].log_ids:
            log = ctx.state.logs[log_id]
            if log.end > log.start:
                ctx.facts.append(f.Trimmed(log_id, log.end, ctx.now_ms))
    return result


# --- move ---


def move(ctx: DecisionContext, command: MoveMessages) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    refused = audit_refusal(command.topic)  # it would hide the records from groups that start later
    if refused is not None:
        return refused
    if topic.dead_of:
        return Rejected(
            Code.INVALID_ARGUMENT, f"{own_name(topic.name)} holds dead letters: redrive them to another topic"
        )
    taken: dict[tuple[int, int], None] = {}  # by earlier parts: their facts are not applied yet
    jobs: dict[str, Produced] = {}  # of earlier parts, by scope
    replies: list[Reply] = []
    for part in command.parts:
        savepoint = ctx.savepoint()
        reply = _move_part(ctx, topic, part, taken, jobs)
        if isinstance(reply, Produced):
            taken |= dict.fromkeys((part.partition, offset) for offset in part.offsets)
            if part.produce.job is not None:
                jobs[produce_scope(part.produce.job)] = reply
        else:
            ctx.roll_back(savepoint)
        replies.append(reply)
    return RedriveResult(tuple(replies))


def _move_part(
    ctx: DecisionContext, topic: Topic, part: MovePart, taken: dict[tuple[int, int], None], jobs: dict[str, Produced]
) -> Reply:
    refused = _bad_part(ctx, topic, part)
    if refused is not None:
        return refused
    log = ctx.state.logs[topic.log_ids[part.partition]]
    is_taken = any((part.partition, offset) in taken for offset in part.offsets)
    if is_taken or not all(is_movable(ctx.state, topic, log, offset) for offset in part.offsets):
        return Done(changed=False)
    earlier = jobs.get(produce_scope(part.produce.job)) if part.produce.job is not None else None
    reply = earlier or ctx.decide(_with_ttl(ctx, log, part))
    if not isinstance(reply, Produced):
        return reply
    if earlier is not None or reply.duplicate:
        return id_is_taken(reply)
    error = f"moved to {own_name(reply.topic)}"
    for group in topic.groups.values():
        progress = group.progress[log.partition]
        ranges = tuple((offset, offset + 1) for offset in part.offsets if not progress.is_settled(offset))
        if ranges:
            ctx.facts.append(f.Settled(group.group_id, log.log_id, ranges, f.CANCELLED, ctx.now_ms, error))
    for offset in part.offsets:  # for groups that start later
        ctx.facts.append(f.Cancelled(log.log_id, offset, ctx.now_ms))
        ctx.expect_event(log, error)
    return reply


def _with_ttl(ctx: DecisionContext, log: Log, part: MovePart) -> Produce:
    """A job keeps its id for as long after its end as it was enqueued with."""
    scope = ctx.state.keys.job_at(log.log_id, part.offsets[0]) if part.produce.job is not None else ""
    if not scope or part.produce.job is None:
        return part.produce
    return replace(part.produce, job=replace(part.produce.job, ttl_ms=ctx.state.keys.ttl_ms(scope)))


def _bad_part(ctx: DecisionContext, topic: Topic, part: MovePart) -> Rejected | None:
    if not 0 <= part.partition < len(topic.log_ids):
        return bad_partition(part.partition, topic)
    if part.produce.topic == topic.name:
        return Rejected(Code.INVALID_ARGUMENT, "messages are moved to another topic, not to their own")
    if not part.offsets or len(dict.fromkeys(part.offsets)) != part.produce.count:
        return Rejected(Code.INVALID_ARGUMENT, "a move has one record for each message")
    end = ctx.reader.end(topic.log_ids[part.partition])
    if not all(0 <= offset < end for offset in part.offsets):
        return Rejected(Code.NOT_FOUND, f"partition {part.partition} of {own_name(topic.name)} ends at {end}")
    return None


# --- dead letters ---


def delete_letters(ctx: DecisionContext, command: DeleteDeadLetters) -> Reply:
    group = find_or_create_group(ctx, command.topic, command.group, "earliest")
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.topic]
    if not topic.dead_of:
        return Rejected(Code.INVALID_ARGUMENT, f"{own_name(topic.name)} holds no dead letters")
    deleted: dict[int, dict[int, None]] = {}  # by partition: offsets
    for letters in command.letters:
        if not 0 <= letters.partition < len(topic.log_ids):
            return bad_partition(letters.partition, topic)
        progress, end = group.progress[letters.partition], ctx.reader.end(topic.log_ids[letters.partition])
        unsettled = (n for n in range(max(0, letters.first), min(letters.end, end)) if not progress.is_settled(n))
        deleted.setdefault(letters.partition, {}).update(dict.fromkeys(unsettled))
    count = sum(map(len, deleted.values()))
    if not count:
        ctx.facts.clear()  # the group is not created for nothing
    for partition, offsets in deleted.items():
        ranges: tuple[Range, ...] = tuple(runs(sorted(offsets)))
        if ranges:
            ctx.facts.append(f.Settled(group.group_id, topic.log_ids[partition], ranges, f.CANCELLED, ctx.now_ms))
    return Touched(count)
