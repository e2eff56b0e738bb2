"""Streams: create, append, close, fork, delete, trim.

An append is checked in this order, and the first check that fails decides the reply: the stream is closed, the content
type differs, the producer repeats a batch, If-Match does not match, Stream-Seq does not rise.

A fork shares the records of its source below its start. It is anchored at an offset of the source. A sub-offset goes
further into the append that starts there: by a number of records or, if that append is a single piece of bytes, by a
number of bytes; the fork then stores the cut piece as a record of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.replies import Done, Rejected, Reply, StreamAppended, StreamReady
from driftq.core.model.stream_facts import StreamClosed, StreamCreated
from driftq.core.state.logs import Log
from driftq.core.state.producers import SequenceJudgement, SequenceVerdict
from driftq.core.transitions.expiry import delete_stream
from driftq.core.transitions.lookups import find_stream, over_quota, sequence_refusal
from driftq.wire.errors import Code
from driftq.wire.records import pack_one
from driftq.wire.streams import is_json, media_type

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import CreateStream
    from driftq.core.state.streams import StreamRecord


DEFAULT_TYPE = "application/octet-stream"


# --- create ---


def create(ctx: DecisionContext, command: c.CreateStream) -> Reply:
    if command.ttl_s is not None and command.expires_at_ms is not None:
        return Rejected(Code.INVALID_ARGUMENT, "a stream has a TTL or an expiry time, not both")
    known = ctx.state.streams.by_path.get(command.path)
    if known is not None and known.is_over(ctx.now_ms) and not known.soft_deleted and not known.forks:
        delete_stream(ctx, known)
        known = None
    if known is not None:
        return _match(ctx, known, command)
    if len(ctx.state.streams.by_path) >= ctx.limits.streams_max:
        return Rejected(Code.OVERLOADED, f"there are {ctx.limits.streams_max} streams, the most allowed")
    refused = over_quota(ctx, command.path, "streams")
    if refused is not None:
        return refused
    fork = None
    if command.source is not None:
        source = _source(ctx, command.source)
        if isinstance(source, Rejected):
            return source
        fork_or_refusal = fork_of(ctx, source, command)
        if isinstance(fork_or_refusal, Rejected):
            return fork_or_refusal
        fork = fork_or_refusal
    elif command.fork_offset is not None or command.fork_sub_offset is not None:
        return Rejected(Code.INVALID_ARGUMENT, "a fork offset needs a source to fork from")
    return _create(ctx, command, fork)


def _source(ctx: DecisionContext, path: str) -> StreamRecord | Rejected:
    stream = find_stream(ctx, path)
    if isinstance(stream, Rejected) and stream.code is Code.GONE:
        return Rejected(Code.CONFLICT, f"the source is deleted: {path}")
    return stream


def _create(ctx: DecisionContext, command: c.CreateStream, fork: Fork | None) -> Reply:
    log_id = ctx.state.next_log_id
    ttl_s, expires_at_ms, expires_text = command.ttl_s, command.expires_at_ms, command.expires_text
    if fork is not None and ttl_s is None and expires_at_ms is None:
        created = fork.source.created
        ttl_s, expires_at_ms, expires_text = created.ttl_s, created.expires_at_ms, created.expires_text
    content_type = command.content_type or (fork.source.created.content_type if fork is not None else DEFAULT_TYPE)
    start = fork.start_offset if fork is not None else 0
    ctx.facts.append(
        StreamCreated(
            command.path, log_id, ctx.now_ms, content_type, ttl_s, expires_at_ms, expires_text,
            command.closed and not command.count,
            fork.source.log_id if fork is not None else None, start,
            fork.anchor if fork is not None else None, command.fork_sub_offset or 0,
            command.gaps_allowed, command.retention_ms, command.retention_bytes,
        )
    )  # fmt: skip
    log = Log(log_id, start=start)
    if fork is not None and fork.prefix:
        ctx.append(log, fork.prefix, 1, fork.prefix_bytes)
    if command.count:
        along = f.AppendMetadata(closes=True) if command.closed else None
        ctx.append(log, command.batch, command.count, command.payload_bytes, along)
    return StreamReady(log_id, True, ctx.ends.get(log_id, start), command.closed, content_type)


def _match(ctx: DecisionContext, stream: StreamRecord, command: c.CreateStream) -> Reply:
    """Creating it again with the same configuration succeeds; any other configuration is a conflict."""
    if stream.soft_deleted or stream.is_over(ctx.now_ms):
        return Rejected(Code.CONFLICT, f"the path is in use by a deleted stream that has forks: {command.path}")
    created = stream.created
    is_fork = created.source_log_id is not None
    requested_type = command.content_type or (created.content_type if is_fork else DEFAULT_TYPE)
    source = ctx.state.streams.by_log[created.source_log_id].path if created.source_log_id is not None else None
    lifetime = (command.ttl_s, command.expires_at_ms)
    inherits = is_fork and lifetime == (None, None)
    same = (
        media_type(requested_type) == media_type(created.content_type)
        and (inherits or (created.ttl_s, created.expires_at_ms) == lifetime)
        and stream.closed == command.closed
        and source == command.source
        and (command.fork_offset is None or command.fork_offset == created.fork_offset)
        and (command.fork_sub_offset or 0) == created.fork_sub_offset
        and command.gaps_allowed == created.gaps_allowed
        and (command.retention_ms, command.retention_bytes) == (created.retention_ms, created.retention_bytes)
    )
    if not same:
        return Rejected(Code.CONFLICT, f"stream exists with another configuration: {command.path}")
    end = ctx.state.logs[stream.log_id].end
    return StreamReady(stream.log_id, False, end, stream.closed, created.content_type)


# --- append and close ---


def append(ctx: DecisionContext, command: c.AppendStream) -> Reply:
    stream = find_stream(ctx, command.path)
    if isinstance(stream, Rejected):
        return stream
    log = ctx.state.logs[stream.log_id]
    by = command.producer
    if stream.closed:
        return _append_to_closed(stream, log, command)
    sent, stored = command.content_type, stream.created.content_type
    if command.count and sent != stored and media_type(sent) != media_type(stored):
        message = f"the stream holds {stream.created.content_type}, not {command.content_type or 'an unnamed type'}"
        return Rejected(Code.CONFLICT, message)
    if not command.count and not command.close:
        return Rejected(Code.INVALID_ARGUMENT, "an append needs a body, unless it closes the stream")
    if command.payload_bytes > ctx.limits.batch_bytes:
        limit = ctx.limits.batch_bytes
        return Rejected(Code.TOO_LARGE, f"an append has at most {limit} bytes", {"limit_bytes": limit})
    if by is not None:
        judgement = log.producers.judge(by, gaps_allowed=command.gaps_allowed or stream.created.gaps_allowed)
        if judgement.verdict is SequenceVerdict.DUPLICATE:
            return _duplicate(stream, log, judgement)
        if judgement.verdict is not SequenceVerdict.ACCEPT:
            return sequence_refusal(judgement, by)
        kept = command.keeps_producer or by.producer in log.producers.states
        by = f.ProducerSequence(by.producer, judgement.epoch, by.seq, by.digest) if kept else None
    refused = _check_preconditions(stream, log, command)
    return refused if refused is not None else _append(ctx, stream, log, command, by)


def _check_preconditions(stream: StreamRecord, log: Log, command: c.AppendStream) -> Rejected | None:
    """If-Match and Stream-Seq: the refusal if the tail is not where the caller expects it, or Stream-Seq does not grow.

    Checked last, after closure, content type and the producer's sequence: a repeat of an append that was stored is a
    duplicate, although the tail has moved on since."""
    if command.if_match is not None and command.if_match != log.end:
        return Rejected(Code.TAIL_MOVED, f"the stream ends at {log.end}", {"end_offset": log.end})
    if command.stream_seq and stream.stream_seq and command.stream_seq.encode() <= stream.stream_seq.encode():
        message = f"Stream-Seq {command.stream_seq!r} does not come after {stream.stream_seq!r}"
        return Rejected(Code.SEQUENCE_REGRESSION, message, {"end_offset": log.end})
    return None


def _append(
    ctx: DecisionContext, stream: StreamRecord, log: Log, command: c.AppendStream, by: f.ProducerSequence | None
) -> Reply:
    epoch, seq = (by.epoch, by.seq) if by is not None else (0, 0)
    if not command.count:
        ctx.facts.append(StreamClosed(stream.log_id, ctx.now_ms, by, command.stream_seq))
        return StreamAppended(log.end, log.end, True, False, epoch, seq)
    along = None
    if by is not None or command.close or command.stream_seq:
        along = f.AppendMetadata(producer=by, closes=command.close, stream_seq=command.stream_seq)
    first = ctx.append(log, command.batch, command.count, command.payload_bytes, along)
    return StreamAppended(first, first + command.count, command.close, False, epoch, seq)


def _append_to_closed(stream: StreamRecord, log: Log, command: c.AppendStream) -> Reply:
    """Accept only a repeat of the append that closed it, and closing it again without a producer."""
    by, closer = command.producer, stream.closed_by
    if by is None:
        if command.close and not command.count:
            return StreamAppended(log.end, log.end, True, True)
    elif (
        closer is not None and (by.producer, by.seq) == (closer.producer, closer.seq) and by.epoch in (closer.epoch, -1)
    ):
        return StreamAppended(log.end, log.end, True, True, closer.epoch, closer.seq)
    details = {"end_offset": log.end, "closed": True}
    if by is not None:
        details["expected_seq"] = by.seq  # some clients read a gap into this refusal and would resend without end
    return Rejected(Code.CLOSED, f"stream is closed: {stream.path}", details)


def _duplicate(stream: StreamRecord, log: Log, judgement: SequenceJudgement) -> StreamAppended:
    first, end = judgement.first_offset, judgement.end_offset
    known = (first, end) if first >= 0 else (log.end, log.end)
    return StreamAppended(*known, stream.closed, True, judgement.epoch, judgement.seq)


# --- end of life ---


def delete(ctx: DecisionContext, command: c.DeleteStream) -> Reply:
    stream = find_stream(ctx, command.path)
    if isinstance(stream, Rejected):
        return stream
    delete_stream(ctx, stream)
    return Done()


def trim(ctx: DecisionContext, command: c.TrimStream) -> Reply:
    stream = find_stream(ctx, command.path)
    if isinstance(stream, Rejected):
        return stream
    log = ctx.state.logs[stream.log_id]
    if not log.start <= command.offset <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
    if command.offset == log.start:
        return Done(changed=False)
    ctx.facts.append(f.Trimmed(stream.log_id, command.offset))
    return Done()


# --- forks ---


class Fork(NamedTuple):
    """A source, the anchor in it, the first offset of the fork's own, and the cut piece that it starts with, if any."""

    source: StreamRecord
    anchor: int
    start_offset: int
    prefix: bytes = b""
    prefix_bytes: int = 0


