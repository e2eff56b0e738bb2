"""Access tokens: create, list, show, narrow, rotate, revoke, derive. Only the reply that makes one has its text."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from msgspec import json

from driftq.core.model import access as a
from driftq.core.model.replies import Rejected
from driftq.core.transitions.lookups import no_such_token
from driftq.server.access import derived_tokens
from driftq.server.access.identity import AccessRefused
from driftq.server.access.token_text import NewToken, new_token
from driftq.server.handlers.codec import PAGE_LIMIT_MAX, json_response, no_content, page_limit, read_json, refusal
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.fields import from_rfc3339, to_rfc3339
from driftq.wire.grants import ADMIN, Grant, parse_grants
from driftq.wire.tokens import (
    DerivedTokenReply,
    DeriveRequest,
    IdentityInfo,
    NewTokenReply,
    RotateRequest,
    TokenChange,
    TokenInfo,
    TokenRequest,
    TokensReply,
)

if TYPE_CHECKING:
    from driftq.core.state.access_tokens import AccessToken
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context


class TokensHandlers:
    """Handlers of `/v1/tokens`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def create(self, request: Request) -> Answer:
        body = read_json(request.body, TokenRequest)
        grants = _grants(body.grants)
        if body.expires_at and body.ttl_ms is not None:
            raise BadRequest("expires_at and ttl_ms exclude each other")
        expires_ms = _time(body.expires_at) if body.expires_at else 0
        if body.ttl_ms is not None:
            expires_ms = self._engine.now_ms() + body.ttl_ms
        if not body.name.isprintable():
            raise BadRequest("invalid name: it has a character that cannot be printed")
        token = new_token()
        created_by = request.identity.name if request.identity is not None else ""
        command = a.CreateAccessToken(
            token.token_id, body.name, grants, token.digest, body.tenant, expires_ms, created_by
        )
        details = {"token_name": body.name, "grants": grants, "expires_ms": expires_ms, "for_tenant": body.tenant}
        command = self._context.audited(request, command, token.token_id, "", **details)
        return self._context.ask(command, lambda _: _new(token, body.name, grants, expires_ms, 201))

    def list(self, request: Request) -> Answer:
        """A page of tokens, in the order of their ids."""
        limit, after = page_limit(request, PAGE_LIMIT_MAX), request.query.get("after", "")

        def look(view: StateView) -> Response:
            tokens = view.state.access_tokens.by_id
            page = nsmallest(limit + 1, (token_id for token_id in tokens if token_id > after))
            shown = [_info(tokens[token_id]) for token_id in page[:limit]]
            return json_response(TokensReply(shown, page[limit - 1] if len(page) > limit else None))

        return self._context.query(look)

    def show(self, request: Request, token_id: str) -> Answer:
        def look(view: StateView) -> Response:
            token = view.state.access_tokens.by_id.get(token_id)
            return json_response(_info(token)) if token is not None else refusal(no_such_token(token_id))

        return self._context.query(look)

    def narrow(self, request: Request, token_id: str) -> Answer:
        body = read_json(request.body, TokenChange)
        if body.grants is None and body.expires_at is None:
            raise BadRequest("nothing to change: name the grants that are left, or an earlier expires_at")
        grants = _grants(body.grants) if body.grants is not None else None
        expires_ms = _time(body.expires_at) if body.expires_at is not None else None
        details = {"grants": grants, "expires_ms": expires_ms}
        changed = {name: value for name, value in details.items() if value is not None}
        command = a.NarrowAccessToken(token_id, grants, expires_ms)
        return self._context.ask(self._context.audited(request, command, token_id, "", **changed), no_content)

    def rotate(self, request: Request, token_id: str) -> Answer:
        """A new secret for the same token."""
        body = read_json(request.body or b"{}", RotateRequest)
        token = new_token(token_id)

        def look(view: StateView) -> Response:
            known = view.state.access_tokens.by_id.get(token_id)
            if known is None:
                return refusal(no_such_token(token_id))  # revoked in the meantime
            return _new(token, known.created.name, known.grants, known.expires_ms, 200)

        async def rotate() -> Response:
            command = a.RotateAccessToken(token_id, token.digest, body.overlap_ms)
            command = self._context.audited(request, command, token_id, overlap_ms=body.overlap_ms)
            reply = await self._engine.submit(command)
            return refusal(reply) if isinstance(reply, Rejected) else await self._engine.queries.result(look)

        return rotate()

    def derive(self, request: Request) -> Answer:
        """A narrower token with an end, for the caller to hand on."""
        body = read_json(request.body, DeriveRequest)
        keys, holder = self._context.keys, request.identity
        if keys is None or holder is None:
            raise BadRequest("there is nothing to derive from: this server does not ask for credentials (auth.mode)")
        longest_ms = self._context.settings.auth.derived_ttl_ms_max
        if body.ttl_ms > longest_ms:
            raise BadRequest(f"ttl_ms is at most {longest_ms} (the setting auth.derived_ttl_ms_max)")
        grants = _parsed(body.grants)
        try:
            token = derived_tokens.issue(keys, holder, grants, body.ttl_ms, self._engine.now_ms())
        except AccessRefused as refused:
            if holder.audit is not None:
                holder.audit.denied(request, holder, refused.message, "")
            raise
        reply = DerivedTokenReply(token.text, list(map(str, grants)), to_rfc3339(token.expires_ms))
        return _not_stored(json_response(reply, 201))

    def identity(self, request: Request) -> Response:
        """Who calls, by the credential of the request."""
        caller = request.identity
        if caller is None:
            return _not_stored(json_response(IdentityInfo(False, "", [ADMIN])))
        expires_at = to_rfc3339(caller.ends_ms) if caller.ends_ms else None
        grants = list(map(str, caller.grants))
        return _not_stored(json_response(IdentityInfo(True, caller.name, grants, caller.tenant, expires_at)))

    def public_keys(self, request: Request) -> Response:
        """The keys that verify short-lived tokens."""
        keys = self._context.keys
        document = keys.jwks if keys is not None else {"keys": []}
        response = Response(200, json.encode(document) + b"\n", content_type="application/jwk-set+json")
        response.extra = b"Cache-Control: public, max-age=60\r\n"
        return response

    def revoke(self, request: Request, token_id: str) -> Answer:
        command = self._context.audited(request, a.RevokeAccessToken(token_id), token_id)
        return self._context.ask(command, no_content)


