"""Bodies of subscriptions to streams: the control routes below `/v1/stream/__ds/`.

A subscription follows streams, by name or by pattern. When one grows, the broker *wakes* the subscription: it calls a
webhook, or a worker claims the wake. Requests may have unknown fields, and errors are objects, as the protocol says.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

_StreamPath = Annotated[str, Meta(min_length=1, max_length=1_024)]
SubscriptionKind = Literal["webhook", "pull-wake"]
LinkType = Literal["explicit", "glob"]


class SubscriptionErrorDetails(Struct, frozen=True):
    code: str
    message: str


class SubscriptionError(Struct, frozen=True):
    """A refusal of the subscription routes; some have more details."""

    error: SubscriptionErrorDetails


# --- requests ---------------------------------------------------------------------------------------------------------


class Webhook(Struct, frozen=True):
    url: Annotated[str, Meta(min_length=1, max_length=2_048)]


class SubscriptionRequest(Struct, frozen=True):
    """Follow streams by name (`streams`), by pattern (`pattern`), or both. A webhook subscription has a `webhook`, a
    pull-wake subscription has a `wake_stream`."""

    type: SubscriptionKind
    pattern: Annotated[str, Meta(max_length=1_024)] = ""
    streams: list[_StreamPath] = []
    webhook: Webhook | None = None
    wake_stream: Annotated[str, Meta(max_length=1_024)] = ""
    lease_ttl_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 30_000
    description: Annotated[str, Meta(max_length=4_096)] = ""


class StreamsRequest(Struct, frozen=True):
    """More streams to follow."""

    streams: Annotated[list[_StreamPath], Meta(min_length=1, max_length=10_000)]


class WakeClaimRequest(Struct, frozen=True):
    worker: _StreamPath


class AckEntry(Struct, frozen=True):
    """A stream (`stream` or `path`) and the offset up to which it was read."""

    offset: str
    stream: str | UnsetType = UNSET
    path: str | UnsetType = UNSET


class WakeAckRequest(Struct, frozen=True):
    """What was read of the streams of a wake. `done` ends the wake."""

    wake_id: str = ""
    generation: int = 0
    acks: list[AckEntry] = []
    done: bool = False


# --- replies ----------------------------------------------------------------------------------------------------------


class WebhookSigning(Struct, frozen=True):
    """How webhook calls are signed, and where the public key is."""

    alg: str
    kid: str
    jwks_url: str


class WebhookInfo(Struct, frozen=True):
    url: str
    signing: WebhookSigning


class FollowedStreamInfo(Struct, frozen=True):
    path: str
    link_type: LinkType
    acked_offset: str


class SubscriptionInfo(Struct, frozen=True, omit_defaults=True):
    """A subscription. `status` is "failed" while its webhook does not answer."""

    id: str
    subscription_id: str
    type: SubscriptionKind
    streams: list[FollowedStreamInfo]
    lease_ttl_ms: int
    created_at: str
    status: Literal["active", "failed"]
    pattern: str = ""
    wake_stream: str = ""
    description: str = ""
    webhook: WebhookInfo | None = None


class WakeStreamInfo(Struct, frozen=True):
    path: str
    link_type: LinkType
    acked_offset: str
    tail_offset: str
    has_pending: bool


class WakeInfo(Struct, frozen=True):
    """A claimed wake. `token` goes into the Authorization header of the ack."""

    wake_id: str
    generation: int
    token: str
    streams: list[WakeStreamInfo]
    lease_ttl_ms: int


class WakeAckInfo(Struct, frozen=True):
    """`next_wake` reports whether the streams have grown since."""

    ok: bool
    next_wake: bool


class JsonWebKeys(Struct, frozen=True):
    """A JSON Web Key Set (RFC 7517)."""

    keys: list[dict[str, Any]]


class ListedSubscription(Struct, frozen=True):
    """A subscription of the list. `state` is "idle", "woken" (none holds the wake) or "held". `grown` counts the
    streams that have grown since their last ack, among the first 1,000. `failures` are those of its webhook since the
    last success or the start of the broker."""

    id: str
    type: str
    pattern: str
    streams: int
    grown: int
    target: str
    state: str
    holder: str
    lease_until: str | None
    generation: int
    failures: int
    created_at: str


class SubscriptionsReply(Struct, frozen=True, omit_defaults=True):
    """A page of subscriptions, by id. `after` starts the next page; it is missing on the last page."""

    subscriptions: list[ListedSubscription]
    after: str | None = None


class ListedProducer(Struct, frozen=True, omit_defaults=True):
    """An idempotent producer of a log: a partition of a topic, or a stream."""

    producer: str
    epoch: int
    seq: int
    last_write: str
    topic: str = ""
    partition: int = 0
    stream: str = ""


class ProducersReply(Struct, frozen=True, omit_defaults=True):
    """A page of producers, log by log. `after` starts the next page; it is missing on the last page."""

    producers: list[ListedProducer]
    after: str | None = None
