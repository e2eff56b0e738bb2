"""The documentation of durable streams: streams at a path, their list, and subscriptions to them.

The protocol of streams uses headers for most things, and its errors are plain text.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from driftq.server.openapi.operation import (
    ANY_TYPE,
    BYTES,
    DETAILS,
    JSON,
    LIMIT,
    PAGE,
    PLAIN,
    READ_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    as_json,
)
from driftq.wire import streams as w
from driftq.wire import subscriptions as s
from driftq.wire.fields import Natural
from driftq.wire.produce import PACKED_RANGE_TYPE
from driftq.wire.topics import ArchivedRange

ROUTE = ("*", "/v1/stream/*")
PATH = "/v1/stream/{path}"

_END = (w.NEXT_OFFSET,)

# The methods of PATH.
STREAM_OPERATIONS: dict[str, Operation] = {
    "PUT": Operation(
        "Create a stream",
        "Creates a stream with a content type, and optionally with first data, a lifetime, or as a fork of another. "
        "Creating it again with the same properties changes nothing.",
        "streams",
        {
            201: ReplyDoc("The stream was created.", headers=(*_END, "Location")),
            200: ReplyDoc("The stream existed with the same properties.", headers=_END),
        },
        {BYTES: bytes, JSON: Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 413, 422, 429),
        headers=(w.TTL, w.EXPIRES_AT, w.CLOSED, w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET),
    ),
    "POST": Operation(
        "Append to a stream",
        "Appends the body, closes the stream, or both. With a producer id, epoch and sequence number the append can be "
        "repeated: it is stored once. With `If-Match` it succeeds only if the stream still ends at that offset.",
        "streams",
        {
            204: ReplyDoc("The data is on disk, now or since an earlier call.", headers=_END),
            200: ReplyDoc("The data is on disk. For producers that declare their epoch.", headers=_END),
            201: ReplyDoc("The data is on disk. For producers whose epoch the server assigns.", headers=_END),
        },
        {BYTES: bytes, JSON: Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 412, 413, 422, 429),
        headers=(w.PRODUCER_ID, w.PRODUCER_EPOCH, w.PRODUCER_SEQ, w.SEQ, w.CLOSED, "If-Match"),
    ),
    "GET": Operation(
        "Read a stream",
        "Reads from an offset to the end. With `live=long-poll` it waits for new data at the end; with `live=sse` it "
        "follows the stream as server-sent events.",
        "streams",
        {
            200: ReplyDoc("Data in the stream's content type, or events.", bytes, ANY_TYPE, _END),
            204: ReplyDoc("No new data arrived in time. Read again from the same offset.", headers=_END),
            304: ReplyDoc("Not modified."),
        },
        query=(
            Query("offset", str, "Where to read from: an offset of an earlier reply, -1 (the start) or now (the end)."),
            Query("live", str, "long-poll or sse."),
            Query("cursor", str, "The cursor of the previous reply."),
        ),
        errors=(400, 404, 410),
        headers=("If-None-Match",),
    ),
    "HEAD": Operation(
        "Describe a stream",
        "The content type, end and lifetime of a stream, as headers.",
        "streams",
        {200: ReplyDoc("The stream exists.", headers=_END)},
        errors=(400, 404, 410),
    ),
    "DELETE": Operation(
        "Delete a stream",
        "Its data is deleted with it.",
        "streams",
        {204: ReplyDoc("The stream was deleted.")},
        errors=(400, 404, 405, 409, 410),
    ),
}

OPERATIONS: Operations = {
    ("GET", "/v1/streams"): Operation(
        "List streams",
        "Streams whose path begins with a prefix, sorted by path.",
        "streams",
        {200: ReplyDoc("A page of streams. `after` starts the next one.", w.StreamsReply)},
        query=(Query("prefix", str, "Only paths that begin with this."), DETAILS, *PAGE),
        errors=(400,),
    ),
    ("GET", "/v1/subscriptions"): Operation(
        "List subscriptions",
        "The subscriptions that the caller may read, by id: what they follow, who holds the wake, and failures of the "
        "webhook.",
        "streams",
        {200: ReplyDoc("A page of subscriptions.", s.SubscriptionsReply)},
        query=PAGE,
        errors=(400,),
    ),
    ("GET", "/v1/producers"): Operation(
        "List producers",
        "Idempotent producers, log by log: of all topics and streams, or of one.",
        "streams",
        {200: ReplyDoc("A page of producers.", s.ProducersReply)},
        query=(
            Query("topic", str, "Only producers of this topic."),
            Query("stream", str, "Only producers of this stream."),
            Query("after", Annotated[str, Meta(pattern="^([0-9]{1,16}(:.*)?)?$")], "The `after` of the previous page."),
            LIMIT,
        ),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/streams/trim"): Operation(
        "Trim a stream",
        "Deletes everything before an offset.",
        "streams",
        {200: ReplyDoc("Where the stream starts now.", w.TrimReply)},
        as_json(w.TrimRequest),
        errors=(400, 404, 409, 410),
    ),
    ("GET", "/v1/streams/records"): Operation(
        "Read packed records of a stream",
        "For readers that keep their own offsets. Returns whole batches, so the first may begin before `offset` and "
        "the last may end after `Driftq-Next-Offset`.",
        "streams",
        {
            200: ReplyDoc(
                "Packed batches, one after the other.",
                bytes,
                PACKED_RANGE_TYPE,
                (
                    "Driftq-Next-Offset",
                    "Driftq-Start-Offset",
                    "Driftq-End-Offset",
                    "Driftq-Created-At",
                    "Driftq-Last-Batch",
                ),
                ((JSON, ArchivedRange),),
            )
        },
        query=(
            Query("stream", str, "The path of the stream.", required=True),
            Query("offset", Natural, "The first offset to read. The start of the stream if absent."),
            Query("end", Natural, "The offset to stop before. 0 only asks for the start and the end of the stream."),
            Query("max_bytes", Natural, "Approximate size of the reply. 4 MiB if absent, 16 MiB at most."),
            Query("locate", bool, "Where records are, as JSON, if they are only in the archive."),
        ),
        errors=(400, 404, 410),
    ),
}


# --- subscriptions: the control routes below /v1/stream/__ds/ ---------------------------------------------------------

_ROOT = "/v1/stream/__ds"
_ONE = f"{_ROOT}/subscriptions/{{id}}"
_ERRORS = (400, 404, 409, 429)
_ACKED = {200: ReplyDoc("The offsets are stored. `next_wake` reports whether there is more to read.", s.WakeAckInfo)}

SUBSCRIPTION_OPERATIONS: Operations = {
    ("GET", f"{_ROOT}/jwks.json"): Operation(
        "The public key of webhook calls",
        "Webhook calls are signed with the matching private key.",
        "subscriptions",
        {200: ReplyDoc("A set with one key.", s.JsonWebKeys, "application/jwk-set+json")},
    ),
    ("PUT", _ONE): Operation(
        "Create a subscription",
        "Follows streams by name or by pattern. When one grows, a webhook is called or a worker claims the wake.",
        "subscriptions",
        {
            201: ReplyDoc("The subscription was created.", s.SubscriptionInfo),
            200: ReplyDoc("The subscription existed with the same properties.", s.SubscriptionInfo),
        },
        as_json(s.SubscriptionRequest),
        errors=_ERRORS,
    ),
    ("GET", _ONE): Operation(
        "Describe a subscription",
        "Its settings and its streams, with the acknowledged offset of each.",
        "subscriptions",
        {200: ReplyDoc("The subscription's description.", s.SubscriptionInfo)},
        errors=(400, 404),
    ),
    ("DELETE", _ONE): Operation(
        "Delete a subscription",
        "The streams are not changed.",
        "subscriptions",
        {204: ReplyDoc("The subscription does not exist any more.")},
        errors=(400, 429),
    ),
    ("POST", f"{_ONE}/streams"): Operation(
        "Follow more streams",
        "Adds streams by name.",
        "subscriptions",
        {204: ReplyDoc("Done. Repeating the call has no further effect.")},
        as_json(s.StreamsRequest),
        errors=_ERRORS,
    ),
    ("DELETE", f"{_ONE}/streams/{{path}}"): Operation(
        "Stop following a stream",
        "Removes a stream that was added by name.",
        "subscriptions",
        {204: ReplyDoc("Done. Repeating the call has no further effect.")},
        errors=_ERRORS,
    ),
    ("POST", f"{_ONE}/claim"): Operation(
        "Claim a wake",
        "For workers of a pull-wake subscription. The wake is held under a lease.",
        "subscriptions",
        {200: ReplyDoc("The streams that have grown, and a token for the ack.", s.WakeInfo)},
        as_json(s.WakeClaimRequest),
        errors=_ERRORS,
    ),
    ("POST", f"{_ONE}/ack"): Operation(
        "Acknowledge a claimed wake",
        "Stores how far the streams of the wake were read. The call extends the lease, or ends it with `done`.",
        "subscriptions",
        _ACKED,
        as_json(s.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
    ("POST", f"{_ONE}/callback"): Operation(
        "Acknowledge a webhook call",
        "As `/ack`, for the receiver of a webhook.",
        "subscriptions",
        _ACKED,
        as_json(s.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
    ("POST", f"{_ONE}/release"): Operation(
        "Release a claimed wake",
        "Another worker may claim it.",
        "subscriptions",
        {204: ReplyDoc("The wake can be claimed again.")},
        as_json(s.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
}
