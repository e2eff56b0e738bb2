"""The documentation of producing: one message, many, packed batches."""

from __future__ import annotations

from typing import Literal

from driftq.server.openapi import shapes as s
from driftq.server.openapi.operation import BATCH, NDJSON, WRITE_ERRORS, Operation, Query, ReplyDoc, as_json
from driftq.wire import admin as a
from driftq.wire import queue as q

_ANY = Query("partition", Literal["any"], "`any`: messages without a key go to the next partition, not to 0.")
_ENVELOPE_QUERY = (
    Query("run_id", str, "The run this message belongs to."),
    Query("step_id", str, "The step of the run."),
    Query("parent_step_id", str, "The step that caused it."),
    Query("tenant_id", str, "The tenant (also as `tenant`)."),
    Query("idempotency_key", str, "Stored once for each key (also as `idem_key`)."),
    Query("target_topic", str, "Send it to another topic."),
    Query("partition_override", q.Natural, "Send it to this partition."),
    Query("deadline", str, "RFC 3339; past it the message is never delivered (also `deadline_ms`)."),
    Query("retry_max_attempts", q.Positive, "Deliveries before it is a dead letter."),
    Query("retry_backoff_ms", q.Natural, "The first delay; it doubles."),
    Query("retry_max_backoff_ms", q.Natural, "The longest delay."),
    Query("traceparent", str, "W3C trace context."),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/produce"): Operation(
        "Produce a message",
        "produce",
        {200: ReplyDoc("It is on disk, or was before (`duplicate`).", q.ProduceReply)},
        as_json(q.ProduceRequest),
        either=True,
        query=(
            Query("topic", str, "The topic."),
            Query("value", str, "The payload, as text."),
            Query("key", str, "Messages with one key keep their order."),
            _ANY,
            *_ENVELOPE_QUERY,
        ),
        errors=WRITE_ERRORS,
        headers=("traceparent",),
    ),
    ("POST", "/v1/produce/batch"): Operation(
        "Produce many messages",
        "produce",
        {200: ReplyDoc("A result for each, in order.", s.BatchReply)},
        {"application/json": q.ProduceBatchRequest | list[q.ProduceRequest], NDJSON: str},
        query=(Query("topic", str, "The topic of NDJSON lines that name none."), _ANY),
        errors=(400, 429),
        headers=("traceparent",),
    ),
    ("POST", "/v1/produce/packed"): Operation(
        "Produce a packed batch, stored as it comes",
        "produce",
        {200: ReplyDoc("Where it begins.", s.PackedReply)},
        {BATCH: bytes},
        query=(
            Query("topic", q.Name, "The topic.", True),
            Query("partition", q.Natural | Literal["any"], "The partition; `any`, without a producer, takes the next."),
            Query("key", str, "Names the partition by its hash."),
        ),
        errors=WRITE_ERRORS,
    ),
}


# --- The documentation of the clock ---


CLOCK_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/clock"): Operation(
        "The broker's time and the machine's",
        "server",
        {200: ReplyDoc("Both, and whether they disagree.", a.ClockInfo)},
    ),
    ("POST", "/v1/clock/accept"): Operation(
        "Accept the machine's clock as the broker's time",
        "server",
        {200: ReplyDoc("The broker's time is the machine's. Running leases keep the time they had left.", a.ClockInfo)},
    ),
}
