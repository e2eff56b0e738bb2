"""Streams: create or match, append, close, fork, delete. Precedence of refusals: closed, content type, duplicate,
If-Match, Stream-Seq."""

from __future__ import annotations

from driftq.core import commands as c
from driftq.core import facts as f
from driftq.core.case import Case
from driftq.core.logs import Log
from driftq.core.producers import Judgement, Verdict
from driftq.core.replies import Done, Rejected, Reply, StreamAppended, StreamReady
from driftq.core.rules.forks import Fork, fork_of
from driftq.core.rules.produce import not_accepted
from driftq.core.streams import Stream
from driftq.wire.errors import Code

DEFAULT_TYPE = "application/octet-stream"


def media_type(content_type: str) -> str:
    """Types are compared without parameters and without case."""
    return content_type.partition(";")[0].strip().lower()


def find(case: Case, path: str) -> Stream | Rejected:
    stream = case.state.streams.by_path.get(path)
    over = stream is not None and stream.is_over(case.now_ms)  # a sweep that comes late changes no answer
    if stream is None or (over and not stream.forks and not stream.soft_deleted):
        return Rejected(Code.NOT_FOUND, f"stream does not exist: {path}")
    if stream.soft_deleted or over:
        return Rejected(Code.GONE, f"stream is deleted; forks still read it: {path}")
    return stream


# --- create ---


def create(case: Case, command: c.CreateStream) -> Reply:
    if command.ttl_s is not None and command.expires_at_ms is not None:
        return Rejected(Code.INVALID_ARGUMENT, "a stream has a TTL or an expiry time, not both")
    known = case.state.streams.by_path.get(command.path)
    if known is not None and known.is_over(case.now_ms) and not known.soft_deleted and not known.forks:
        delete_over(case, known)
        known = None
    if known is not None:
        return _match(case, known, command)
    if len(case.state.streams.by_path) >= case.limits.streams_max:
        return Rejected(Code.OVERLOADED, f"there are {case.limits.streams_max} streams, the most allowed")
    fork = None
    if command.source is not None:
        source = _source(case, command.source)
        if isinstance(source, Rejected):
            return source
        found = fork_of(case, source, command)
        if isinstance(found, Rejected):
            return found
        fork = found
    elif command.fork_offset is not None or command.fork_sub_offset is not None:
        return Rejected(Code.INVALID_ARGUMENT, "a fork offset needs a source to fork from")
    return _create(case, command, fork)


def _source(case: Case, path: str) -> Stream | Rejected:
    stream = find(case, path)
    if isinstance(stream, Rejected) and stream.code is Code.GONE:
        return Rejected(Code.CONFLICT, f"the source is deleted: {path}")
    return stream


def _create(case: Case, command: c.CreateStream, fork: Fork | None) -> Reply:
    log_id = case.state.next_log_id
    ttl_s, expires_at_ms, expires_text = command.ttl_s, command.expires_at_ms, command.expires_text
    if fork is not None and ttl_s is None and expires_at_ms is None:
        created = fork.source.created
        ttl_s, expires_at_ms, expires_text = created.ttl_s, created.expires_at_ms, created.expires_text
    content_type = command.content_type or (fork.source.created.content_type if fork is not None else DEFAULT_TYPE)
    start = fork.start_offset if fork is not None else 0
    case.facts.append(
        f.StreamCreated(
            command.path, log_id, case.now_ms, content_type, ttl_s, expires_at_ms, expires_text,
            command.closed and not command.count,
            fork.source.log_id if fork is not None else None, start,
            fork.anchor if fork is not None else None, command.fork_sub_offset or 0,
            command.gaps_allowed, command.retention_ms, command.retention_bytes,
        )
    )  # fmt: skip
    log = Log(log_id, start=start)
    if fork is not None and fork.prefix:
        case.append(log, fork.prefix, 1, fork.prefix_bytes)
    if command.count:
        along = f.Appending(closes=True) if command.closed else None
        case.append(log, command.batch, command.count, command.payload_bytes, along)
    return StreamReady(log_id, True, case.ends.get(log_id, start), command.closed, content_type)


