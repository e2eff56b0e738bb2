"""Short-lived tokens: a holder of rights makes a narrower credential with an end, signed and not stored.

    POST /v1/tokens/derive ──▶ issue: narrower than the caller, ends before it ──▶ JWT (EdDSA)
    request with it        ──▶ read: signature, expiry ──▶ DerivedClaims ──▶ Authenticator: is its parent still valid?

It names the access token that it comes from and, by a part of its digest, the secret. So it ends when that token is
revoked or expires, and when the secret is replaced. Its grants are checked again with those that the parent has now.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Final

import jwt
from msgspec import Struct, ValidationError, convert

from driftq.server.access.identity import Identity, Verdict, denied
from driftq.server.http import BadRequest
from driftq.wire.grants import Grant, any_name

if TYPE_CHECKING:
    from driftq.server.access.signing_keys import SigningKeys

ALGORITHM: Final = "EdDSA"
ISSUER: Final = "driftq"
TEXT_BYTES_MAX = 4_096  # it has to fit into a URL
PIN_BYTES = 8


class DerivedClaims(Struct, frozen=True):
    """What a short-lived token says. Times are in seconds, as JWTs have them."""

    iss: str
    sub: str  # the name of its holder
    exp: int
    iat: int
    jti: str
    grants: list[str]
    proof: str = ""  # how the first holder proved who it is
    token: str = ""  # the id of the access token that it comes from, and ...
    pin: str = ""  # ... of the secret, a part of the digest
    tenant: str = ""


class NewDerived(Struct, frozen=True):
    """A short-lived token that was just made."""

    text: str
    expires_ms: int


def pin_of(digest: bytes) -> str:
    return digest[:PIN_BYTES].hex()


def issue(keys: SigningKeys, holder: Identity, grants: tuple[Grant, ...], ttl_ms: int, now_ms: int) -> NewDerived:
    """A token with these grants. Raises `AccessRefused` if the holder lacks one."""
    for grant in grants:
        if holder.verdict(grant.verb, any_name(grant.pattern)) is not Verdict.ALLOWED:
            raise denied(grant.verb, any_name(grant.pattern))
    now_s = now_ms // 1_000
    exp = now_s + max(1, math.ceil(ttl_ms / 1_000))
    if holder.ends_ms:
        exp = min(exp, holder.ends_ms // 1_000)
    claims = DerivedClaims(
        ISSUER, holder.name, exp, now_s, secrets.token_hex(8), list(map(str, grants)), holder.proof.value,
        holder.token_id, holder.pin, holder.tenant,
    )  # fmt: skip
    key = keys.newest
    payload = {name: value for name, value in _fields(claims).items() if value}
    text = jwt.encode(payload, key.private, ALGORITHM, {"kid": key.kid})
    if len(text) > TEXT_BYTES_MAX:
        raise BadRequest(
            f"a short-lived token has at most {TEXT_BYTES_MAX} characters: ask for fewer or shorter grants"
        )
    return NewDerived(text, exp * 1_000)


def _fields(claims: DerivedClaims) -> dict[str, object]:
    return {name: getattr(claims, name) for name in claims.__struct_fields__}


def is_ours(keys: SigningKeys, text: str) -> bool:
    """Whether a token names one of these keys; whether that has signed it is not looked at."""
    try:
        return jwt.get_unverified_header(text).get("kid", "") in keys.by_kid
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return False


def read(keys: SigningKeys, text: str) -> DerivedClaims | None:
    """The claims of a token that one of these keys has signed; None for every other text. The expiry is not looked at:
    it is in the broker's time."""
    try:
        key = keys.by_kid.get(jwt.get_unverified_header(text).get("kid", ""))
        if key is None:
            return None
        claims = jwt.decode(
            text, key.public, algorithms=[ALGORITHM], issuer=ISSUER,
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )  # fmt: skip
        return convert(claims, DerivedClaims)
    except (jwt.PyJWTError, ValidationError, ValueError, TypeError, RecursionError):
        return None