def fork_of(ctx: DecisionContext, source: StreamRecord, command: CreateStream) -> Fork | Rejected:
    requested = media_type(command.content_type)
    if requested and requested != media_type(source.created.content_type):
        return Rejected(Code.CONFLICT, f"the source holds {source.created.content_type}, not {command.content_type}")
    end = ctx.state.logs[source.log_id].end
    anchor = command.fork_offset if command.fork_offset is not None else end
    if not 0 <= anchor <= end:
        return Rejected(Code.INVALID_ARGUMENT, f"the source ends at {end}; it cannot be forked at {anchor}")
    sub = command.fork_sub_offset or 0
    if sub == 0:
        return Fork(source, anchor, anchor)
    if anchor == end:
        return Rejected(Code.INVALID_ARGUMENT, "there is no append at the fork offset to go into")
    return _into(ctx, source, anchor, sub)


def _into(ctx: DecisionContext, source: StreamRecord, anchor: int, sub: int) -> Fork | Rejected:
    log_id, _, end = ctx.state.streams.resolve(source, anchor, ctx.state.logs[source.log_id].end)[0]
    if anchor >= ctx.reader.end(log_id):
        return Rejected(Code.INVALID_ARGUMENT, "the append at the fork offset is not durable yet")
    if is_json(source.created.content_type):
        inside = min(end, ctx.reader.batch_end(log_id, anchor)) - anchor  # a fork may end in the middle of an append
        if sub > inside:
            return Rejected(Code.INVALID_ARGUMENT, f"the append at the fork offset has {inside} messages, not {sub}")
        return Fork(source, anchor, anchor + sub)
    value = ctx.reader.record(log_id, anchor).value
    if sub > len(value):
        return Rejected(Code.INVALID_ARGUMENT, f"the append at the fork offset has {len(value)} bytes, not {sub}")
    if sub == len(value):
        return Fork(source, anchor, anchor + 1)
    return Fork(source, anchor, anchor, pack_one(value[:sub]), sub)
