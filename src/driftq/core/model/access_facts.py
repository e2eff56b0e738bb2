"""Facts of access: tokens (tags 110 to 114, 118).

An access token is stored as a digest: the journal can verify it and does not hold it. Facts evolve as described in
`core.model.facts`.
"""

from __future__ import annotations

from driftq.core.model.facts import Fact


class AccessTokenCreated(Fact, tag=110, frozen=True):
    """An access token was created, with its grants. `expires_ms` is 0 if it does not expire."""

    token_id: str
    name: str
    tenant: str
    grants: tuple[str, ...]
    expires_ms: int
    digest: bytes
    created_by: str
    at_ms: int


class AccessTokenNarrowed(Fact, tag=111, frozen=True):
    """An access token has fewer grants or expires earlier."""

    token_id: str
    grants: tuple[str, ...]
    expires_ms: int
    at_ms: int


class AccessTokenRotated(Fact, tag=112, frozen=True):
    """An access token has a new secret. The old one is accepted until `old_until_ms`."""

    token_id: str
    digest: bytes
    old_until_ms: int
    at_ms: int


class AccessTokenRevoked(Fact, tag=113, frozen=True):
    """An access token was revoked, and is forgotten."""

    token_id: str
    at_ms: int


class AccessTokensUsed(Fact, tag=114, frozen=True):
    """Access tokens that were used lately, as of a time."""

    token_ids: tuple[str, ...]
    at_ms: int


class AccessTokenState(Fact, tag=118, frozen=True):
    """State of an access token, in a snapshot."""

    created: AccessTokenCreated
    grants: tuple[str, ...]
    expires_ms: int
    digest: bytes
    old_digest: bytes
    old_until_ms: int
    used_ms: int
