"""Staged appends: store batches durably and invisibly, then publish them together, once per batch number of a writer.

stage(handle 1) -> staging log      stage(handle 2) -> staging log
publish(batch 7, [1, 2]) -> both become visible in their logs, in one frame
publish(batch 7, [1, 2]) again -> the same reply;  publish(batch 6) -> refused, too late

A publication may carry the identity of its content. A number that is published again with another identity is refused:
it is another batch under an old number, and a reply `duplicate` would lose its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, PublishedBatch, Staged
from driftq.core.model.replies import Done, PublishedPart, PublishedReply, Rejected, Reply, StagedReply
from driftq.core.transitions.expiry import forget_stages
from driftq.core.transitions.lookups import find_stream, no_such_topic, target_log
from driftq.wire.errors import Code
from driftq.wire.records import stamp

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.logs import Log
    from driftq.core.state.stages import Writer


def stage(ctx: DecisionContext, command: c.Stage) -> Reply:
    target = _target(ctx, command)
    if isinstance(target, Rejected):
        return target
    if command.payload_bytes > ctx.limits.batch_bytes:
        limit = ctx.limits.batch_bytes
        return Rejected(Code.TOO_LARGE, f"a staged batch has at most {limit} bytes", {"limit_bytes": limit})
    stages = ctx.state.stages
    if stages.payload_bytes + command.payload_bytes > ctx.limits.stages_bytes_max:
        details = {"reason": "stages_full", "retry_after_ms": ctx.limits.overload_retry_ms}
        return Rejected(Code.OVERLOADED, f"{stages.payload_bytes} bytes are staged already", details)
    entry = stages.by_handle.get(command.handle)
    if entry is not None and entry.writer != command.writer:
        return Rejected(Code.CONFLICT, f"handle {command.handle!r} belongs to writer {entry.writer!r}")
    if entry is not None and entry.expires_ms <= ctx.now_ms:
        forget_stages(ctx, (command.handle,))  # expired, even if it was not swept yet
        entry = None
    if command.chunk is not None:
        staged = len(entry.batches) if entry is not None else 0
        if command.chunk < staged and entry is not None:
            return StagedReply(command.handle, command.count, entry.expires_ms, duplicate=True)
        if command.chunk > staged:
            details = {"expected_seq": staged, "received_seq": command.chunk}
            message = f"chunk {staged} of {command.handle!r} comes next, not {command.chunk}"
            return Rejected(Code.SEQUENCE_GAP, message, details)
    first_offset = ctx.state.logs[f.STAGING_LOG].end
    expires_ms = ctx.now_ms + (command.ttl_ms or ctx.limits.stage_ttl_ms)
    ctx.facts.append(
        Staged(
            command.handle, command.writer, target.log_id, first_offset, command.count, command.payload_bytes,
            ctx.now_ms, expires_ms, stamp(command.batch, first_offset, ctx.now_ms),
        )
    )  # fmt: skip
    return StagedReply(command.handle, command.count, expires_ms)


def _target(ctx: DecisionContext, command: c.Stage) -> Log | Rejected:
    if command.path:
        stream = find_stream(ctx, command.path)
        if isinstance(stream, Rejected):
            return stream
        if stream.closed:
            return Rejected(Code.CLOSED, f"stream is closed: {command.path}")
        return ctx.state.logs[stream.log_id]
    topic = ctx.state.topics.get(command.topic)
    if topic is None:
        return no_such_topic(command.topic)
    return target_log(ctx, topic, command.partition, command.key)


def publish(ctx: DecisionContext, command: c.Publish) -> Reply:
    """In the order of the handles, and within a handle in the order of staging."""
    stages = ctx.state.stages
    last = stages.writers.get(command.writer)
    if last is not None and command.batch_number <= last.batch_number:
        if command.batch_number == last.batch_number:
            return _repeated(command, last)
        message = (
            f"writer {command.writer!r} has published batch {last.batch_number}; {command.batch_number} is too late"
        )
        return Rejected(Code.CONFLICT, message, {"batch_number": last.batch_number})
    parts: list[PublishedBatch] = []
    for handle in dict.fromkeys(command.handles):
        entry = stages.by_handle.get(handle)
        if entry is None or entry.writer != command.writer or entry.expires_ms <= ctx.now_ms:
            return Rejected(Code.NOT_FOUND, f"nothing is staged under {handle!r} (any more); stage it again")
        for batch in entry.batches:
            log = ctx.state.logs.get(batch.target_log_id)
            if log is None or _is_closed(ctx, log):
                return Rejected(Code.CLOSED, f"a target of {handle!r} was deleted or closed")
            first_offset = ctx.ends.get(log.log_id, log.end)
            ctx.ends[log.log_id] = first_offset + batch.records
            parts.append(PublishedBatch(log.log_id, first_offset, batch.records, batch.payload_bytes, batch.offset))
    start = stages.lowest_offset(lambda entry: entry.writer == command.writer, ctx.state.logs[f.STAGING_LOG].end)
    ctx.facts.append(Published(command.writer, command.batch_number, ctx.now_ms, tuple(parts), start, command.content))
    return PublishedReply(command.batch_number, _parts_of(tuple(parts)))


def _repeated(command: c.Publish, last: Writer) -> Reply:
    """The first result again, unless both calls name their content and the names differ."""
    if command.content and last.content and command.content != last.content:
        message = f"batch {last.batch_number} of writer {command.writer!r} was published before with other content"
        return Rejected(Code.CONTENT_MISMATCH, message, {"batch_number": last.batch_number, "content": last.content})
    return PublishedReply(last.batch_number, _parts_of(last.parts), duplicate=True)


def _is_closed(ctx: DecisionContext, log: Log) -> bool:
    stream = ctx.state.streams.by_log.get(log.log_id)
    return stream is not None and (stream.closed or stream.soft_deleted or stream.is_over(ctx.now_ms))


def _parts_of(parts: tuple[PublishedBatch, ...]) -> tuple[PublishedPart, ...]:
    return tuple(PublishedPart(part.log_id, part.first_offset, part.count) for part in parts)


def forget(ctx: DecisionContext, command: c.ForgetStages) -> Reply:
    stages = ctx.state.stages
    known = tuple(
        handle
        for handle in dict.fromkeys(command.handles)
        if handle in stages.by_handle and stages.by_handle[handle].writer == command.writer
    )
    if known:
        forget_stages(ctx, known)
    return Done(changed=bool(known))
