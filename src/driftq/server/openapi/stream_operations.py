"""The durable streams of `/v1/stream/{path}` as operations. Their protocol lives in headers; errors are plain text."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from driftq.server.handlers import subscriptions as f
from driftq.server.openapi.operation import ANY, BATCH, BYTES, PLAIN, Operation, Query, ReplyDoc, as_json
from driftq.wire import admin as a
from driftq.wire import queue as q
from driftq.wire import streams as w

ROUTE = ("*", "/v1/stream/*")
PATH = "/v1/stream/{path}"

_POSITION = (w.NEXT_OFFSET,)
_OFFSET = Query("offset", str, "Where to read from: a token of an earlier answer, -1 for the start, now for the end.")

STREAM_OPERATIONS: dict[str, Operation] = {
    "PUT": Operation(
        "Create a stream, or a fork of one",
        "streams",
        {
            201: ReplyDoc("It is there now.", headers=(*_POSITION, "Location")),
            200: ReplyDoc("It was there, just so.", headers=_POSITION),
        },
        {BYTES: bytes, "application/json": Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 413, 422, 429),
        headers=(w.TTL, w.EXPIRES_AT, w.CLOSED, w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET),
    ),
    "POST": Operation(
        "Append to a stream, close it, or both",
        "streams",
        {
            204: ReplyDoc("It is on disk, or was before.", headers=_POSITION),
            200: ReplyDoc("It is on disk (a producer that declares its epoch).", headers=_POSITION),
            201: ReplyDoc("It is on disk (a producer whose epoch the server keeps).", headers=_POSITION),
        },
        {BYTES: bytes, "application/json": Any, PLAIN: str},
        body_optional=True,
        errors=(400, 403, 404, 409, 410, 412, 413, 422, 429),
        headers=(w.PRODUCER_ID, w.PRODUCER_EPOCH, w.PRODUCER_SEQ, w.SEQ, w.CLOSED, "If-Match"),
    ),
    "GET": Operation(
        "Read a stream: catch up, wait (`live=long-poll`), or follow (`live=sse`)",
        "streams",
        {
            200: ReplyDoc("What is there, as the stream's own type or as events.", bytes, ANY, _POSITION),
            204: ReplyDoc("Nothing came in time; ask again from here.", headers=_POSITION),
            304: ReplyDoc("Nothing has changed."),
        },
        query=(
            _OFFSET,
            Query("live", str, "long-poll or sse."),
            Query("cursor", str, "Echo of the last answer's cursor."),
        ),
        errors=(400, 404, 410),
        headers=("If-None-Match",),
    ),
    "HEAD": Operation(
        "A stream's type, end and lifetime",
        "streams",
        {200: ReplyDoc("In headers.", headers=_POSITION)},
        errors=(400, 404, 410),
    ),
    "DELETE": Operation("Delete a stream", "streams", {204: ReplyDoc("It is gone.")}, errors=(400, 404, 405, 409, 410)),
}


# --- The documentation of staged appends ---


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/stages"): Operation(
        "Keep a packed batch durable and unseen until its writer publishes it",
        "stages",
        {201: ReplyDoc("Staged.", a.StagedInfo), 200: ReplyDoc("Staged before.", a.StagedInfo)},
        {BATCH: bytes},
        query=(
            Query("writer", q.Name, "Who publishes it.", True),
            Query("handle", q.Name, "The name to publish it by.", True),
            Query("topic", q.Name, "The topic it is for (or `path`)."),
            Query("partition", q.Natural, "The partition."),
            Query("key", str, "Names the partition by its hash."),
            Query("path", str, "The stream it is for."),
            Query("ttl_ms", q.Natural, "How long it is kept."),
            Query("chunk", q.Natural, "Its number under the handle, from 0: makes a repeat harmless."),
        ),
        errors=(400, 404, 409, 410, 413, 429),
    ),
    ("POST", "/v1/stages/publish"): Operation(
        "Show staged batches together, once for each batch number of a writer",
        "stages",
        {200: ReplyDoc("Where each went; the first result if it was published before.", a.PublishedInfo)},
        as_json(a.PublishRequest),
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/stages/forget"): Operation(
        "Give up staged batches",
        "stages",
        {200: ReplyDoc("Whether there were any.", a.ForgottenInfo)},
        as_json(a.ForgetRequest),
        errors=(400,),
    ),
}


# --- The documentation of subscriptions to streams: the control routes below `/v1/stream/__ds/` ---


_ROOT = "/v1/stream/__ds"
_ONE = f"{_ROOT}/subscriptions/{{id}}"
_ERRORS = (400, 404, 409, 429)


class ProblemDetails(Struct, frozen=True):
    code: str
    message: str


class SubscriptionError(Struct, frozen=True):
    """A refusal of the subscription routes."""

    error: ProblemDetails


class Signing(Struct, frozen=True):
    """How calls of a webhook are signed, and where the public key is."""

    alg: str
    kid: str
    jwks_url: str


class WebhookInfo(Struct, frozen=True):
    url: str
    signing: Signing


class FollowedInfo(Struct, frozen=True):
    path: str
    link_type: Literal["explicit", "glob"]
    acked_offset: str


class SubscriptionInfo(Struct, frozen=True, omit_defaults=True):
    id: str
    subscription_id: str
    type: Literal["webhook", "pull-wake"]
    streams: list[FollowedInfo]
    lease_ttl_ms: int
    created_at: str
    status: Literal["active", "failed"]
    pattern: str = ""
    wake_stream: str = ""
    description: str = ""
    webhook: WebhookInfo | None = None


class WakeStream(Struct, frozen=True):
    path: str
    link_type: Literal["explicit", "glob"]
    acked_offset: str
    tail_offset: str
    has_pending: bool


class WakeInfo(Struct, frozen=True):
    """What woke the subscription. `token` goes into the Authorization header of the ack."""

    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream]
    lease_ttl_ms: int


class WakeAcked(Struct, frozen=True):
    ok: bool
    next_wake: bool


class Keys(Struct, frozen=True):
    keys: list[dict[str, Any]]


_ACKED = {200: ReplyDoc("Noted; `next_wake` says whether there is more.", WakeAcked)}

SUBSCRIPTION_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", f"{_ROOT}/jwks.json"): Operation(
        "The public key that webhook calls are signed with",
        "subscriptions",
        {200: ReplyDoc("A set of one key.", Keys, "application/jwk-set+json")},
    ),
    ("PUT", _ONE): Operation(
        "Follow streams by name or pattern: call a webhook, or let workers claim wakes",
        "subscriptions",
        {201: ReplyDoc("It follows them now.", SubscriptionInfo), 200: ReplyDoc("It did already.", SubscriptionInfo)},
        as_json(f.SubscriptionRequest),
        errors=_ERRORS,
    ),
    ("GET", _ONE): Operation(
        "A subscription and its streams",
        "subscriptions",
        {200: ReplyDoc("With the offset that is acked for each stream.", SubscriptionInfo)},
        errors=(400, 404),
    ),
    ("DELETE", _ONE): Operation(
        "Delete a subscription", "subscriptions", {204: ReplyDoc("It is gone, or never was.")}, errors=(400, 429)
    ),
    ("POST", f"{_ONE}/streams"): Operation(
        "Follow more streams", "subscriptions", {204: ReplyDoc("Done.")}, as_json(f.StreamsRequest), errors=_ERRORS
    ),
    ("DELETE", f"{_ONE}/streams/{{path}}"): Operation(
        "Follow a stream no longer", "subscriptions", {204: ReplyDoc("Done.")}, errors=_ERRORS
    ),
    ("POST", f"{_ONE}/claim"): Operation(
        "Claim the wake of a pull-wake subscription",
        "subscriptions",
        {200: ReplyDoc("The streams that have grown, under a lease.", WakeInfo)},
        as_json(f.WakeClaimRequest),
        errors=_ERRORS,
    ),
    ("POST", f"{_ONE}/ack"): Operation(
        "Acknowledge what was read of the streams of a wake",
        "subscriptions",
        _ACKED,
        as_json(f.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
    ("POST", f"{_ONE}/callback"): Operation(
        "Acknowledge from a webhook's receiver",
        "subscriptions",
        _ACKED,
        as_json(f.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
    ("POST", f"{_ONE}/release"): Operation(
        "Give a claimed wake back",
        "subscriptions",
        {204: ReplyDoc("Another worker may claim it.")},
        as_json(f.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
}
