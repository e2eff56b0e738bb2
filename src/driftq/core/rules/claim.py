"""Claim: which messages an owner gets.

1. Partitions are asked in turn; each claim starts one partition further. Expired leases are ended on the way.
2. In each partition, due retries get their share first, fresh messages the rest, and retries fill what is left. So
   neither starves the other.
3. Messages past their deadline become dead letters instead of being delivered, and messages whose effect is committed
   are settled (`core.transitions.skip`).
4. With `max_bytes` a claim ends early, where its messages have about that many bytes.
5. Everything claimed gets one token and one lease, cut where an execution timeout ends an attempt earlier.

A claim may carry acks of what its caller has done. They come first, in the same frame: the slots that they free can be
claimed at once, and what they settle is neither expired nor delivered again. Each ack is decided as in an ack call; one
that is refused is reported and does not affect the claim. If the claim is refused, nothing is acked.

The share of retries is a balance that is carried from claim to claim, per group and partition. With a ratio of 0.2, a
claim of ten offers two messages to retries; of five claims of one message, the first does. While no retry is due,
almost one message is saved up for the next one, never more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.context import EVENT_BYTES, DecisionContext
from driftq.core.model.commands import Ack
from driftq.core.model.facts import ACKED, FAIR_TENANT, FilterNoted, GroupCaughtUp, Leased, Settled
from driftq.core.model.ranges import RangeSet
from driftq.core.model.replies import Claimed, Delivery, Refusal, Rejected, Reply, Settlement
from driftq.core.state.backlog import has_caught_up
from driftq.core.state.groups import EVERYTHING, FILTERS_MAX, Filter, Group
from driftq.core.transitions import claim_selection
from driftq.core.transitions.claim_selection import ByteBudget, ClaimFilter, FreshRun
from driftq.core.transitions.dead_letter import dead_letter
from driftq.core.transitions.expiry import expire_leases, leases, spans
from driftq.core.transitions.lookups import bad_lease, bad_partition, find_or_create_group
from driftq.core.transitions.skip import committed_in, has_committed_effects, is_committed, skip
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.model.commands import Claim
    from driftq.core.model.facts import LaneKey
    from driftq.core.model.ranges import Range
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

EXPIRED_MIN = 50  # a claim ends at least so many expired leases, if there are as many
WHOLE = 1_000  # balances are counted in thousandths of a message
NOTHING_ACKED = RangeSet()


class _Share:
    """What a claim takes from one partition."""

    __slots__ = (
        "acked",
        "budget",
        "deliveries",
        "fair",
        "skips_committed",
        "late",
        "log",
        "progress",
        "ranges",
        "retry_debt",
        "room",
    )

    def __init__(
        self, log: Log, progress: Progress, room: int, fair: bool, acked: RangeSet, budget: ByteBudget
    ) -> None:
        self.budget = budget  # of the whole claim
        self.acked = acked  # what the claim's own acks settle: it is not delivered again
        self.late = 0  # how many of these wait for a retry
        self.fair = fair
        self.skips_committed = False  # the group has committed effects, whose messages are skipped
        self.retry_debt = progress.retry_debt
        self.log = log
        self.progress = progress
        self.room = room  # free in-flight slots
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
    settlement = _settle_acks(ctx, group, command) if command.acks else Settlement()
    if isinstance(settlement, Rejected):
        return settlement
    if group.paused:
        return Claimed(group.group_id, (), "", 0, refused=settlement.refused)
    if group.idle and has_caught_up(ctx.state, ctx.limits, group):
        ctx.facts.append(GroupCaughtUp(group.group_id, ctx.now_ms))
    budget = ByteBudget(command.max_bytes)
    limit, in_flight_max = command.max_messages, config.in_flight_max or ctx.limits.in_flight_max
    shares = _shares(ctx, group, limit, in_flight_max, config.fair == FAIR_TENANT, budget)
    if config.history:
        limit = min(limit, max(1, ctx.limits.batch_bytes // EVENT_BYTES))  # one frame must hold their history events
    _note_filter(ctx, group, (command.task, command.label))
    _fill(ctx, group, shares, limit, ClaimFilter(command.task, command.label))
    claimed = _lease(ctx, group, shares, command.owner, lease_ms)
    return replace(claimed, refused=settlement.refused) if settlement.refused else claimed


def _settle_acks(ctx: DecisionContext, group: Group, command: Claim) -> Settlement | Rejected:
    """Decide the acks of a claim. A group that this command creates has delivered nothing: all of them are refused."""
    if group.group_id in ctx.state.groups:
        settlement = ctx.decide(Ack(command.topic, command.group, command.owner, command.acks))
        assert isinstance(settlement, Settlement | Rejected)
        return settlement
    refused: list[Refusal] = []
    for held in command.acks:
        if not 0 <= held.partition < len(group.progress):
            return bad_partition(held.partition, ctx.state.topics[command.topic])
        end = ctx.state.logs[group.progress[held.partition].log_id].end
        for offset in range(held.first, min(held.end, max(held.first, end) + 1)):
            message = "message was not delivered to this group"
            refused.append(Refusal(held.partition, offset, Code.NOT_DELIVERED, message))
    return Settlement(tuple(refused))


def _note_filter(ctx: DecisionContext, group: Group, claim_filter: Filter) -> None:
    """Record a new filter of the group: tasks that it never asks for do not count as its lag. A group without filters
    asks for everything, and so does one with too many."""
    known = group.filters
    if claim_filter in known or EVERYTHING in known or (claim_filter == EVERYTHING and not known):
        return
    task, label = claim_filter if len(known) < FILTERS_MAX else EVERYTHING
    ctx.facts.append(FilterNoted(group.group_id, ctx.now_ms, task, label))


def _shares(
    ctx: DecisionContext, group: Group, limit: int, in_flight_max: int, fair: bool, budget: ByteBudget
) -> list[_Share]:
    """The partitions with free slots, in turn. The claim's acks and expired leases free their slots first: about as
    many leases as the claim may take messages. The sweep ends the others."""
    expired_max = min(max(limit, EXPIRED_MIN), ctx.limits.sweep_max)
    shares: list[_Share] = []
    count = len(group.progress)
    acked_in = _acked(ctx)
    for step in range(count):
        progress = group.progress[(group.turn + step) % count]
        acked = acked_in.get(progress.log_id, NOTHING_ACKED)
        lost = expire_leases(ctx, group, progress, expired_max, acked) if expired_max else 0
        expired_max -= lost
        freed = _held_count(progress, acked) if acked else 0
        room = in_flight_max - progress.in_flight + lost + freed
        if room > 0:
            shares.append(_Share(ctx.state.logs[progress.log_id], progress, room, fair, acked, budget))
            shares[-1].late = acked.count - freed
            shares[-1].skips_committed = has_committed_effects(ctx, group)
    return shares


def _acked(ctx: DecisionContext) -> dict[int, RangeSet]:
    """What the claim's acks settle, by log."""
    acked: dict[int, RangeSet] = {}
    for fact in ctx.facts:
        if type(fact) is Settled and fact.how == ACKED:
            for first, end in fact.ranges:
                acked.setdefault(fact.log_id, RangeSet()).add(first, end)
    return acked


