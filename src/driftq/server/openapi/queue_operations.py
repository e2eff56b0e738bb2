"""The documentation of the queue: produce, route, consume, claim, settle."""

from __future__ import annotations

from typing import Literal

from driftq.server.openapi.operation import (
    DONE,
    JSON,
    NDJSON,
    READ_ERRORS,
    TOPIC,
    WRITE_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    Text,
    as_json,
)
from driftq.wire import claims, produce
from driftq.wire.fields import LEASE_MS_MAX, LEASE_MS_MIN, Name, Natural, Positive
from driftq.wire.packed_claim import CLAIM_TYPE
from driftq.wire.router import RouteReply

_ANY = Query("partition", Literal["any"], "`any`: a message without a key goes to the next partition, not to 0.")
_ENVELOPE_QUERY = (
    Query("run_id", str, "The run this message belongs to."),
    Query("step_id", str, "The step of the run."),
    Query("parent_step_id", str, "The step that caused this one."),
    Query("tenant_id", str, "The tenant (also as `tenant`)."),
    Query("idempotency_key", str, "Messages with the same key are stored once (also as `idem_key`)."),
    Query("target_topic", str, "Store the message in this topic instead."),
    Query("partition_override", Natural, "Store the message in this partition."),
    Query("deadline", str, "RFC 3339. The message is not delivered after this time (also as `deadline_ms`)."),
    Query("retry_max_attempts", Positive, "Deliveries before the message becomes a dead letter."),
    Query("retry_backoff_ms", Natural, "The delay before the second delivery. It doubles after each failure."),
    Query("retry_max_backoff_ms", Natural, "The longest delay between two deliveries."),
    Query("traceparent", str, "W3C trace context."),
    Query("tracestate", str, "W3C trace context, of the vendors."),
    Query("baggage", str, "W3C baggage."),
)
_SETTLED = {
    200: ReplyDoc(
        "`refused` lists the messages that were not settled, and why. All others were. "
        "A call about very many messages is carried out in slices of 250 or more, each all or nothing.",
        claims.SettleReply,
    )
}

PRODUCE_OPERATIONS: Operations = {
    ("POST", "/v1/produce"): Operation(
        "Produce a message",
        "The message is on disk when the call returns. With an idempotency key the call can be repeated: the message "
        "is stored once, and a repeat returns `duplicate`. Parameters may come as JSON or in the query.",
        "produce",
        {200: ReplyDoc("The message is on disk, now or since an earlier call (`duplicate`).", produce.ProduceReply)},
        as_json(produce.ProduceRequest),
        either=True,
        query=(
            Query("topic", str, "The topic."),
            Query("value", str, "The payload, as text."),
            Query("key", str, "Messages with the same key go to the same partition, in order."),
            _ANY,
            *_ENVELOPE_QUERY,
        ),
        errors=WRITE_ERRORS,
        headers=("traceparent", "tracestate", "baggage"),
    ),
    ("POST", "/v1/produce/batch"): Operation(
        "Produce many messages",
        "Up to 10,000 messages, as JSON or as NDJSON. Each has its own result; an invalid message does not stop the "
        "others. The messages of one partition keep the order of the request.",
        "produce",
        {200: ReplyDoc("One result for each message, in the order of the request.", produce.BatchReply)},
        {JSON: produce.ProduceBatchRequest | list[produce.ProduceRequest], NDJSON: str},
        query=(Query("topic", str, "The topic of NDJSON lines that name none."), _ANY),
        errors=(400, 429),
        headers=("traceparent", "tracestate", "baggage"),
    ),
    ("POST", "/v1/produce/packed"): Operation(
        "Produce a packed batch",
        "The body is a batch in the binary format of DriftQ, which is stored as it is. A batch with a producer, epoch "
        "and sequence number can be repeated: it is stored once.",
        "produce",
        {200: ReplyDoc("The partition and the offset of the first record.", produce.PackedReply)},
        {produce.PACKED_TYPE: bytes},
        query=(
            TOPIC,
            Query("partition", Natural | Literal["any"], "The partition; `any` is not allowed with a producer."),
            Query("key", str, "Chooses the partition by its hash."),
        ),
        errors=WRITE_ERRORS,
    ),
    ("POST", "/v1/route"): Operation(
        "Show where a message would go, without producing it",
        "Calls the router as a produce would and explains the decision.",
        "produce",
        {200: ReplyDoc("The rule, the topic and partition, and whether it is a duplicate or refused.", RouteReply)},
        as_json(produce.ProduceRequest),
        errors=(400,),
    ),
}

