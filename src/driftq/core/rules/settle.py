"""Settles what was claimed: ack, nack, release, reject, extend, cancel; and extends leases for the server.

Every call is checked against the lease of each message that it names:

    state of the message      ack            nack            reject          release     extend
    held by the caller        settled        backoff, retry  dead letter     given back  extended
    lease ran out, not        settled        reason is       dead letter     nothing     refused
    delivered again                          recorded
    held by another owner     refused        refused         refused         refused     refused
    settled                   succeeds       refused         refused         nothing     refused
    dead letter               refused        succeeds if it  succeeds if it  nothing     refused
                                             is a repeat     is a repeat

An ack inside an outcome is stricter (`Ack.fenced`): the caller must hold every message.

An ack may bring the result of its message, and a nack or reject the traceback of its worker: they are stored in the
frame that settles the message, and only there. An extension may bring a report of the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.facts import Extended
from driftq.core.model.job_facts import ProgressReported, ResultStored
from driftq.core.model.replies import Done, Refusal, Rejected, Reply, Settlement
from driftq.core.state.progress import MessageState, Progress
from driftq.core.transitions.cancel import cancel_message
from driftq.core.transitions.dead_letter import dead_letter
from driftq.core.transitions.expiry import extensions
from driftq.core.transitions.lookups import (
    audit_refusal,
    bad_lease,
    bad_partition,
    find_group,
    no_such_topic,
    overlap,
)
from driftq.core.transitions.retry import bounded, bounded_end, fail
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import Held, Keep
    from driftq.core.model.ranges import Range
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Lease

SettleCommand = c.Ack | c.Nack | c.ReleaseMessages | c.RejectMessages | c.Extend


class _Targets:
    """The messages of a call, by what may be done with them. `fenced`: the caller must hold every one."""

    __slots__ = ("fenced", "held", "refused", "reported", "resting")

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.held: list[tuple[Progress, Range]] = []
        self.resting: list[tuple[Progress, int]] = []  # the lease ran out or they were nacked, and not delivered again
        self.reported: list[tuple[Progress, c.Held]] = []  # those of them that have a result or a progress
        self.refused: list[Refusal] = []


def _check(ctx: DecisionContext, group: Group, command: SettleCommand, *, fenced: bool = False) -> _Targets | Rejected:
    targets = _Targets(fenced)
    if len(command.held) > 1 and overlap(command.held):
        return Rejected(Code.INVALID_ARGUMENT, "a message is named twice in one call")
    for held in command.held:
        if not 0 <= held.partition < len(group.progress):
            return bad_partition(held.partition, ctx.state.topics[group.topic])
        if not 0 <= held.first < held.end:
            return Rejected(Code.INVALID_ARGUMENT, "offset cannot be negative, and a range has at least one")
        if held.result or held.progress:
            refusal = _bad_report(ctx, held)
            if isinstance(refusal, Rejected):
                return refusal
            if refusal is not None:
                targets.refused.append(refusal)
                continue
        progress = group.progress[held.partition]
        lease = progress.held.run_at(held.first, held.end)
        if lease is not None and _is_holder(lease, held.token, command.owner):
            targets.held.append((progress, (held.first, held.end)))
            if held.result or held.progress:
                targets.reported.append((progress, held))
            continue
        # One offset past the end of the log is enough to report that the others were never delivered.
        stop = max(held.first, ctx.state.logs[progress.log_id].end) + 1
        for offset in range(held.first, min(held.end, stop)):
            _check_message(targets, progress, held, offset, command)
    return targets


def _bad_report(ctx: DecisionContext, held: Held) -> Refusal | Rejected | None:
    """A result that is too large is refused with its message: the others are acked. Heartbeats have no such refusals,
    because a worker would take its lease for lost: they are refused as a whole."""
    if held.end != held.first + 1:
        return Rejected(Code.INVALID_ARGUMENT, "a result or a progress belongs to one message: name it without `end`")
    largest = ctx.limits.progress_bytes
    if len(held.progress) > largest:
        message = f"the progress has {len(held.progress)} bytes as JSON; at most {largest} are allowed"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
    largest = ctx.limits.job_result_bytes
    if len(held.result) > largest:
        message = f"the result has {len(held.result)} bytes as JSON; at most {largest} are allowed: store it elsewhere"
        return Refusal(held.partition, held.first, Code.TOO_LARGE, message)
    return None


def _check_message(targets: _Targets, progress: Progress, held: c.Held, offset: int, command: SettleCommand) -> None:
    state, lease, entry = progress.state_of(offset)
    refusal = ""
    code = Code.NOT_OWNER
    if state is MessageState.SETTLED:
        refusal = _already_settled(targets, progress, held, offset, command)
        if not refusal:
            return
    elif lease is None:
        refusal = "not owner: the message was given back"
        if state is not MessageState.RESTING:
            refusal, code = "message was not delivered to this group", Code.NOT_DELIVERED
    elif not _is_holder(lease, held.token, command.owner):
        refusal = "not owner"
    elif state is MessageState.HELD:
        targets.held.append((progress, (offset, offset + 1)))
        if held.result or held.progress:
            targets.reported.append((progress, held))
        return
    elif targets.fenced and entry is not None and not entry.lost:
        refusal = "not owner: the message was given back"
    else:
        targets.resting.append((progress, offset))
        if held.result:
            targets.reported.append((progress, held))
        return
    targets.refused.append(Refusal(held.partition, offset, code, refusal))


def _already_settled(targets: _Targets, progress: Progress, held: c.Held, offset: int, command: SettleCommand) -> str:
    """Why a call about a settled message is refused; "" if it is a repeat or has nothing to change."""
    is_dead = offset in progress.dead
    if isinstance(command, c.ReleaseMessages | c.Extend) or (
        isinstance(command, c.Ack) and not targets.fenced and not is_dead
    ):
        return ""
    if not is_dead:
        return "the message is settled already"
    if not isinstance(command, c.Ack) and progress.dead.was_held(offset, held.token, command.owner):
        return ""
    return "the message became a dead letter"


def _is_holder(lease: Lease, token: str, owner: str) -> bool:
    return lease.token == token if token else lease.owner == owner


def _settle(ctx: DecisionContext, command: SettleCommand, act: Callable[[Group, _Targets], None]) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    targets = _check(ctx, group, command)
    if isinstance(targets, Rejected):
        return targets
    act(group, targets)
    return Settlement(tuple(targets.refused))


def _by_log(held: list[tuple[Progress, Range]]) -> dict[int, list[Range]]:
    ranges: dict[int, list[Range]] = {}
    for progress, (first, end) in held:
        known = ranges.setdefault(progress.log_id, [])
        if known and known[-1][1] == first:
            known[-1] = (known[-1][0], end)
        else:
            known.append((first, end))
    return ranges


def _too_much(ctx: DecisionContext, progress: Progress, offset: int) -> Refusal:
    partition = ctx.state.logs[progress.log_id].partition
    return Refusal(partition, offset, Code.OVERLOADED, "too much for one call; send the rest again")


def ack(ctx: DecisionContext, command: c.Ack) -> Reply:
    """A late ack counts as long as the message was not delivered again. A fenced one, as a part of an outcome, acks
    everything it names or is refused: what its holder gave back, or what is settled, is no longer its own."""
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    targets = _check(ctx, group, command, fenced=command.fenced)
    if isinstance(targets, Rejected):
        return targets
    if command.fenced and targets.refused:
        first = targets.refused[0]
        return Rejected(first.code, first.message, {"partition": first.partition, "offset": first.offset})
    _ack(ctx, group, targets)
    return Settlement(tuple(targets.refused))


def _ack(ctx: DecisionContext, group: Group, targets: _Targets) -> None:
    late = [(progress, (offset, offset + 1)) for progress, offset in targets.resting]
    for log_id, ranges in _by_log(targets.held + late).items():
        ctx.facts.append(f.Settled(group.group_id, log_id, tuple(ranges), f.ACKED, ctx.now_ms))
    expires_ms = ctx.now_ms + ctx.limits.job_result_ttl_ms
    for progress, held in targets.reported:
        result = ResultStored(group.group_id, progress.log_id, held.first, ctx.now_ms, expires_ms, held.result)
        ctx.facts.append(result)


def nack(ctx: DecisionContext, command: c.Nack) -> Reply:
    """A repeated nack changes nothing. A nack after the lease ran out records its reason."""
    reason, traceback = command.reason or "nack", bounded_end(command.traceback, ctx.limits.traceback_bytes)

    def act(group: Group, targets: _Targets) -> None:
        for progress, offset in targets.resting:
            if ctx.is_full():
                targets.refused.append(_too_much(ctx, progress, offset))
            elif progress.entries[offset].lost:
                _explain(ctx, group, progress, offset, command)
        for progress, (first, end) in targets.held:
            for offset in range(first, end):
                if ctx.is_full():
                    targets.refused.append(_too_much(ctx, progress, offset))
                    continue
                fail(ctx, group, progress, offset, reason, lost=False, delay=command.delay_ms, traceback=traceback)

    reply = _settle(ctx, command, act)
    if ctx.dead_letters and isinstance(reply, Settlement):
        dead = tuple((ctx.state.logs[log_id].partition, offset) for _, log_id, offset in ctx.dead_letters)
        return Settlement(reply.refused, dead=dead)
    return reply


def _explain(ctx: DecisionContext, group: Group, progress: Progress, offset: int, command: c.Nack) -> None:
    """The attempt has ended already and is not counted again; the reason replaces `ack_timeout`."""
    error = bounded(command.reason or "nack", ctx.limits.error_bytes)
    retry_at_ms = progress.entries[offset].retry_at_ms
    if command.delay_ms is not None:
        retry_at_ms = ctx.now_ms + command.delay_ms
    ctx.expect_event(ctx.state.logs[progress.log_id], error)
    ctx.facts.append(f.FailureExplained(group.group_id, progress.log_id, offset, ctx.now_ms, retry_at_ms, error))


def reject(ctx: DecisionContext, command: c.RejectMessages) -> Reply:
    traceback = bounded_end(command.traceback, ctx.limits.traceback_bytes)

    def act(group: Group, targets: _Targets) -> None:
        late = [(progress, (offset, offset + 1)) for progress, offset in targets.resting]
        for progress, (first, end) in targets.held + late:
            for offset in range(first, end):
                if ctx.is_full():
                    targets.refused.append(_too_much(ctx, progress, offset))
                    continue
                if ctx.state.topics[group.topic].dead_of:  # a dead letter has no dead letters
                    run = ((offset, offset + 1),)
                    error = bounded(command.reason, ctx.limits.error_bytes)
                    ctx.facts.append(f.Settled(group.group_id, progress.log_id, run, f.DEAD, ctx.now_ms, error))
                elif not dead_letter(ctx, group, progress, offset, "rejected", command.reason, traceback=traceback):
                    partition = ctx.state.logs[progress.log_id].partition
                    message = "the record cannot be read, so it cannot become a dead letter"
                    targets.refused.append(Refusal(partition, offset, Code.DATA_CORRUPT, message))

    return _settle(ctx, command, act)


def release(ctx: DecisionContext, command: c.ReleaseMessages) -> Reply:
    def act(group: Group, targets: _Targets) -> None:
        retry_at_ms = ctx.now_ms + command.delay_ms
        for log_id, ranges in _by_log(targets.held).items():
            ctx.facts.append(f.Released(group.group_id, log_id, tuple(ranges), retry_at_ms, command.sent))

    return _settle(ctx, command, act)


def extend(ctx: DecisionContext, command: c.Extend) -> Reply:
    """Only a live lease can be extended. After it ran out, the holder is refused. Without a `lease_ms` a lease that
    ends later than the default is left as it is."""
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    config = ctx.state.topics[command.topic].config
    lease_ms = command.lease_ms if command.lease_ms is not None else config.lease_ms or ctx.limits.lease_ms
    refused = bad_lease(ctx, lease_ms)
    if refused is not None:
        return refused
    targets = _check(ctx, group, command)
    if isinstance(targets, Rejected):
        return targets
    until_ms = ctx.now_ms + lease_ms
    for log_id, ranges in _by_log(targets.held).items():
        progress = ctx.state.progress_of(group.group_id, log_id)
        if command.lease_ms is None:
            ranges = [part for run in ranges for part in _ending_before(progress, run, until_ms)]
        for end_ms, extended in extensions(ctx.state.logs[log_id], progress, ranges, ctx.now_ms + lease_ms).items():
            ctx.facts.append(f.Extended(group.group_id, log_id, tuple(extended), end_ms))
            until_ms = min(until_ms, end_ms)
    for progress, held in targets.reported:
        ctx.facts.append(ProgressReported(group.group_id, progress.log_id, held.first, ctx.now_ms, held.progress))
    lost = list(targets.refused)
    for progress, offset in targets.resting:
        partition = ctx.state.logs[progress.log_id].partition
        lost.append(Refusal(partition, offset, Code.NOT_OWNER, "the lease was lost"))
    lost.extend(_refuse_settled(ctx, group, command))
    return Settlement(tuple(lost), until_ms)


def _refuse_settled(ctx: DecisionContext, group: Group, command: c.Extend) -> list[Refusal]:
    """Refuse a heartbeat for a settled message, so that the worker stops."""
    refusals: list[Refusal] = []
    for held in command.held:
        progress = group.progress[held.partition]
        if progress.held.run_at(held.first, held.end) is not None:
            continue  # none of it is settled
        for offset in range(held.first, min(held.end, ctx.state.logs[progress.log_id].end)):
            if progress.state_of(offset)[0] is MessageState.SETTLED:
                refusals.append(Refusal(held.partition, offset, Code.NOT_OWNER, "the message is settled"))
    return refusals


def ack_through(ctx: DecisionContext, command: c.AckThrough) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    if not 0 <= command.partition < len(group.progress):
        return bad_partition(command.partition, ctx.state.topics[group.topic])
    progress = group.progress[command.partition]
    end = command.offset + 1
    if end <= progress.floor:
        return Settlement()
    offset = progress.settled.next_outside(progress.floor)
    while offset < end:
        state, lease, entry = progress.state_of(offset)
        if state is not MessageState.HELD or lease is None:
            return Rejected(Code.NOT_DELIVERED, f"offset {offset} is not in flight; nothing was acked")
        if not _is_holder(lease, command.token, command.owner):
            return Rejected(Code.NOT_OWNER, f"not owner of offset {offset}; nothing was acked")
        run_end = offset + 1 if entry is not None else next(progress.held.overlapping(offset, end))[1]
        offset = progress.settled.next_outside(run_end)
    ctx.facts.append(f.Settled(group.group_id, progress.log_id, ((progress.floor, end),), f.ACKED, ctx.now_ms))
    return Settlement()


def cancel(ctx: DecisionContext, command: c.Cancel) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    refused = audit_refusal(command.topic)  # it would hide the record from groups that start later
    if refused is not None:
        return refused
    log = ctx.state.logs[topic.log_ids[command.partition]]
    if not log.start <= command.offset < log.end:
        return Rejected(Code.NOT_FOUND, f"offset {command.offset} is not in the log ({log.start} to {log.end})")
    if not ctx.state.tenure.is_unfinished(log.log_id, command.offset):
        return Done(changed=False)
    cancel_message(ctx, topic, log, command.offset)
    return Done()


def keep_leases(ctx: DecisionContext, command: Keep) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    ranges: dict[int, list[Range]] = {}
    for held in command.held:
        if not 0 <= held.partition < len(group.progress):
            return bad_partition(held.partition, ctx.state.topics[group.topic])
        progress = group.progress[held.partition]
        ending = _ending_before(progress, (held.first, held.end), command.until_ms, held.token, ctx.now_ms)
        ranges.setdefault(progress.log_id, []).extend(ending)
    for log_id, held_ranges in ranges.items():
        progress = ctx.state.progress_of(group.group_id, log_id)
        for until_ms, extended in extensions(ctx.state.logs[log_id], progress, held_ranges, command.until_ms).items():
            ctx.facts.append(Extended(group.group_id, log_id, tuple(extended), until_ms))
    return Settlement((), command.until_ms)


def _ending_before(progress: Progress, run: Range, until_ms: int, token: str = "", after_ms: int = 0) -> list[Range]:
    """The ranges of a run whose lease ends before `until_ms`; with a token only those that it holds, and that have not
    ended at `after_ms`."""

    def is_ending(lease: Lease) -> bool:
        return after_ms < lease.until_ms < until_ms and (not token or lease.token == token)

    ranges = [(low, high) for low, high, lease in progress.held.overlapping(*run) if is_ending(lease)]
    for offset in progress.entries_in(*run):
        entry = progress.entries[offset]
        if entry.held and entry.lease is not None and is_ending(entry.lease):
            ranges.append((offset, offset + 1))
    return sorted(ranges)
