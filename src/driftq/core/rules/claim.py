"""Claiming: which messages an owner gets. Partitions give in turn. In each, due retries are offered their share first,
fresh messages get the rest, and retries fill what is left, so neither starves the other.

The share of retries is a balance that is carried from claim to claim, for each group and partition: with a ratio of 0.2
a claim of ten offers two of its messages to retries, and of five claims of one message the first does. A retry that
becomes due when there was none for a while has not long to wait: nearly one message is saved up for it, never more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.context import EVENT_BYTES, DecisionContext
from driftq.core.model.facts import FAIR_TENANT, FilterNoted, GroupCaughtUp, Leased, Settled
from driftq.core.model.replies import Claimed, Delivery, Rejected, Reply
from driftq.core.state.backlog import has_caught_up
from driftq.core.state.groups import EVERYTHING, FILTERS_MAX, Filter, Group
from driftq.core.transitions import claim_selection
from driftq.core.transitions.claim_selection import ClaimFilter, FreshRun
from driftq.core.transitions.dead_letter import dead_letter
from driftq.core.transitions.lease_expiry import expire_leases
from driftq.core.transitions.lookups import bad_lease, find_or_create_group
from driftq.core.transitions.skip import committed_in, has_committed_effects, is_committed, skip
from driftq.core.transitions.timeouts import leases, spans
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.model.commands import Claim
    from driftq.core.model.facts import LaneKey
    from driftq.core.model.ranges import Range
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

WHOLE = 1_000  # balances are counted in thousandths of a message


class _Share:
    """What one partition gives to a claim."""

    __slots__ = ("deliveries", "fair", "has_done", "log", "progress", "ranges", "retry_debt", "room")

    def __init__(self, log: Log, progress: Progress, room: int, fair: bool) -> None:
        self.fair = fair
        self.has_done = False  # whether the group has committed effects
        self.retry_debt = progress.retry_debt
        self.log = log
        self.progress = progress
        self.room = room  # in-flight slots that are free
        self.ranges: dict[LaneKey | None, list[Range]] = {}
        self.deliveries: list[Delivery] = []


def claim(ctx: DecisionContext, command: Claim) -> Reply:
    if not 1 <= command.max_messages <= ctx.limits.claim_max:
        return Rejected(Code.INVALID_ARGUMENT, f"max must be 1 to {ctx.limits.claim_max}")
    group = find_or_create_group(ctx, command.topic, command.group, command.start)
    if isinstance(group, Rejected):
        return group
    config = ctx.state.topics[command.topic].config
    lease_ms = command.lease_ms if command.lease_ms is not None else config.lease_ms or ctx.limits.lease_ms
    refused = bad_lease(ctx, lease_ms)
    if refused is not None:
        return refused
    if group.paused:
        return Claimed(group.group_id, (), "", 0)
    if group.idle and has_caught_up(ctx.state, ctx.limits, group):
        ctx.facts.append(GroupCaughtUp(group.group_id, ctx.now_ms))
    shares = _shares(ctx, group, config.in_flight_max or ctx.limits.in_flight_max, config.fair == FAIR_TENANT)
    most = command.max_messages
    if config.history:
        most = min(most, max(1, ctx.limits.batch_bytes // EVENT_BYTES))  # as many as one frame can tell of
    _note_filter(ctx, group, (command.task, command.label))
    _fill(ctx, group, shares, most, ClaimFilter(command.task, command.label))
    return _hand_out(ctx, group, shares, command.owner, lease_ms)


def _note_filter(ctx: DecisionContext, group: Group, wanted: Filter) -> None:
    """Remember what the group asks for, so that other tasks do not count as its own. A group without a note asks for
    everything; so does one with too many."""
    known = group.filters
    if wanted in known or EVERYTHING in known or (wanted == EVERYTHING and not known):
        return
    task, label = wanted if len(known) < FILTERS_MAX else EVERYTHING
    ctx.facts.append(FilterNoted(group.group_id, ctx.now_ms, task, label))


def _shares(ctx: DecisionContext, group: Group, in_flight_max: int, fair: bool) -> list[_Share]:
    """The partitions in turn, each with its free slots. Lost leases are ended on the way and free theirs."""
    shares: list[_Share] = []
    count = len(group.progress)
    for step in range(count):
        progress = group.progress[(group.turn + step) % count]
        lost = expire_leases(ctx, group, progress, ctx.limits.sweep_max) if progress.lease_heap else 0
        room = in_flight_max - progress.in_flight + lost
        if room > 0:
            shares.append(_Share(ctx.state.logs[progress.log_id], progress, room, fair))
            shares[-1].has_done = has_committed_effects(ctx, group)
    return shares


def _fill(ctx: DecisionContext, group: Group, shares: list[_Share], most: int, wanted: ClaimFilter) -> None:
    for share in shares:
        if most <= 0:
            return
        most -= _give(ctx, group, share, min(most, share.room), wanted)


def _give(ctx: DecisionContext, group: Group, share: _Share, most: int, wanted: ClaimFilter) -> int:
    """Up to `most` messages of one partition. What retries get beyond their share, because nothing fresh is there, is
    not held against them."""
    ratio = round(ctx.limits.retry_ratio * WHOLE)
    due = _due(ctx, share, most, wanted)
    quota = (WHOLE - 1 - share.retry_debt + ratio * most) // WHOLE
    retries = _give_due(ctx, group, share, due, quota) if due else 0
    fresh = _give_fresh(ctx, group, share, most - retries, wanted)
    if due:
        retries += _give_due(ctx, group, share, due, most - retries - fresh)
    if retries or share.retry_debt:
        debt = share.retry_debt + WHOLE * retries - ratio * (retries + fresh)
        share.retry_debt = min(max(debt, 0), WHOLE - 1)
    return retries + fresh


def _due(ctx: DecisionContext, share: _Share, most: int, wanted: ClaimFilter) -> list[int]:
    if not share.progress.resting_heap:
        return []
    end = ctx.reader.end(share.log.log_id)  # a short delay may be over before its message is durable
    ageing_ms = ctx.limits.ageing_ms
    return claim_selection.due(share.log, share.progress, end, min(most, share.room), ctx.now_ms, wanted, ageing_ms)


def _give_due(ctx: DecisionContext, group: Group, share: _Share, offsets: list[int], most: int) -> int:
    """Take from the front of `offsets`; what is taken is removed."""
    progress = share.progress
    given = 0
    while offsets and given < most and share.room:
        offset = offsets.pop(0)
        deadline_ms = share.log.deadline_of(offset) if share.log.deadline_offsets else 0
        overdue = 0 < deadline_ms <= ctx.now_ms and not ctx.state.topics[group.topic].dead_of
        if overdue and ctx.is_full():
            break
        if overdue and dead_letter(ctx, group, progress, offset, "deadline_exceeded", ""):
            continue
        if share.has_done and is_committed(ctx, group, share.log, offset):
            skip(ctx, group, share.log, [offset])
            continue
        entry = progress.entries[offset]
        share.ranges.setdefault(None, []).append((offset, offset + 1))
        share.deliveries.append(
            Delivery(
                share.log.partition,
                share.log.log_id,
                offset,
                offset + 1,
                entry.attempts + 1,
                entry.version + 1,
                entry.error,
            )
        )
        given += 1
        share.room -= 1
    return given


def _give_fresh(ctx: DecisionContext, group: Group, share: _Share, most: int, wanted: ClaimFilter) -> int:
    log, progress = share.log, share.progress
    given = 0
    most = min(most, share.room)
    picked = _without_overdue(ctx, group, share, _pick(ctx, share, most, wanted))
    for lane, first, stop in _without_done(ctx, group, share, picked) if share.has_done else picked:
        stop = min(stop, first + most - given)
        if first == stop:
            break
        ranges = share.ranges.pop(lane, [])  # the lane that gave last comes last: turns are counted in this order
        ranges.append((first, stop))
        share.ranges[lane] = ranges
        share.deliveries.append(Delivery(log.partition, log.log_id, first, stop, 1, progress.fresh_version))
        given += stop - first
    share.room -= given
    return given


def _pick(ctx: DecisionContext, share: _Share, most: int, wanted: ClaimFilter) -> list[FreshRun]:
    """Enough fresh messages that `most` are left when those past their deadline are taken out."""
    log, progress, now_ms = share.log, share.progress, ctx.now_ms
    end = min(log.end, ctx.reader.end(log.log_id))
    extra = 0
    while True:
        picked = claim_selection.fresh(
            log, progress, end, most + extra, now_ms, wanted, ctx.limits.ageing_ms, ctx.reader.time_of, share.fair
        )
        if not log.deadline_offsets:
            return picked
        overdue = sum(len(log.overdue(first, stop, now_ms)) for _, first, stop in picked)
        if overdue <= extra or overdue >= ctx.limits.sweep_max:
            return picked
        extra = overdue


def _without_overdue(ctx: DecisionContext, group: Group, share: _Share, picked: list[FreshRun]) -> list[FreshRun]:
    """Messages past their deadline go to the dead letters instead."""
    if not share.log.deadline_offsets or ctx.state.topics[group.topic].dead_of:
        return picked
    kept: list[FreshRun] = []
    for lane, first, stop in picked:
        for offset in share.log.overdue(first, stop, ctx.now_ms):
            if ctx.is_full():  # the cursor may not pass what was not buried
                return [*kept, FreshRun(lane, first, offset)] if first < offset else kept
            if not dead_letter(ctx, group, share.progress, offset, "deadline_exceeded", ""):
                continue
            if first < offset:
                kept.append(FreshRun(lane, first, offset))
            first = offset + 1
        if first < stop:
            kept.append(FreshRun(lane, first, stop))
        if ctx.is_full():
            break
    return kept


def _without_done(ctx: DecisionContext, group: Group, share: _Share, picked: list[FreshRun]) -> list[FreshRun]:
    """Messages whose effect is committed are settled instead."""
    kept: list[FreshRun] = []
    done: list[int] = []
    for lane, first, stop in picked:
        for offset in committed_in(ctx, group, share.log, first, stop):
            done.append(offset)
            if first < offset:
                kept.append(FreshRun(lane, first, offset))
            first = offset + 1
        if first < stop:
            kept.append(FreshRun(lane, first, stop))
    skip(ctx, group, share.log, sorted(done))
    return kept


def _hand_out(ctx: DecisionContext, group: Group, shares: list[_Share], owner: str, lease_ms: int) -> Claimed:
    deliveries = tuple(delivery for share in shares for delivery in share.deliveries)
    if not deliveries:
        # Whoever only met messages past their deadline, as many as one frame buries, comes again at once.
        buried = any(isinstance(fact, Settled) for fact in ctx.facts)
        return Claimed(group.group_id, (), "", 0, ctx.now_ms if buried else _next_ms(group, ctx.now_ms))
    token = ctx.chance.token()
    now_ms, until_ms = ctx.now_ms, ctx.now_ms + lease_ms
    for share in shares:
        log = share.log
        for lane, ranges in share.ranges.items():
            for end_ms, some in leases(log, ranges, now_ms, until_ms):
                ctx.facts.append(
                    Leased(
                        group.group_id, log.log_id, tuple(some), owner, token, now_ms, end_ms,
                        (lane.priority, lane.task, lane.label, lane.tenant) if lane is not None else None,
                        share.retry_debt,
                    )
                )  # fmt: skip
        if log.timeout_offsets:
            share.deliveries = [part for each in share.deliveries for part in _cut(log, each, now_ms, until_ms)]
    deliveries = tuple(delivery for share in shares for delivery in share.deliveries)
    return Claimed(group.group_id, deliveries, token, until_ms)


def _cut(log: Log, delivery: Delivery, now_ms: int, until_ms: int) -> Iterator[Delivery]:
    """A delivery in parts whose leases end at the same time."""
    for first, end, end_ms in spans(log, delivery.first, delivery.end, now_ms, until_ms):
        yield replace(delivery, first=first, end=end, until_ms=end_ms if end_ms < until_ms else 0)


def _next_ms(group: Group, now_ms: int) -> int | None:
    times = [ms for progress in group.progress if (ms := claim_selection.next_ms(progress, now_ms)) is not None]
    return min(times, default=None)
