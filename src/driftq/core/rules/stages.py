"""Staged appends: keep batches durable and unseen, then show them together, once for each batch number of a writer."""

from __future__ import annotations

from driftq.core import commands as c
from driftq.core import facts as f
from driftq.core.case import Case
from driftq.core.logs import Log
from driftq.core.replies import Done, PublishedPart, PublishedReply, Rejected, Reply, StagedReply
from driftq.core.rules import streams
from driftq.core.rules.produce import target_log
from driftq.core.rules.topics import no_such_topic
from driftq.wire.errors import Code
from driftq.wire.records import stamp


def stage(case: Case, command: c.Stage) -> Reply:
    target = _target(case, command)
    if isinstance(target, Rejected):
        return target
    if command.payload_bytes > case.limits.batch_bytes:
        limit = case.limits.batch_bytes
        return Rejected(Code.TOO_LARGE, f"a staged batch has at most {limit} bytes", {"limit_bytes": limit})
    stages = case.state.stages
    if stages.payload_bytes + command.payload_bytes > case.limits.stages_bytes_max:
        details = {"reason": "stages_full", "retry_after_ms": case.limits.overload_retry_ms}
        return Rejected(Code.OVERLOADED, f"{stages.payload_bytes} bytes are staged already", details)
    entry = stages.by_handle.get(command.handle)
    if entry is not None and entry.writer != command.writer:
        return Rejected(Code.CONFLICT, f"handle {command.handle!r} belongs to writer {entry.writer!r}")
    if entry is not None and entry.expires_ms <= case.now_ms:
        forget_handles(case, (command.handle,))  # what was staged before is over, whether it was swept or not
        entry = None
    if command.chunk is not None:
        staged = len(entry.batches) if entry is not None else 0
        if command.chunk < staged and entry is not None:
            return StagedReply(command.handle, command.count, entry.expires_ms, duplicate=True)
        if command.chunk > staged:
            details = {"expected_seq": staged, "received_seq": command.chunk}
            message = f"chunk {staged} of {command.handle!r} comes next, not {command.chunk}"
            return Rejected(Code.SEQUENCE_GAP, message, details)
    first_offset = case.state.logs[f.STAGING_LOG].end
    expires_ms = case.now_ms + (command.ttl_ms or case.limits.stage_ttl_ms)
    case.facts.append(
        f.Staged(
            command.handle, command.writer, target.log_id, first_offset, command.count, command.payload_bytes,
            case.now_ms, expires_ms, stamp(command.batch, first_offset, case.now_ms),
        )
    )  # fmt: skip
    return StagedReply(command.handle, command.count, expires_ms)


def _target(case: Case, command: c.Stage) -> Log | Rejected:
    if command.path:
        stream = streams.find(case, command.path)
        if isinstance(stream, Rejected):
            return stream
        if stream.closed:
            return Rejected(Code.CLOSED, f"stream is closed: {command.path}")
        return case.state.logs[stream.log_id]
    topic = case.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    return target_log(case, topic, command.partition, command.key)


def publish(case: Case, command: c.Publish) -> Reply:
    """In the order of the handles, and within a handle in the order of staging."""
    stages = case.state.stages
    last = stages.writers.get(command.writer)
    if last is not None and command.batch_number <= last.batch_number:
        if command.batch_number == last.batch_number:
            return PublishedReply(last.batch_number, _shown(last.parts), duplicate=True)
        message = (
            f"writer {command.writer!r} has published batch {last.batch_number}; {command.batch_number} is too late"
        )
        return Rejected(Code.CONFLICT, message, {"batch_number": last.batch_number})
    parts: list[f.Part] = []
    for handle in dict.fromkeys(command.handles):
        entry = stages.by_handle.get(handle)
        if entry is None or entry.writer != command.writer or entry.expires_ms <= case.now_ms:
            return Rejected(Code.NOT_FOUND, f"nothing is staged under {handle!r} (any more); stage it again")
        for batch in entry.batches:
            log = case.state.logs.get(batch.target_log_id)
            if log is None or _is_closed(case, log):
                return Rejected(Code.CLOSED, f"a target of {handle!r} was deleted or closed")
            first_offset = case.ends.get(log.log_id, log.end)
            case.ends[log.log_id] = first_offset + batch.records
            parts.append(f.Part(log.log_id, first_offset, batch.records, batch.payload_bytes, batch.offset))
    start = stages.lowest_offset(lambda entry: entry.writer == command.writer, case.state.logs[f.STAGING_LOG].end)
    case.facts.append(f.Published(command.writer, command.batch_number, case.now_ms, tuple(parts), start))
    return PublishedReply(command.batch_number, _shown(tuple(parts)))


def _is_closed(case: Case, log: Log) -> bool:
    stream = case.state.streams.by_log.get(log.log_id)
    return stream is not None and (stream.closed or stream.soft_deleted or stream.is_over(case.now_ms))


def _shown(parts: tuple[f.Part, ...]) -> tuple[PublishedPart, ...]:
    return tuple(PublishedPart(part.log_id, part.first_offset, part.count) for part in parts)


def forget(case: Case, command: c.ForgetStages) -> Reply:
    stages = case.state.stages
    known = tuple(
        handle
        for handle in dict.fromkeys(command.handles)
        if handle in stages.by_handle and stages.by_handle[handle].writer == command.writer
    )
    if known:
        forget_handles(case, known)
    return Done(changed=bool(known))


def forget_handles(case: Case, handles: tuple[str, ...]) -> None:
    end = case.state.logs[f.STAGING_LOG].end
    gone = frozenset(handles)
    start = case.state.stages.lowest_offset(lambda entry: entry.handle in gone, end)
    case.facts.append(f.StagesForgotten(handles, start))
