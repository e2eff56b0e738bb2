"""Queries: streams, partitions, producers, and the states of a group's messages.

They are decided like commands, so that a reply waits until everything it shows is durable. A read may extend the
sliding lifetime of a stream; no other query records a fact."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from driftq.core.model.replies import (
    PendingView,
    ProducerView,
    Rejected,
    Reply,
    StatesView,
    StreamEntry,
    StreamsListed,
    StreamView,
)
from driftq.core.model.stream_facts import StreamTouched
from driftq.core.transitions.lookups import bad_partition, find_group, find_stream
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.queries import ListStreams, ReadPartition, ReadProducer, ReadStates, ReadStream
    from driftq.core.model.ranges import Range
    from driftq.core.state.leases import Entry, Lease
    from driftq.core.state.progress import Progress
    from driftq.core.state.streams import StreamRecord

JSON_TYPE = "application/json"


def read_stream(ctx: DecisionContext, command: ReadStream) -> Reply:
    stream = find_stream(ctx, command.path)
    if isinstance(stream, Rejected):
        return stream
    if command.renews:
        _renew(ctx, stream)
    created = stream.created
    inherited = tuple(ctx.state.streams.resolve(stream, 0, created.start_offset))
    return StreamView(
        stream.log_id,
        _earliest(ctx, stream.log_id, created.start_offset, inherited),
        ctx.state.logs[stream.log_id].end,
        stream.closed,
        created.content_type,
        created.ttl_s,
        created.expires_text,
        tuple((log_id, first, end) for log_id, first, end in inherited),
    )


def _earliest(ctx: DecisionContext, log_id: int, first: int, inherited: tuple[tuple[int, int, int], ...]) -> int:
    """The lowest offset from which everything can be read. A trim anywhere in a chain of forks raises it."""
    start = ctx.state.logs[log_id].start
    if start > first:
        return start
    for source_id, source_first, source_end in reversed(inherited):
        start = min(max(ctx.state.logs[source_id].start, source_first), source_end)
        if start > source_first:
            return start
    return start


def _renew(ctx: DecisionContext, stream: StreamRecord) -> None:
    """Record a read at most once per `touch_ms`, and well before the lifetime would end."""
    if stream.created.ttl_s is not None:
        interval_ms = min(ctx.limits.touch_ms, 100 * stream.created.ttl_s)
        if ctx.now_ms - stream.touched_ms >= interval_ms:
            ctx.facts.append(StreamTouched(stream.log_id, ctx.now_ms))


def read_partition(ctx: DecisionContext, command: ReadPartition) -> Reply:
    topic = ctx.state.topics.get(command.topic)
    if topic is None or not 0 <= command.partition < len(topic.log_ids):
        return Rejected(Code.NOT_FOUND, f"there is no partition {command.partition} of a topic {command.topic}")
    log = ctx.state.logs[topic.log_ids[command.partition]]
    return StreamView(log.log_id, log.start, log.end, False, JSON_TYPE)


def read_producer(ctx: DecisionContext, command: ReadProducer) -> Reply:
    stream = find_stream(ctx, command.path)
    if isinstance(stream, Rejected):
        return stream
    state = ctx.state.logs[stream.log_id].producers.states.get(command.producer)
    if state is None:
        return Rejected(Code.NOT_FOUND, f"the stream knows no producer {command.producer!r}")
    last = state.window[-1] if state.window else None
    first, end = (last.first_offset, last.end_offset) if last is not None else (-1, -1)
    return ProducerView(command.producer, state.epoch, state.seq, first, end, state.at_ms)


def list_streams(ctx: DecisionContext, command: ListStreams) -> Reply:
    streams, logs = ctx.state.streams, ctx.state.logs
    alive = (
        stream
        for path in streams.paths_from(command.prefix, command.after)
        if not (stream := streams.by_path[path]).soft_deleted and not stream.is_over(ctx.now_ms)
    )
    listed = list(islice(alive, command.limit + 1))
    entries = tuple(
        StreamEntry(
            stream.path,
            stream.created.content_type,
            logs[stream.log_id].end,
            stream.closed,
            stream.created.at_ms,
        )
        for stream in listed[: command.limit]
    )
    return StreamsListed(entries, len(listed) > command.limit)


# --- the states of a group's messages, page by page in offset order ---


LEASED = "leased"
RETRYING = "retrying"
DELAYED = "delayed"
SPAN = 100_000  # offsets per page, if there are so many entries that a page must not search all of them


def read_states(ctx: DecisionContext, command: ReadStates) -> Reply:
    group = find_group(ctx, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.topic]
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    log = ctx.state.logs[topic.log_ids[command.partition]]
    progress = group.progress[command.partition]
    first = command.offset if command.offset is not None else min(progress.floor, log.end)
    if not 0 <= first <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be 0 to {log.end}")
    end = stop = max(first, min(log.end, command.end) if command.end is not None else log.end)
    if len(progress.entries) > SPAN:
        stop = min(end, max(first, progress.floor) + SPAN)
    settled = _settled(progress, first, stop, command.limit)
    if len(settled) == command.limit:
        stop = settled[-1][1]
    pending = _pending(progress, min(stop, max(first, progress.floor)), stop, command.limit)
    if len(pending) == command.limit:
        stop = pending[-1].offset + 1
        settled = [(low, min(high, stop)) for low, high in settled if low < stop]
    return StatesView(progress.floor, first, stop, end, tuple(settled), tuple(pending))


def _settled(progress: Progress, first: int, stop: int, limit: int) -> list[Range]:
    """The settled ranges above the floor that lie in [first, stop)."""
    return list(islice(progress.settled.overlapping(first, stop), limit))


def _pending(progress: Progress, first: int, stop: int, limit: int) -> list[PendingView]:
    shown = [_entry(offset, progress.entries[offset]) for offset in progress.entries_in(first, stop)[:limit]]
    for low, high, lease in islice(progress.held.overlapping(first, stop), limit):
        shown.extend(_held(offset, lease) for offset in range(low, min(high, low + limit)))
        if len(shown) > 2 * limit:
            break
    shown.sort(key=_offset)
    return shown[:limit]


def _offset(view: PendingView) -> int:
    return view.offset


def _held(offset: int, lease: Lease) -> PendingView:
    return PendingView(offset, LEASED, 1, lease.owner, lease.until_ms, 0, "")


def _entry(offset: int, entry: Entry) -> PendingView:
    if entry.held and entry.lease is not None:
        lease = entry.lease
        return PendingView(offset, LEASED, entry.attempts, lease.owner, lease.until_ms, 0, entry.error)
    state = DELAYED if entry.attempts == 0 and not entry.releases else RETRYING
    return PendingView(offset, state, entry.attempts, "", 0, entry.retry_at_ms, entry.error)
