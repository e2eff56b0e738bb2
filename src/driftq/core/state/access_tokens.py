"""Access tokens: what each may do, and the digest of its secret. The decisions are in `core.rules.access_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model.access_facts import (
    AccessTokenCreated,
    AccessTokenNarrowed,
    AccessTokenRevoked,
    AccessTokenRotated,
    AccessTokenState,
    AccessTokensUsed,
)

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact


class AccessToken:
    """One access token."""

    __slots__ = ("created", "digest", "expires_ms", "grants", "old_digest", "old_until_ms", "used_ms")

    def __init__(self, created: AccessTokenCreated) -> None:
        self.created = created
        self.grants = created.grants
        self.expires_ms = created.expires_ms  # 0: never
        self.digest = created.digest  # of its secret
        self.old_digest = b""  # of the secret before that, and ...
        self.old_until_ms = 0  # ... until when it is accepted
        self.used_ms = 0  # about the last use; 0: never

    @property
    def token_id(self) -> str:
        return self.created.token_id

    @property
    def tenant(self) -> str:
        return self.created.tenant

    def is_expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    def secrets(self, now_ms: int) -> Iterator[tuple[bytes, int]]:
        """The digests that are accepted now, each with the time at which it ends (0: never): the present secret, and
        for a while after a rotation the one before."""
        yield self.digest, self.expires_ms
        if self.old_until_ms > now_ms:
            yield self.old_digest, min(self.old_until_ms, self.expires_ms or self.old_until_ms)

    def snapshot(self) -> AccessTokenState:
        return AccessTokenState(
            self.created, self.grants, self.expires_ms, self.digest, self.old_digest, self.old_until_ms, self.used_ms
        )


class AccessTokenTable:
    """Every access token that was not revoked."""

    def __init__(self) -> None:
        self.by_id: dict[str, AccessToken] = {}
        self.folds: dict[type, Callable[[Any], None]] = {
            AccessTokenCreated: self._created,
            AccessTokenNarrowed: self._narrowed,
            AccessTokenRotated: self._rotated,
            AccessTokenRevoked: self._revoked,
            AccessTokensUsed: self._used,
            AccessTokenState: self._restored,
        }

    def _created(self, fact: AccessTokenCreated) -> None:
        self.by_id[fact.token_id] = AccessToken(fact)

    def _narrowed(self, fact: AccessTokenNarrowed) -> None:
        token = self.by_id[fact.token_id]
        token.grants, token.expires_ms = fact.grants, fact.expires_ms

    def _rotated(self, fact: AccessTokenRotated) -> None:
        token = self.by_id[fact.token_id]
        overlaps = fact.old_until_ms > fact.at_ms
        token.old_digest, token.old_until_ms = (token.digest, fact.old_until_ms) if overlaps else (b"", 0)
        token.digest = fact.digest

    def _revoked(self, fact: AccessTokenRevoked) -> None:
        del self.by_id[fact.token_id]

    def _used(self, fact: AccessTokensUsed) -> None:
        for token_id in fact.token_ids:
            self.by_id[token_id].used_ms = fact.at_ms

    # --- snapshots ---

    def snapshot(self) -> Iterator[Fact]:
        for token in self.by_id.values():
            yield token.snapshot()

    def _restored(self, fact: AccessTokenState) -> None:
        token = self.by_id[fact.created.token_id] = AccessToken(fact.created)
        token.grants, token.expires_ms, token.digest = fact.grants, fact.expires_ms, fact.digest
        token.old_digest, token.old_until_ms, token.used_ms = fact.old_digest, fact.old_until_ms, fact.used_ms