def _held_count(progress: Progress, acked: RangeSet) -> int:
    """How many of the acked messages hold a slot. A late ack is of a message that holds none."""
    count = 0
    for first, end in acked:
        count += sum(high - low for low, high, _ in progress.held.overlapping(first, end))
        count += sum(progress.entries[offset].held for offset in progress.entries_in(first, end))
    return count


def _fill(ctx: DecisionContext, group: Group, shares: list[_Share], limit: int, claim_filter: ClaimFilter) -> None:
    for share in shares:
        if limit <= 0 or not share.budget.left:
            return
        limit -= _take(ctx, group, share, min(limit, share.room), claim_filter)


def _take(ctx: DecisionContext, group: Group, share: _Share, limit: int, claim_filter: ClaimFilter) -> int:
    """Take up to `limit` messages of one partition. What retries get because nothing fresh is left does not count
    against their share."""
    ratio = round(ctx.limits.retry_ratio * WHOLE)
    due = _due(ctx, share, limit, claim_filter)
    quota = (WHOLE - 1 - share.retry_debt + ratio * limit) // WHOLE
    retries = _take_retry_share(ctx, group, share, due, quota, ratio) if due else 0
    fresh = _take_fresh(ctx, group, share, limit - retries, claim_filter)
    if due:
        retries += _take_due(ctx, group, share, due, limit - retries - fresh)
    if retries or share.retry_debt:
        debt = share.retry_debt + WHOLE * retries - ratio * (retries + fresh)
        share.retry_debt = min(max(debt, 0), WHOLE - 1)
    return retries + fresh


