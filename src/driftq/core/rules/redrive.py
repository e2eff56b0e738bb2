"""Redrive: send dead letters back to their topic. They are produced again and settled in one frame, so that a repeated
redrive never doubles one.

A command has many parts, each with the letters that go to one partition. A part is all or nothing:

1. If one of its letters is settled already, or named by an earlier part, nothing of it happens (`Done`, not changed).
2. If its batch is refused (no such topic, no room), or a group that a letter is meant for is gone, it is refused.
3. Else the batch is appended and all its letters are settled.

The other parts are not affected. A schedule that names a group directs a message to that group: it is settled as
skipped for all others in the same frame, and groups that start later skip it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model.commands import Produce, ProduceKey
from driftq.core.model.ranges import Range, runs
from driftq.core.model.replies import Done, Produced, RedriveResult, Rejected, Reply
from driftq.core.state.idempotency_keys import job_key, produce_scope
from driftq.core.transitions.lookups import bad_partition, find_or_create_group, id_is_taken
from driftq.wire.errors import Code
from driftq.wire.message import read_head
from driftq.wire.namespaces import beside

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.interventions import Redrive, RedrivePart
    from driftq.core.state.groups import Group, Topic


def redrive(ctx: DecisionContext, command: Redrive) -> Reply:
    group = find_or_create_group(ctx, command.topic, command.group, "earliest")
    if isinstance(group, Rejected):
        return group
    decision = _RedriveDecision(ctx, ctx.state.topics[command.topic], group)
    replies = tuple(decision.take(part) for part in command.parts)
    if not any(isinstance(reply, Produced) for reply in replies):
        ctx.facts.clear()  # the group is not created for nothing
    return RedriveResult(replies)


class _RedriveDecision:
    """One command, part by part. Its facts are not applied yet, so it remembers what earlier parts have used."""

    def __init__(self, ctx: DecisionContext, topic: Topic, group: Group) -> None:
        self._ctx = ctx
        self._topic = topic  # of the dead letters
        self._group = group  # that redrives
        self._redriven: set[tuple[int, int]] = set()  # partition and offset
        self._jobs: dict[str, Produced] = {}  # by scope

    def take(self, part: RedrivePart) -> Reply:
        savepoint = self._ctx.savepoint()
        reply = self._redrive(part)
        if not isinstance(reply, Produced):
            self._ctx.roll_back(savepoint)
        return reply

    def _redrive(self, part: RedrivePart) -> Reply:
        ctx = self._ctx
        refused = self._bad_part(part)
        if refused is not None:
            return refused
        progress = self._group.progress[part.partition]
        letters = {(part.partition, offset) for offset in part.offsets}
        if len(letters) < len(part.offsets) or not letters.isdisjoint(self._redriven):
            return Done(changed=False)
        if any(progress.is_settled(offset) for offset in part.offsets):
            return Done(changed=False)
        job = part.produce.job  # one that goes elsewhere brings its id
        scope = produce_scope(job) if job is not None else ""
        reply = self._jobs.get(scope) or ctx.decide(part.produce)
        if not isinstance(reply, Produced):
            return reply
        if reply.duplicate or scope in self._jobs:
            return id_is_taken(reply)
        if job is None and len(part.offsets) == 1:
            scope = self._keep_id(progress.log_id, part.offsets[0])
        refused = _direct(ctx, part.produce, reply)
        if refused is not None:
            return refused
        ranges = tuple(runs(sorted(part.offsets)))
        ctx.facts.append(f.Settled(self._group.group_id, progress.log_id, ranges, f.ACKED, ctx.now_ms))
        self._redriven |= letters
        if scope:
            self._jobs[scope] = reply
        return reply

    def _bad_part(self, part: RedrivePart) -> Rejected | None:
        if not 0 <= part.partition < len(self._topic.log_ids):
            return bad_partition(part.partition, self._topic)
        if not part.offsets or len(part.offsets) != part.produce.count:
            return Rejected(Code.INVALID_ARGUMENT, "a redrive has one record for each dead letter")
        end = self._ctx.reader.end(self._topic.log_ids[part.partition])
        for offset in part.offsets:
            if not 0 <= offset < end:
                return Rejected(Code.NOT_FOUND, f"there is no dead letter at offset {offset}")
        return None

    def _keep_id(self, dead_log_id: int, offset: int) -> str:
        """Give the job that runs again its id, unless the id is in use: by another job, or by the original, which other
        groups have not finished. Returns the scope of the id, "" if it was not given."""
        ctx = self._ctx
        head = read_head(ctx.reader.record(dead_log_id, offset).head)
        state, letter, job = ctx.state, head.dlq, head.job
        name = beside(self._topic.name, letter.topic) if letter is not None else ""
        topic = state.topics.get(name)
        if letter is None or topic is None or job is None or not job.id or letter.partition >= len(topic.log_ids):
            return ""
        log_id = topic.log_ids[letter.partition]
        scope, ttl_ms = state.keys.job_at(log_id, letter.offset), ctx.limits.key_ttl_ms
        if scope:
            if state.tenure.is_unfinished(log_id, letter.offset):
                return ""
            ttl_ms = state.keys.ttl_ms(scope)
        else:
            tenant = head.envelope.tenant_id if head.envelope is not None else ""
            scope = produce_scope(ProduceKey(tenant, name, job_key(job.id)))
            if state.keys.find(scope, ctx.now_ms) is not None:
                return ""
        if scope in self._jobs:
            return ""
        append = ctx.facts[-1]
        assert isinstance(append, f.Appended)
        along = replace(append.along or f.AppendMetadata(), job=scope, job_ttl_ms=ttl_ms)
        ctx.facts[-1] = replace(append, along=along)
        return scope


def _direct(ctx: DecisionContext, produce: Produce, reply: Produced) -> Rejected | None:
    """Settle messages that are meant for one group for all other groups."""
    topic = ctx.state.topics[reply.topic]
    directed: dict[str, list[int]] = {}  # by group: the offsets that only it gets
    for mark in produce.marks:
        if not mark.group:
            continue
        if mark.group not in topic.groups:
            message = f"group {mark.group} of topic {topic.name} is gone: create it, or redrive to all groups"
            return Rejected(Code.NOT_FOUND, message)
        directed.setdefault(mark.group, []).append(reply.first_offset + mark.index)
    log_id = topic.log_ids[reply.partition]
    for group in topic.groups.values() if directed else ():
        skipped = sorted(offset for name, offsets in directed.items() if name != group.name for offset in offsets)
        if skipped:
            ranges = _skipped_ranges(ctx, log_id, skipped)
            ctx.facts.append(f.Settled(group.group_id, log_id, ranges, f.SKIPPED, ctx.now_ms))
    return None


def _skipped_ranges(ctx: DecisionContext, log_id: int, offsets: list[int]) -> tuple[Range, ...]:
    """A history has an event for each single message that is skipped."""
    if log_id in ctx.state.history_logs:
        return tuple((offset, offset + 1) for offset in offsets)
    return tuple(runs(offsets))
