"""The documentation of subscriptions to streams: the control routes below `/v1/stream/__ds/`.

They are served by the route of all streams, so they are listed here by their own paths. Errors are JSON with a code and
a message under `error`, as the Durable Streams protocol has it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from driftq.server.documenting.operation import Operation, Reply, as_json
from driftq.server.faces import subscriptions as f

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


_ACKED = {200: Reply("Noted; `next_wake` says whether there is more.", WakeAcked)}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", f"{_ROOT}/jwks.json"): Operation(
        "The public key that webhook calls are signed with",
        "subscriptions",
        {200: Reply("A set of one key.", Keys, "application/jwk-set+json")},
    ),
    ("PUT", _ONE): Operation(
        "Follow streams by name or pattern: call a webhook, or let workers claim wakes",
        "subscriptions",
        {201: Reply("It follows them now.", SubscriptionInfo), 200: Reply("It did already.", SubscriptionInfo)},
        as_json(f.SubscriptionRequest),
        errors=_ERRORS,
    ),
    ("GET", _ONE): Operation(
        "A subscription and its streams",
        "subscriptions",
        {200: Reply("With the offset that is acked for each stream.", SubscriptionInfo)},
        errors=(400, 404),
    ),
    ("DELETE", _ONE): Operation(
        "Delete a subscription", "subscriptions", {204: Reply("It is gone, or never was.")}, errors=(400, 429)
    ),
    ("POST", f"{_ONE}/streams"): Operation(
        "Follow more streams", "subscriptions", {204: Reply("Done.")}, as_json(f.StreamsRequest), errors=_ERRORS
    ),
    ("DELETE", f"{_ONE}/streams/{{path}}"): Operation(
        "Follow a stream no longer", "subscriptions", {204: Reply("Done.")}, errors=_ERRORS
    ),
    ("POST", f"{_ONE}/claim"): Operation(
        "Claim the wake of a pull-wake subscription",
        "subscriptions",
        {200: Reply("The streams that have grown, under a lease.", WakeInfo)},
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
        {204: Reply("Another worker may claim it.")},
        as_json(f.WakeAckRequest),
        body_optional=True,
        errors=(401, *_ERRORS),
        headers=("Authorization",),
    ),
}
