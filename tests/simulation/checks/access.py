"""Access tokens: a token never gains rights, what was revoked stays revoked, and a secret is accepted for exactly as
long as was said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import access_facts as a
from driftq.core.state.state import State
from driftq.wire.grants import allows, parse_grants
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation

# What a token may be asked for. A grant that is gained shows in one of them.
ATTEMPTS = [(verb, name) for verb in ("produce", "read", "manage", "admin") for name in ("", "a", "a.b", "a.b.c", "b")]


class TokenModel:
    """One token, from its facts."""

    def __init__(self, fact: a.AccessTokenCreated) -> None:
        self.allowed = rights(fact.grants)
        self.expires_ms = fact.expires_ms
        self.secrets = {fact.digest: 0}  # until when each is accepted; 0: as long as the token

    def narrow(self, fact: a.AccessTokenNarrowed) -> None:
        gained = rights(fact.grants) - self.allowed
        demand(not gained, "access", f"token {fact.token_id} gained {sorted(gained)}")
        later = fact.expires_ms != self.expires_ms and not 0 < fact.expires_ms < (self.expires_ms or 1 << 62)
        demand(not later, "access", f"token {fact.token_id} lives longer than it was allowed to")
        self.allowed, self.expires_ms = rights(fact.grants), fact.expires_ms

    def rotate(self, fact: a.AccessTokenRotated) -> None:
        [current] = [digest for digest, until_ms in self.secrets.items() if not until_ms]
        overlap = {current: fact.old_until_ms} if fact.old_until_ms > fact.at_ms else {}
        self.secrets = {**overlap, fact.digest: 0}

    def accepted(self, now_ms: int) -> set[bytes]:
        return {digest for digest, until_ms in self.secrets.items() if not until_ms or until_ms > now_ms}


def rights(grants: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    parsed = parse_grants(grants)
    return frozenset((verb, name) for verb, name in ATTEMPTS if allows(parsed, verb, name))


class AccessCheck:
    """All tokens that were ever made."""

    def __init__(self) -> None:
        self._tokens: dict[str, TokenModel] = {}
        self._revoked: set[str] = set()

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            a.AccessTokenCreated: self._created,
            a.AccessTokenNarrowed: lambda fact, op: self._token(fact).narrow(fact),
            a.AccessTokenRotated: lambda fact, op: self._token(fact).rotate(fact),
            a.AccessTokenRevoked: self._revoke,
            a.AccessTokensUsed: lambda fact, op: None,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _created(self, fact: a.AccessTokenCreated, op: Operation) -> None:
        demand(fact.token_id not in self._tokens, "access", f"token {fact.token_id} was made twice")
        self._tokens[fact.token_id] = TokenModel(fact)
        self._revoked.discard(fact.token_id)

    def _token(self, fact: Any) -> TokenModel:
        if fact.token_id not in self._tokens:
            raise Violation("access", f"there is no token {fact.token_id}: {fact}")
        return self._tokens[fact.token_id]

    def _revoke(self, fact: a.AccessTokenRevoked, op: Operation) -> None:
        self._token(fact)
        del self._tokens[fact.token_id]
        self._revoked.add(fact.token_id)

    def compare(self, state: State, now_ms: int) -> None:
        tokens = state.access_tokens.by_id
        demand(tokens.keys() == self._tokens.keys(), "access", f"there are tokens {[*tokens]}, not {[*self._tokens]}")
        demand(not tokens.keys() & self._revoked, "access", "a revoked token is accepted")
        for token_id, model in self._tokens.items():
            token = tokens[token_id]
            demand(rights(token.grants) == model.allowed, "access", f"{token_id} may {token.grants}")
            demand(token.expires_ms == model.expires_ms, "access", f"{token_id} expires at {token.expires_ms}")
            accepted = {digest for digest, _ in token.secrets(now_ms)}
            demand(accepted == model.accepted(now_ms), "access", f"{token_id} is accepted with {len(accepted)} secrets")
