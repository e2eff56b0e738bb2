"""The audit: administrative changes and refusals as records of the topic `_audit`.

The record of a change is appended in the same frame as the change, so no crash can separate them. Only the broker
writes to the topic, and no caller deletes, trims or changes it (`transitions.lookups.audit_refusal`). Without the topic
nothing is recorded: the server makes it before its first request, unless `audit.mode` is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json
from msgspec.structs import replace

from driftq.core.model.facts import TopicConfigured, TopicCreated
from driftq.core.model.replies import Done, Rejected, Reply
from driftq.wire.audit import AUDIT_TOPIC, CHANGED, UNCHANGED
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.records import pack_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driftq.core.context import DecisionContext
    from driftq.core.model.access import NoteAudit, OpenAudit
    from driftq.wire.audit import AuditRecord

_encoded = json.Encoder().encode


def open_audit(ctx: DecisionContext, command: OpenAudit) -> Reply:
    topic = ctx.state.topics.get(AUDIT_TOPIC)
    if topic is None:
        ctx.facts.append(TopicCreated(AUDIT_TOPIC, ctx.state.next_log_id, 1, ctx.now_ms, command.config))
        return Done()
    if len(topic.log_ids) != 1:
        message = f"there is a topic {AUDIT_TOPIC} with {len(topic.log_ids)} partitions that is not the broker's audit"
        return Rejected(Code.CONFLICT, message)
    if topic.config == command.config:
        return Done(changed=False)
    ctx.facts.append(TopicConfigured(AUDIT_TOPIC, command.config))
    return Done()


def note(ctx: DecisionContext, command: NoteAudit) -> Reply:
    _append(ctx, command.notes)
    return Done()


def record(ctx: DecisionContext, entry: AuditRecord) -> None:
    """Add the record of a command to its facts."""
    _append(ctx, (replace(entry, result=CHANGED if ctx.facts else UNCHANGED),))


def _append(ctx: DecisionContext, entries: Sequence[AuditRecord]) -> None:
    topic = ctx.state.topics.get(AUDIT_TOPIC)
    if topic is None or len(topic.log_ids) != 1:
        return
    at = to_rfc3339(ctx.now_ms)
    values = [_encoded(replace(entry, at=at)) for entry in entries]
    keys = [entry.who.encode() for entry in entries]
    payload_bytes = sum(map(len, values)) + sum(map(len, keys))
    ctx.append(ctx.state.logs[topic.log_ids[0]], pack_columns(values, keys), len(values), payload_bytes)
