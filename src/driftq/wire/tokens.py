"""Bodies of access tokens: create, list, narrow, rotate."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Positive
from driftq.wire.grants import GRANT_LENGTH_MAX, GRANTS_MAX

TOKEN_NAME_MAX = 100
OVERLAP_MS_MAX = 30 * 86_400_000
Grants = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=GRANT_LENGTH_MAX)]], Meta(min_length=1, max_length=GRANTS_MAX)
]
TokenName = Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_MAX)]


class TokenRequest(Body, frozen=True):
    """A token to create. It expires at a time (`expires_at`), after a time (`ttl_ms`), or not at all."""

    name: TokenName
    grants: Grants
    expires_at: str = ""
    ttl_ms: Positive | None = None


class TokenChange(Body, frozen=True):
    """What a token loses. A missing field stays as it is."""

    grants: Grants | None = None
    expires_at: str | None = None


class RotateRequest(Body, frozen=True):
    """How long the old secret is still accepted."""

    overlap_ms: Annotated[int, Meta(ge=0, le=OVERLAP_MS_MAX)] = 0


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