def _take_retry_share(ctx: DecisionContext, group: Group, share: _Share, due: list[int], quota: int, ratio: int) -> int:
    """Take the share of due retries: up to `quota` messages, and that part of the bytes. If only one message fits, the
    balance decides whether it is a retry, as in a claim of one."""
    budget = share.budget
    left, is_first = budget.left, budget.is_first
    budget.left = left * ratio // WHOLE
    budget.is_first = is_first and share.retry_debt < ratio
    taken = _take_due(ctx, group, share, due, quota)
    budget.left += left - left * ratio // WHOLE
    if not taken:
        budget.is_first = is_first
    return taken


def _due(ctx: DecisionContext, share: _Share, limit: int, claim_filter: ClaimFilter) -> list[int]:
    if not share.progress.retry_timers:
        return []
    end = ctx.reader.end(share.log.log_id)  # a short delay may end before its message is durable
    ageing_ms = ctx.limits.ageing_ms
    acked = share.acked
    due = claim_selection.due(
        share.log, share.progress, end, min(limit, share.room) + share.late, ctx.now_ms, claim_filter, ageing_ms
    )
    return [offset for offset in due if offset not in acked] if acked else due


def _take_due(ctx: DecisionContext, group: Group, share: _Share, offsets: list[int], limit: int) -> int:
    """Take from the front of `offsets`, removing what is taken."""
    progress = share.progress
    count = 0
    while offsets and count < limit and share.room:
        offset = offsets.pop(0)
        deadline_ms = share.log.deadline_of(offset) if share.log.deadline_offsets else 0
        overdue = 0 < deadline_ms <= ctx.now_ms and not ctx.state.topics[group.topic].dead_of
        if overdue and ctx.is_full():
            break
        if overdue and dead_letter(ctx, group, progress, offset, "deadline_exceeded", ""):
            continue
        if share.skips_committed and is_committed(ctx, group, share.log, offset):
            skip(ctx, group, share.log, [offset])
            continue
        if share.budget.take(share.log, offset, offset + 1) == offset:
            offsets.insert(0, offset)
            break
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
        count += 1
        share.room -= 1
    return count


def _take_fresh(ctx: DecisionContext, group: Group, share: _Share, limit: int, claim_filter: ClaimFilter) -> int:
    log, progress = share.log, share.progress
    count = 0
    limit = min(limit, share.room)
    picked = _without_overdue(ctx, group, share, _pick(ctx, share, limit, claim_filter))
    for lane, first, stop in _without_committed(ctx, group, share, picked) if share.skips_committed else picked:
        stop = share.budget.take(log, first, min(stop, first + limit - count))
        if first == stop:
            break
        ranges = share.ranges.pop(lane, [])  # the lane used last goes last: turns are counted in this order
        ranges.append((first, stop))
        share.ranges[lane] = ranges
        share.deliveries.append(Delivery(log.partition, log.log_id, first, stop, 1, progress.fresh_version))
        count += stop - first
    share.room -= count
    return count


