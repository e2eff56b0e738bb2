"""The documentation of access tokens."""

from __future__ import annotations

from driftq.server.openapi.operation import DONE, PAGE, READ_ERRORS, Operation, Operations, ReplyDoc, as_json
from driftq.wire import tokens

_TAG = "access"

OPERATIONS: Operations = {
    ("GET", "/v1/tokens"): Operation(
        "List access tokens",
        "All tokens with their grants, without their text.",
        _TAG,
        {200: ReplyDoc("A page of tokens.", tokens.TokensReply)},
        query=PAGE,
        errors=(400,),
    ),
    ("POST", "/v1/tokens"): Operation(
        "Create an access token",
        "A grant is a verb and a pattern of names, like `produce:orders.*`. The reply has the text of the token; it is "
        "stored as a digest and cannot be shown again.",
        _TAG,
        {201: ReplyDoc("The new token.", tokens.NewTokenReply, headers=("Cache-Control",))},
        as_json(tokens.TokenRequest),
        errors=(400, 409),
    ),
    ("GET", "/v1/tokens/{id}"): Operation(
        "Describe an access token",
        "Its name, grants, expiry and about its last use.",
        _TAG,
        {200: ReplyDoc("The token's description.", tokens.TokenInfo)},
        errors=READ_ERRORS,
    ),
    ("PATCH", "/v1/tokens/{id}"): Operation(
        "Narrow an access token",
        "Takes grants away, or makes it expire earlier. Rights are never added: create another token for that.",
        _TAG,
        DONE,
        as_json(tokens.TokenChange),
        errors=READ_ERRORS,
    ),
    ("DELETE", "/v1/tokens/{id}"): Operation(
        "Revoke an access token",
        "It is refused from the next request on, and its open streams end within a second.",
        _TAG,
        DONE,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/tokens/{id}/rotate"): Operation(
        "Replace the secret of an access token",
        "Id and grants stay. The old secret is accepted for `overlap_ms` longer, so that clients can change over.",
        _TAG,
        {200: ReplyDoc("The token with its new text.", tokens.NewTokenReply, headers=("Cache-Control",))},
        as_json(tokens.RotateRequest),
        body_optional=True,
        errors=(400, 404, 409),
    ),
}
