"""Moves a message to the dead letters: appends a copy to `dlq.<topic>` and settles the original, in one frame. The
traceback of its worker, if there is one, is stored as its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from driftq.core.context import Unreadable
from driftq.core.model.facts import DEAD, Settled
from driftq.core.model.job_facts import ResultStored
from driftq.core.state.groups import DEAD_PREFIX
from driftq.wire.fields import to_rfc3339
from driftq.wire.message import DeadLetter, Head, encode_head, read_head
from driftq.wire.namespaces import own_name
from driftq.wire.records import Record, pack_one

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress


def dead_letter(
    ctx: DecisionContext,
    group: Group,
    progress: Progress,
    offset: int,
    reason: str,
    error: str,
    *,
    lost: bool = False,
    traceback: str = "",
) -> bool:
    """Dead-letter a message. False, and no facts, if its record cannot be read."""
    log = ctx.state.logs[progress.log_id]
    entry = progress.entries.get(offset)
    was_delivered = entry is not None or progress.held.lease_at(offset) is not None
    try:
        record = ctx.reader.record(log.log_id, offset)
    except Unreadable:
        return False
    letter = DeadLetter(
        topic=own_name(log.topic),  # as all names in records: in the namespace of the topic
        partition=log.partition,
        offset=offset,
        group=group.name,
        attempts=entry.attempts if entry is not None else int(was_delivered),
        lease_losses=(entry.lease_losses if entry is not None else 0) + lost,
        last_error=error or (entry.error if entry is not None else ""),
        reason=reason,
        dead_at=to_rfc3339(ctx.now_ms),
    )
    dead = Record(record.value, record.key, encode_head(_dead_head(read_head(record.head), letter)))
    ctx.expect_event(log, letter.last_error)
    ctx.append(_dead_log(ctx, log), pack_one(dead.value, dead.key, dead.head), 1, dead.size_bytes)
    ctx.facts.append(Settled(group.group_id, log.log_id, ((offset, offset + 1),), DEAD, ctx.now_ms, letter.last_error))
    if traceback:
        expires_ms = ctx.now_ms + ctx.limits.job_result_ttl_ms
        stored = ResultStored(group.group_id, log.log_id, offset, ctx.now_ms, expires_ms, b"", traceback)
        ctx.facts.append(stored)
        ctx.batch_bytes += len(traceback)
    ctx.dead_letters[group.group_id, log.log_id, offset] = (reason, letter.last_error)
    return True


def _dead_log(ctx: DecisionContext, log: Log) -> Log:
    return ctx.state.logs[ctx.state.topics[DEAD_PREFIX + log.topic].log_ids[log.partition]]


def _dead_head(head: Head, letter: DeadLetter) -> Head:
    """The head of the dead letter. Routing and retry policy are removed: they would act on the dead letter itself."""
    envelope = head.envelope
    if envelope is not None:
        envelope = msgspec.structs.replace(envelope, target_topic="", partition_override=None, retry_policy=None)
    return msgspec.structs.replace(head, envelope=envelope, dlq=letter)
