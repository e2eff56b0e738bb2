"""Bodies of access tokens: create, list, narrow, rotate, derive."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Positive
from driftq.wire.grants import GRANT_LENGTH_MAX, GRANTS_MAX
from driftq.wire.namespaces import TENANT_LENGTH_MAX

TOKEN_NAME_MAX = 100
DERIVED_TTL_MS = 600_000
OVERLAP_MS_MAX = 30 * 86_400_000
Grants = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=GRANT_LENGTH_MAX)]], Meta(min_length=1, max_length=GRANTS_MAX)
]
TokenName = Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_MAX)]
TenantName = Annotated[str, Meta(max_length=TENANT_LENGTH_MAX)]


class TokenRequest(Body, frozen=True):
    """A token to create. It expires at a time (`expires_at`), after a time (`ttl_ms`), or not at all. Without `tenant`
    it belongs to the tenant of its creator, or to none if an operator creates it."""

    name: TokenName
    grants: Grants
    expires_at: str = ""
    ttl_ms: Positive | None = None
    tenant: TenantName = ""


class TokenChange(Body, frozen=True):
    """What a token loses. A missing field stays as it is."""

    grants: Grants | None = None
    expires_at: str | None = None


class RotateRequest(Body, frozen=True):
    """How long the old secret is still accepted."""

    overlap_ms: Annotated[int, Meta(ge=0, le=OVERLAP_MS_MAX)] = 0


class DeriveRequest(Body, frozen=True):
    """A short-lived token to derive from the credential of the caller. It ends with it at the latest."""

    grants: Grants
    ttl_ms: Annotated[int, Meta(ge=1_000)] = DERIVED_TTL_MS


class DerivedTokenReply(Struct, frozen=True):
    """A short-lived token, which is not stored anywhere."""

    token: str
    grants: list[str]
    expires_at: str


class TokenInfo(Struct, frozen=True, omit_defaults=True):
    """A token. `used_at` is about the last use; it is missing if there was none."""

    id: str
    name: str
    grants: list[str]
    created_at: str
    created_by: str = ""
    tenant: str = ""
    expires_at: str | None = None
    used_at: str | None = None


class NewTokenReply(Struct, frozen=True, omit_defaults=True):
    """A token with its text, which is shown only here."""

    token: str
    id: str
    name: str
    grants: list[str]
    expires_at: str | None = None


class TokensReply(Struct, frozen=True, omit_defaults=True):
    """Tokens in the order of their ids. `after` starts the next page; it is missing on the last page."""

    tokens: list[TokenInfo]
    after: str | None = None


class IdentityInfo(Struct, frozen=True, omit_defaults=True):
    """Who calls, and what the caller may do. If a server asks for no credentials, callers are not `authenticated` and
    may do everything. `tenant` is missing for an operator, `expires_at` if the credential does not expire."""

    authenticated: bool
    name: str
    grants: list[str]
    tenant: str = ""
    expires_at: str | None = None


class KeySet(Struct, frozen=True):
    """Public keys in the form of RFC 7517."""

    keys: list[dict[str, str]]