def _grants(texts: list[str]) -> tuple[str, ...]:
    """As they are stored: each once, consume grants with their groups."""
    return tuple(map(str, _parsed(texts)))


def _parsed(texts: list[str]) -> tuple[Grant, ...]:
    try:
        return parse_grants(texts)
    except ValueError as error:
        raise BadRequest(f"invalid grants: {error}") from None


def _time(text: str) -> int:
    try:
        return from_rfc3339(text)
    except ValueError as error:
        raise BadRequest(f"invalid expires_at: {error}") from None


def _info(token: AccessToken) -> TokenInfo:
    created = token.created
    return TokenInfo(
        token.token_id,
        created.name,
        list(token.grants),
        to_rfc3339(created.at_ms),
        created.created_by,
        created.tenant,
        to_rfc3339(token.expires_ms) if token.expires_ms else None,
        to_rfc3339(token.used_ms) if token.used_ms else None,
    )


def _new(token: NewToken, name: str, grants: tuple[str, ...], expires_ms: int, status: int) -> Response:
    expires_at = to_rfc3339(expires_ms) if expires_ms else None
    reply = NewTokenReply(token.text, token.token_id, name, list(grants), expires_at)
    return _not_stored(json_response(reply, status))


def _not_stored(response: Response) -> Response:
    response.extra = b"Cache-Control: no-store\r\n"
    return response
