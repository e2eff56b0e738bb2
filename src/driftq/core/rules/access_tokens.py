"""Access tokens: create, narrow, rotate, revoke, note their use.

The rights of a token never grow: a caller that needs more gets another token. So the grants that were approved when it
was created are all that it can ever have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.access_facts import (
    AccessTokenCreated,
    AccessTokenNarrowed,
    AccessTokenRevoked,
    AccessTokenRotated,
    AccessTokensUsed,
)
from driftq.core.model.replies import Done, Rejected, Reply
from driftq.core.transitions.lookups import no_such_tenant, no_such_token
from driftq.wire.errors import Code
from driftq.wire.grants import covers, parse_grants

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model import access as a
    from driftq.core.state.access_tokens import AccessToken

TOKENS_MAX = 100_000


def create(ctx: DecisionContext, command: a.CreateAccessToken) -> Reply:
    tokens = ctx.state.access_tokens
    if command.first and tokens.by_id:
        count = len(tokens.by_id)
        return Rejected(
            Code.ALREADY_EXISTS, f"there are access tokens already ({count}): this makes the first one only"
        )
    if command.token_id in tokens.by_id:
        return Rejected(Code.ALREADY_EXISTS, "there is an access token with this id")
    if command.tenant and command.tenant not in ctx.state.tenants.by_name:
        return no_such_tenant(command.tenant)
    refused = _bad_grants(command.grants) or _bad_expiry(ctx, command.expires_ms)
    if refused is not None:
        return refused
    if len(tokens.by_id) >= TOKENS_MAX:
        _forget_expired(ctx)
        if not ctx.facts:
            return Rejected(Code.OVERLOADED, f"there are {TOKENS_MAX} access tokens, the most allowed; revoke some")
    ctx.facts.append(
        AccessTokenCreated(
            command.token_id, command.name, command.tenant, command.grants, command.expires_ms, command.digest,
            command.created_by, ctx.now_ms,
        )
    )  # fmt: skip
    return Done()


def _forget_expired(ctx: DecisionContext) -> None:
    for token in ctx.state.access_tokens.by_id.values():
        if token.is_expired(ctx.now_ms):
            ctx.facts.append(AccessTokenRevoked(token.token_id, ctx.now_ms))


def _bad_grants(grants: tuple[str, ...]) -> Rejected | None:
    try:
        parse_grants(grants)
    except ValueError as error:
        return Rejected(Code.INVALID_ARGUMENT, str(error))
    return None


def _bad_expiry(ctx: DecisionContext, expires_ms: int) -> Rejected | None:
    if expires_ms and expires_ms <= ctx.now_ms:
        return Rejected(Code.INVALID_ARGUMENT, "an access token expires in the future")
    return None


def _find(ctx: DecisionContext, token_id: str) -> AccessToken | Rejected:
    token = ctx.state.access_tokens.by_id.get(token_id)
    return token if token is not None else no_such_token(token_id)


def narrow(ctx: DecisionContext, command: a.NarrowAccessToken) -> Reply:
    token = _find(ctx, command.token_id)
    if isinstance(token, Rejected):
        return token
    grants = command.grants if command.grants is not None else token.grants
    expires_ms = command.expires_ms if command.expires_ms is not None else token.expires_ms
    refused = _bad_grants(grants)
    if refused is not None:
        return refused
    if not covers(parse_grants(token.grants), parse_grants(grants)):
        return Rejected(Code.INVALID_ARGUMENT, _only_narrower(token))
    if expires_ms != token.expires_ms:
        refused = _bad_expiry(ctx, expires_ms)
        if refused is not None:
            return refused
        if not expires_ms or 0 < token.expires_ms < expires_ms:
            return Rejected(Code.INVALID_ARGUMENT, "an access token can expire earlier, not later: create another one")
    if (grants, expires_ms) == (token.grants, token.expires_ms):
        return Done(changed=False)
    ctx.facts.append(AccessTokenNarrowed(token.token_id, grants, expires_ms, ctx.now_ms))
    return Done()


def _only_narrower(token: AccessToken) -> str:
    return f"an access token can only lose rights: create another one. This one has {', '.join(token.grants)}"


def rotate(ctx: DecisionContext, command: a.RotateAccessToken) -> Reply:
    token = _find(ctx, command.token_id)
    if isinstance(token, Rejected):
        return token
    if token.is_expired(ctx.now_ms):
        return Rejected(Code.CONFLICT, f"access token {token.token_id} has expired: create another one")
    old_until_ms = ctx.now_ms + command.overlap_ms
    ctx.facts.append(AccessTokenRotated(token.token_id, command.digest, old_until_ms, ctx.now_ms))
    return Done()


def revoke(ctx: DecisionContext, command: a.RevokeAccessToken) -> Reply:
    token = _find(ctx, command.token_id)
    if isinstance(token, Rejected):
        return token
    ctx.facts.append(AccessTokenRevoked(token.token_id, ctx.now_ms))
    return Done()


def note_use(ctx: DecisionContext, command: a.NoteAccessTokens) -> Reply:
    known = tuple(token_id for token_id in command.token_ids if token_id in ctx.state.access_tokens.by_id)
    if known:
        ctx.facts.append(AccessTokensUsed(known, ctx.now_ms))
    return Done(changed=bool(known))
