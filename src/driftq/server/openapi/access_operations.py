"""The documentation of access tokens and tenants."""

from __future__ import annotations

from driftq.server.openapi.operation import (
    DONE,
    NUMBERED_PAGE,
    PAGE,
    READ_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    as_json,
)
from driftq.wire import audit, tenants, tokens
from driftq.wire.fields import Natural

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
    ("GET", "/v1/audit"): Operation(
        "List the audit",
        "Who changed what and who was refused, the newest first; with `from` the oldest first, from that offset on. A "
        "page may be short although there are more records: `after` continues it. An operator sees all records, the "
        "holder of a tenant's token those of its tenant. Needs `read:_audit` and `observe`.",
        _TAG,
        {200: ReplyDoc("A page of records.", audit.AuditReply)},
        query=(
            Query("who", str, "The name of a credential, or the id of a token."),
            Query("action", str, "Such as `topic.delete`; `access` for refusals."),
            Query("name", str, "What was changed."),
            Query("result", str, "`changed`, `unchanged`, `done`, `denied` or `refused`."),
            Query("tenant", str, "The tenant of the caller."),
            Query("since", str, "Records from this time on (RFC 3339)."),
            Query("until", str, "Records before this time (RFC 3339)."),
            Query("from", Natural, "The first offset, to read towards newer records."),
            *NUMBERED_PAGE,
        ),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/tenants"): Operation(
        "List tenants",
        "All tenants with their quotas. For operators.",
        _TAG,
        {200: ReplyDoc("A page of tenants.", tenants.TenantsReply)},
        query=PAGE,
        errors=(400,),
    ),
    ("POST", "/v1/tenants"): Operation(
        "Create a tenant",
        "Its namespace must be empty: no name may begin with the tenant's name and `~`. A quota that is not named, or "
        "0, is none. For operators.",
        _TAG,
        {201: ReplyDoc("The new tenant.", tenants.TenantInfo)},
        as_json(tenants.TenantRequest),
        errors=(400, 409),
    ),
    ("GET", "/v1/tenants/{tenant}"): Operation(
        "Describe a tenant",
        "Its quotas, and what it uses of them now. For operators.",
        _TAG,
        {200: ReplyDoc("The tenant.", tenants.TenantInfo)},
        errors=READ_ERRORS,
    ),
    ("PATCH", "/v1/tenants/{tenant}"): Operation(
        "Change the quotas of a tenant",
        "Takes effect with the next request. Quotas that are not named stay; 0 takes one away. For operators.",
        _TAG,
        {200: ReplyDoc("The tenant.", tenants.TenantInfo)},
        as_json(tenants.TenantChange),
        errors=READ_ERRORS,
    ),
    ("DELETE", "/v1/tenants/{tenant}"): Operation(
        "Delete a tenant",
        "Only one that has no topics, streams, schedules, subscriptions and tokens left. For operators.",
        _TAG,
        DONE,
        errors=(400, 404, 409),
    ),
    ("GET", "/v1/identity"): Operation(
        "Who calls",
        "The name, tenant and grants of the credential of this call: what a page or a tool should offer. A server that "
        "asks for no credentials grants everything.",
        _TAG,
        {200: ReplyDoc("The caller.", tokens.IdentityInfo, headers=("Cache-Control",))},
    ),
    ("POST", "/v1/tokens/derive"): Operation(
        "Derive a short-lived token",
        "A narrower token with an end, for any caller to hand on: a JWT (EdDSA). It never has more rights than the "
        "credential of this call has, and ends with it. It is sent like any token; for reads, such as those of "
        "`EventSource`, it may be the query parameter `access_token`.",
        _TAG,
        {201: ReplyDoc("The short-lived token.", tokens.DerivedTokenReply, headers=("Cache-Control",))},
        as_json(tokens.DeriveRequest),
        errors=(400,),
    ),
    ("GET", "/.well-known/jwks.json"): Operation(
        "Public keys of short-lived tokens",
        "A JWK set. A key that was replaced stays in it until all that it has signed has expired.",
        _TAG,
        {200: ReplyDoc("The keys.", tokens.KeySet, "application/jwk-set+json", headers=("Cache-Control",))},
    ),
}