CONSUME_OPERATIONS: Operations = {
    ("GET", "/v1/consume"): Operation(
        "Consume messages as an open stream",
        "Sends one JSON object per line as long as the connection is open; an idle stream sends bare newlines. The "
        "leases of delivered messages are extended while the consumer keeps settling. Settle with the settle calls.",
        "consume",
        {200: ReplyDoc("One `Delivered` per line.", str, NDJSON)},
        query=(
            TOPIC,
            Query("group", Name, "The group. It is created if it does not exist.", True),
            Query("owner", Text, "The name of the consumer.", True),
            Query(
                "lease_ms",
                Natural,
                f"The length of a lease: {LEASE_MS_MIN} ms to {LEASE_MS_MAX // 3_600_000} h.",
            ),
            Query("start", str, "Where a new group starts: earliest, latest or an RFC 3339 time."),
            Query("task", str, "Only messages with this task."),
            Query("label", str, "Only messages with this label."),
            Query("prefetch", claims.Prefetch, "Unsettled messages of this connection at most. Adapts if absent."),
        ),
        errors=(400, 404, 409, 429),
    ),
    ("POST", "/v1/claim"): Operation(
        "Claim messages",
        "Takes up to `max` messages under a lease, and waits up to `wait_ms` for the first one. A message that is not "
        "settled before its lease ends is delivered again. `acks` are settled in the same write, and a claim with "
        f"acks does not wait. With `Accept: {CLAIM_TYPE}` the reply is binary: the records as they are stored. "
        "One reply holds about `limits.reply_bytes`, at least one message.",
        "consume",
        {200: ReplyDoc("The claimed messages, perhaps none.", claims.ClaimReply)},
        as_json(claims.ClaimRequest),
        either=True,
        errors=(400, 404, 429),
    ),
    ("POST", "/v1/ack"): Operation(
        "Acknowledge a message",
        "The message is done for this group and is not delivered to it again.",
        "settle",
        DONE,
        as_json(claims.AckRequest),
        either=True,
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/nack"): Operation(
        "Report a failed attempt",
        "The message is delivered again after its backoff, or becomes a dead letter if no attempts are left.",
        "settle",
        DONE,
        as_json(claims.NackRequest),
        either=True,
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/ack/batch"): Operation(
        "Acknowledge many messages",
        "As `/v1/ack`, for up to 10,000 messages. Each succeeds or fails by itself.",
        "settle",
        _SETTLED,
        as_json(claims.SettleRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/nack/batch"): Operation(
        "Report many failed attempts",
        "As `/v1/nack`, for up to 10,000 messages. Each succeeds or fails by itself.",
        "settle",
        _SETTLED,
        as_json(claims.SettleRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/release"): Operation(
        "Return messages without counting an attempt",
        "The messages can be claimed again at once, or after `delay_ms`.",
        "settle",
        _SETTLED,
        as_json(claims.SettleRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/reject"): Operation(
        "Move messages to the dead letters",
        "The messages become dead letters without another attempt.",
        "settle",
        _SETTLED,
        as_json(claims.SettleRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/extend"): Operation(
        "Extend leases",
        "The leases end `lease_ms` from now. `refused` lists the messages whose lease was lost.",
        "settle",
        _SETTLED,
        as_json(claims.SettleRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/ack-cumulative"): Operation(
        "Acknowledge everything up to an offset",
        "Acknowledges all messages of a partition up to and including `offset`, if the caller holds all of them.",
        "settle",
        DONE,
        as_json(claims.AckRequest),
        either=True,
        errors=(400, 404, 409),
    ),
}

OPERATIONS: Operations = {**PRODUCE_OPERATIONS, **CONSUME_OPERATIONS}
