"""Expiry: how leases, streams and stages end because their time is over.

A lease that ran out is a failed attempt like a nack (`core.transitions.retry`): the message waits in backoff and is
delivered again, or becomes a dead letter. It can end in two ways. If the holder did not settle in time, the lease is
*lost*. If the attempt reached its execution timeout, the attempt *failed* with the reason `timeout`: no lease runs
longer than the delivery plus the message's `timeout_ms`, so claims, extensions and kept leases ask here until when a
lease may run.

Streams and stages also end on request, in the same way. A softly deleted stream keeps its records for the forks that
read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.effect_facts import StagesForgotten
from driftq.core.model.facts import STAGING_LOG
from driftq.core.model.stream_facts import StreamDeleted
from driftq.core.transitions.retry import fail

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.ranges import Range, RangeSet
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Lease
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress
    from driftq.core.state.streams import StreamRecord

ACK_TIMEOUT = "ack_timeout"
TIMEOUT = "timeout"


def expire_leases(
    ctx: DecisionContext, group: Group, progress: Progress, limit: int, acked: RangeSet | None = None
) -> int:
    """End up to `limit` attempts whose lease ran out, as far as one frame has room. Returns how many. What the same
    frame acks has ended already."""
    lease_ms = progress.lease_timers.next_ms()
    if lease_ms is None or lease_ms > ctx.now_ms:
        return 0
    offsets = expired_offsets(progress, ctx.now_ms, limit)
    if acked:
        offsets = [offset for offset in offsets if offset not in acked]
    log = ctx.state.logs[progress.log_id]
    for count, offset in enumerate(offsets):
        if ctx.is_full():
            return count
        timed_out = is_timeout(log, offset, progress.state_of(offset)[1])
        fail(ctx, group, progress, offset, TIMEOUT if timed_out else ACK_TIMEOUT, lost=not timed_out)
    return len(offsets)


def expired_offsets(progress: Progress, now_ms: int, limit: int) -> list[int]:
    """Up to `limit` held offsets whose lease ran out: those of the oldest leases, in ascending order. Costs what it
    returns, whatever else is pending."""
    offsets: list[int] = []
    for _, _, lease in progress.lease_timers.until(now_ms):
        offsets.extend(islice(progress.held_by(lease), limit - len(offsets)))
        if len(offsets) >= limit:
            break
    offsets.sort()
    return offsets


# --- execution timeouts ---


class Span(NamedTuple):
    """Offsets of a log whose leases end at the same time."""

    first: int
    end: int
    until_ms: int


def spans(log: Log, first: int, end: int, at_ms: int, until_ms: int) -> Iterator[Span]:
    """Cut a range that was delivered at `at_ms` and is leased until `until_ms` where an attempt must end earlier."""
    for offset, timeout_ms in log.timeouts(first, end):
        if at_ms + timeout_ms < until_ms:
            if first < offset:
                yield Span(first, offset, until_ms)
            yield Span(offset, offset + 1, at_ms + timeout_ms)
            first = offset + 1
    if first < end:
        yield Span(first, end, until_ms)


def leases(log: Log, ranges: list[Range], at_ms: int, until_ms: int) -> list[tuple[int, list[Range]]]:
    """The ranges of a claim in order, grouped by the time at which their lease ends."""
    if not log.timeout_offsets:
        return [(until_ms, ranges)]
    result: list[tuple[int, list[Range]]] = []
    for first, end in ranges:
        for span in spans(log, first, end, at_ms, until_ms):
            if not result or result[-1][0] != span.until_ms:
                result.append((span.until_ms, []))
            result[-1][1].append((span.first, span.end))
    return result


def extensions(log: Log, progress: Progress, ranges: Iterable[Range], until_ms: int) -> dict[int, list[Range]]:
    """Held ranges, by the time until which their leases can be extended."""
    ranges = list(ranges)
    if not log.timeout_offsets:
        return {until_ms: ranges} if ranges else {}
    result: dict[int, list[Range]] = {}
    for first, end in ranges:
        for low, high, lease in _pieces(progress, first, end):
            for span in spans(log, low, high, lease.at_ms, until_ms):
                result.setdefault(span.until_ms, []).append((span.first, span.end))
    return result


def is_timeout(log: Log, offset: int, lease: Lease | None) -> bool:
    """Whether a lease ended because its attempt reached its timeout."""
    if lease is None or not log.timeout_offsets:
        return False
    return any(lease.until_ms >= lease.at_ms + timeout_ms for _, timeout_ms in log.timeouts(offset, offset + 1))


def _pieces(progress: Progress, first: int, end: int) -> list[tuple[int, int, Lease]]:
    result = list(progress.held.overlapping(first, end))
    for offset in progress.entries_in(first, end):
        entry = progress.entries[offset]
        if entry.held and entry.lease is not None:
            result.append((offset, offset + 1, entry.lease))
    return sorted(result, key=lambda piece: piece[0])


# --- streams and stages ---


def delete_stream(ctx: DecisionContext, stream: StreamRecord) -> None:
    """Delete a stream; softly while forks read it. Deleting the last fork of a softly deleted source deletes the source
    too. One command may delete several streams, so the context counts the forks it has deleted so far."""
    if stream.forks > ctx.deleted_forks.get(stream.log_id, 0):
        ctx.facts.append(StreamDeleted(stream.log_id, soft=True))
        ctx.softly_deleted.add(stream.log_id)
        return
    while True:
        ctx.facts.append(StreamDeleted(stream.log_id, soft=False))
        source_id = stream.created.source_log_id
        if source_id is None:
            return
        ctx.deleted_forks[source_id] = ctx.deleted_forks.get(source_id, 0) + 1
        source = ctx.state.streams.by_log[source_id]
        is_soft = source.soft_deleted or source_id in ctx.softly_deleted
        if not is_soft or source.forks > ctx.deleted_forks[source_id]:
            return
        stream = source


def forget_stages(ctx: DecisionContext, handles: tuple[str, ...]) -> None:
    """Drop staged batches, and trim the staging log up to the first batch that is still needed."""
    forgotten = frozenset(handles)
    end = ctx.state.logs[STAGING_LOG].end
    start = ctx.state.stages.lowest_offset(lambda entry: entry.handle in forgotten, end)
    ctx.facts.append(StagesForgotten(handles, start))