def _match(case: Case, stream: Stream, command: c.CreateStream) -> Reply:
    """The same configuration again is a success; anything else is a conflict."""
    if stream.soft_deleted or stream.is_over(case.now_ms):
        return Rejected(Code.CONFLICT, f"the path is in use by a deleted stream that has forks: {command.path}")
    created = stream.created
    is_fork = created.source_log_id is not None
    wanted_type = command.content_type or (created.content_type if is_fork else DEFAULT_TYPE)
    source = case.state.streams.by_log[created.source_log_id].path if created.source_log_id is not None else None
    lifetime = (command.ttl_s, command.expires_at_ms)
    inherits = is_fork and lifetime == (None, None)
    same = (
        media_type(wanted_type) == media_type(created.content_type)
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
    end = case.state.logs[stream.log_id].end
    return StreamReady(stream.log_id, False, end, stream.closed, created.content_type)


# --- append and close ---


def append(case: Case, command: c.AppendStream, *, keeps_producer: bool = True) -> Reply:
    """Within an outcome (`keeps_producer` false) a producer that the stream does not know leaves no entry: the outcome
    is remembered instead, and its appends must not push other producers out of the table."""
    stream = find(case, command.path)
    if isinstance(stream, Rejected):
        return stream
    log = case.state.logs[stream.log_id]
    by = command.producer
    if stream.closed:
        return _append_to_closed(stream, log, command)
    given, held = command.content_type, stream.created.content_type
    if command.count and given != held and media_type(given) != media_type(held):
        message = f"the stream holds {stream.created.content_type}, not {command.content_type or 'an unnamed type'}"
        return Rejected(Code.CONFLICT, message)
    if not command.count and not command.close:
        return Rejected(Code.INVALID_ARGUMENT, "an append needs a body, unless it closes the stream")
    if command.payload_bytes > case.limits.batch_bytes:
        limit = case.limits.batch_bytes
        return Rejected(Code.TOO_LARGE, f"an append has at most {limit} bytes", {"limit_bytes": limit})
    if by is not None:
        judgement = log.producers.judge(by, gaps_allowed=command.gaps_allowed or stream.created.gaps_allowed)
        if judgement.verdict is Verdict.DUPLICATE:
            return _duplicate(stream, log, judgement)
        if judgement.verdict is not Verdict.ACCEPT:
            return not_accepted(judgement, by)
        kept = keeps_producer or by.producer in log.producers.states
        by = f.ByProducer(by.producer, judgement.epoch, by.seq, by.digest) if kept else None
    refused = _conditions(stream, log, command)
    return refused if refused is not None else _append(case, stream, log, command, by)


def _conditions(stream: Stream, log: Log, command: c.AppendStream) -> Rejected | None:
    if command.if_match is not None and command.if_match != log.end:
        return Rejected(Code.TAIL_MOVED, f"the stream ends at {log.end}", {"end_offset": log.end})
    if command.stream_seq and stream.stream_seq and command.stream_seq.encode() <= stream.stream_seq.encode():
        message = f"Stream-Seq {command.stream_seq!r} does not come after {stream.stream_seq!r}"
        return Rejected(Code.SEQUENCE_REGRESSION, message, {"end_offset": log.end})
    return None


def _append(case: Case, stream: Stream, log: Log, command: c.AppendStream, by: f.ByProducer | None) -> Reply:
    epoch, seq = (by.epoch, by.seq) if by is not None else (0, 0)
    if not command.count:
        case.facts.append(f.StreamClosed(stream.log_id, case.now_ms, by, command.stream_seq))
        return StreamAppended(log.end, log.end, True, False, epoch, seq)
    along = None
    if by is not None or command.close or command.stream_seq:
        along = f.Appending(producer=by, closes=command.close, stream_seq=command.stream_seq)
    first = case.append(log, command.batch, command.count, command.payload_bytes, along)
    return StreamAppended(first, first + command.count, command.close, False, epoch, seq)


def _append_to_closed(stream: Stream, log: Log, command: c.AppendStream) -> Reply:
    """Only the repeat of what closed it is welcome; so is closing once more without a producer."""
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
        details["expected_seq"] = by.seq  # keeps clients that read a gap into this refusal from resending for ever
    return Rejected(Code.CLOSED, f"stream is closed: {stream.path}", details)


def _duplicate(stream: Stream, log: Log, judgement: Judgement) -> StreamAppended:
    first, end = judgement.first_offset, judgement.end_offset
    known = (first, end) if first >= 0 else (log.end, log.end)
    return StreamAppended(*known, stream.closed, True, judgement.epoch, judgement.seq)


# --- end of life ---


def delete(case: Case, command: c.DeleteStream) -> Reply:
    stream = find(case, command.path)
    if isinstance(stream, Rejected):
        return stream
    delete_over(case, stream)
    return Done()


def delete_over(case: Case, stream: Stream) -> None:
    """Delete a stream; softly while forks read it. The last fork of a softly deleted source takes it along. One case
    may delete several: what it has deleted already counts."""
    gone = case.forks_gone
    soft = case.softly_deleted
    if stream.forks > gone.get(stream.log_id, 0):
        case.facts.append(f.StreamDeleted(stream.log_id, soft=True))
        soft.add(stream.log_id)
        return
    while True:
        case.facts.append(f.StreamDeleted(stream.log_id, soft=False))
        source_log_id = stream.created.source_log_id
        if source_log_id is None:
            return
        gone[source_log_id] = gone.get(source_log_id, 0) + 1
        source = case.state.streams.by_log[source_log_id]
        if not (source.soft_deleted or source_log_id in soft) or source.forks > gone[source_log_id]:
            return
        stream = source


def trim(case: Case, command: c.TrimStream) -> Reply:
    stream = find(case, command.path)
    if isinstance(stream, Rejected):
        return stream
    log = case.state.logs[stream.log_id]
    if not log.start <= command.offset <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be {log.start} to {log.end}")
    if command.offset == log.start:
        return Done(changed=False)
    case.facts.append(f.Trimmed(stream.log_id, command.offset))
    return Done()