def _pick(ctx: DecisionContext, share: _Share, limit: int, claim_filter: ClaimFilter) -> list[FreshRun]:
    """Enough fresh messages that `limit` are left without those past their deadline."""
    log, progress, now_ms = share.log, share.progress, ctx.now_ms
    end = min(log.end, ctx.reader.end(log.log_id))
    extra = 0
    while True:
        picked = claim_selection.fresh(
            log,
            progress,
            end,
            limit + extra,
            now_ms,
            claim_filter,
            ctx.limits.ageing_ms,
            ctx.reader.time_of,
            share.fair,
        )
        if not log.deadline_offsets:
            return picked
        overdue = sum(len(log.overdue(first, stop, now_ms)) for _, first, stop in picked)
        if overdue <= extra or overdue >= ctx.limits.sweep_max:
            return picked
        extra = overdue


def _without_overdue(ctx: DecisionContext, group: Group, share: _Share, picked: list[FreshRun]) -> list[FreshRun]:
    """Move messages past their deadline to the dead letters."""
    if not share.log.deadline_offsets or ctx.state.topics[group.topic].dead_of:
        return picked
    kept: list[FreshRun] = []
    for lane, first, stop in picked:
        for offset in share.log.overdue(first, stop, ctx.now_ms):
            if ctx.is_full():  # the cursor must not pass a message that was not moved
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


def _without_committed(ctx: DecisionContext, group: Group, share: _Share, picked: list[FreshRun]) -> list[FreshRun]:
    """Settle messages whose effect is committed."""
    kept: list[FreshRun] = []
    committed: list[int] = []
    for lane, first, stop in picked:
        for offset in committed_in(ctx, group, share.log, first, stop):
            committed.append(offset)
            if first < offset:
                kept.append(FreshRun(lane, first, offset))
            first = offset + 1
        if first < stop:
            kept.append(FreshRun(lane, first, stop))
    skip(ctx, group, share.log, sorted(committed))
    return kept


def _lease(ctx: DecisionContext, group: Group, shares: list[_Share], owner: str, lease_ms: int) -> Claimed:
    deliveries = tuple(delivery for share in shares for delivery in share.deliveries)
    if not deliveries:
        # A claim that only moved dead letters, as many as fit into a frame, is repeated at once.
        has_settled = any(isinstance(fact, Settled) and fact.how != ACKED for fact in ctx.facts)
        return Claimed(group.group_id, (), "", 0, ctx.now_ms if has_settled else _next_ms(group, ctx.now_ms))
    token = ctx.chance.token()
    now_ms, until_ms = ctx.now_ms, ctx.now_ms + lease_ms
    for share in shares:
        log = share.log
        for lane, ranges in share.ranges.items():
            for end_ms, leased in leases(log, ranges, now_ms, until_ms):
                ctx.facts.append(
                    Leased(
                        group.group_id, log.log_id, tuple(leased), owner, token, now_ms, end_ms,
                        (lane.priority, lane.task, lane.label, lane.tenant) if lane is not None else None,
                        share.retry_debt,
                    )
                )  # fmt: skip
        if log.timeout_offsets:
            share.deliveries = [part for delivery in share.deliveries for part in _cut(log, delivery, now_ms, until_ms)]
    deliveries = tuple(delivery for share in shares for delivery in share.deliveries)
    return Claimed(group.group_id, deliveries, token, until_ms)


def _cut(log: Log, delivery: Delivery, now_ms: int, until_ms: int) -> Iterator[Delivery]:
    """Cut a delivery where an execution timeout ends a lease earlier."""
    for first, end, end_ms in spans(log, delivery.first, delivery.end, now_ms, until_ms):
        yield replace(delivery, first=first, end=end, until_ms=end_ms if end_ms < until_ms else 0)


def _next_ms(group: Group, now_ms: int) -> int | None:
    times = [ms for progress in group.progress if (ms := claim_selection.next_ms(progress, now_ms)) is not None]
    return min(times, default=None)
