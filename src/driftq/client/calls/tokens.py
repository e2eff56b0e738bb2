"""Calls of access tokens as pure functions: create, list, show, narrow, rotate, revoke, derive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from driftq.client.calls.admin import pages
from driftq.client.calls.filters import time_text
from driftq.client.calls.queue import (
    bodyless_call,
    encode,
    get,
    json_reader,
    no_body,
    post,
    refusal,
    segment,
)
from driftq.client.endpoint import Page, Pages
from driftq.client.transport.sansio import Call
from driftq.wire.tokens import DERIVED_TTL_MS, DerivedTokenReply, IdentityInfo, NewTokenReply, TokenInfo, TokensReply


def create_token(
    name: str, grants: Sequence[str], *, expires_at: datetime | str = "", ttl_ms: int | None = None, tenant: str = ""
) -> Call[NewTokenReply]:
    """Create a token with these grants, like `produce:orders.*`. Its text is in the reply, and nowhere else.
    An operator may create it for a tenant."""
    body: dict[str, Any] = {"name": name, "grants": list(grants)}
    if expires_at:
        body["expires_at"] = time_text(expires_at)
    if ttl_ms is not None:
        body["ttl_ms"] = ttl_ms
    if tenant:
        body["tenant"] = tenant
    return post("/v1/tokens", body, json_reader(NewTokenReply))


def list_tokens() -> Pages[TokenInfo]:
    """All tokens, without their text."""
    return pages("/v1/tokens", TokensReply, lambda reply: Page(reply.tokens, reply.after), {})


def show_token(token_id: str) -> Call[TokenInfo]:
    return get(f"/v1/tokens/{segment(token_id)}", TokenInfo)


def narrow_token(
    token_id: str, *, grants: Sequence[str] | None = None, expires_at: datetime | str | None = None
) -> Call[None]:
    """Leave a token only these grants, or make it expire earlier. It takes effect with the next request."""
    body: dict[str, Any] = {}
    if grants is not None:
        body["grants"] = list(grants)
    if expires_at is not None:
        body["expires_at"] = time_text(expires_at)
    path = f"/v1/tokens/{segment(token_id)}"
    return Call("PATCH", path, no_body, refusal=refusal, body=encode(body), idempotent=True)


def rotate_token(token_id: str, *, overlap_ms: int = 0) -> Call[NewTokenReply]:
    """Give a token a new secret. The old one is accepted for `overlap_ms` longer."""
    path = f"/v1/tokens/{segment(token_id)}/rotate"
    return post(path, {"overlap_ms": overlap_ms}, json_reader(NewTokenReply))


def whoami() -> Call[IdentityInfo]:
    """Who calls, and with which grants: what the server makes of the credential of this client."""
    return get("/v1/identity", IdentityInfo)


def derive_token(grants: Sequence[str], *, ttl_ms: int = DERIVED_TTL_MS) -> Call[DerivedTokenReply]:
    """A narrower token with an end, to hand on: to a browser, or to a tool. It also ends with the token of the caller.
    It is accepted in a header like any token, and for reads as the query parameter `access_token`."""
    return post("/v1/tokens/derive", {"grants": list(grants), "ttl_ms": ttl_ms}, json_reader(DerivedTokenReply))


def revoke_token(token_id: str) -> Call[None]:
    """End a token. Its open streams end within a second."""
    return bodyless_call("DELETE", f"/v1/tokens/{segment(token_id)}")
