"""Tokens of a foreign issuer (OIDC): verified with its public keys, their claims mapped to a tenant and grants.

    JWT ──▶ header: a key of the issuer with this id and algorithm? ──no, and the keys may be old──▶ KeysPending
              │yes                                                  ──no──▶ Unverified
              ▼
            signature ──▶ exp, nbf, iat ──▶ iss, aud ──▶ tenant ──▶ grants ──▶ Identity, valid until it expires

Until the signature is verified, every refusal is the same text: its sender is a stranger. After that the text says what
is wrong, because the sender holds a genuine token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final

import jwt

from driftq.server.access.identity import Identity, Proof, Unverified
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import Grant, parse_grant

if TYPE_CHECKING:
    from driftq.server.access.auth_settings import JwtSettings
    from driftq.server.access.issuer_keys import IssuerKey, IssuerKeys

NAME_LENGTH_MAX = 256
TIME_MAX_S = 253_402_300_799  # the end of the year 9999
FOREIGN_INVALID: Final = (
    "this token is not valid: it is damaged, or the issuer that this broker trusts has not signed it"
)
OTHER_SERVICE: Final = (
    "this token is for another service: its iss or aud is not one of jwt.issuer and jwt.audience of this broker"
)
NOT_YET: Final = "this token is not valid yet (nbf, iat): compare the clocks of the issuer and the broker"
NO_TENANT: Final = "this token belongs to no tenant of this broker (jwt.tenant_claim)"


class KeysPending(Exception):
    """The key of a token is unknown, and a fetch may bring it."""

    def __init__(self, fetch: asyncio.Task[None] | None, wait_s: float) -> None:
        super().__init__("the keys of the issuer are being fetched")
        self._fetch = fetch
        self._wait_s = wait_s

    async def wait(self) -> None:
        """Until the fetch ends, and not longer than it may take."""
        if self._fetch is not None:
            await asyncio.wait({self._fetch}, timeout=self._wait_s)


class ForeignTokens:
    """Verifies tokens of one issuer. `tenants` are those that exist now."""

    def __init__(self, settings: JwtSettings, keys: IssuerKeys, tenants: Callable[[], Container[str]]) -> None:
        self._settings = settings
        self.keys = keys
        self._tenants = tenants
        self._roles = {role: tuple(map(parse_grant, grants)) for role, grants in settings.roles.items()}

    def identity(self, text: str, now_s: float, now_ms: int) -> Identity:
        """Who holds a token, by the machine's clock; `now_ms` is the same moment in the broker's time. Raises
        `Unverified` or `KeysPending`."""
        key, algorithm = self._key(text)
        claims = self._claims(text, key, algorithm)
        ends_s = min(int(claims["exp"]), TIME_MAX_S) + self._settings.leeway_ms / 1_000
        name = _claim(claims, self._settings.name_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise Unverified(
                f"this token has no name: the claim {self._settings.name_claim} (jwt.name_claim) is no text"
            )
        return Identity(
            name[:NAME_LENGTH_MAX], self._grants(claims), tenant=self._tenant(claims), until_s=ends_s, proof=Proof.JWT,
            pin=key.pin, ends_ms=now_ms + int((ends_s - now_s) * 1_000),
        )  # fmt: skip

    def vouches(self, pin: str, tenant: str) -> bool:
        """Whether what was derived from a token is valid as far as its key and its tenant go. Raises `KeysPending`."""
        if self.keys.is_empty:
            raise KeysPending(self.keys.fetch_for_unknown(), self._settings.timeout_ms / 1_000)
        return self.keys.has(pin) and (not tenant or tenant in self._tenants())

    def _key(self, text: str) -> tuple[IssuerKey, str]:
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unverified(FOREIGN_INVALID) from None
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            raise Unverified(FOREIGN_INVALID)
        key = self.keys.find(kid, algorithm)
        if key is None:
            fetch = self.keys.fetch_for_unknown()
            if fetch is not None or self.keys.is_empty:
                raise KeysPending(fetch, self._settings.timeout_ms / 1_000)
            raise Unverified(FOREIGN_INVALID)
        return key, algorithm

    def _claims(self, text: str, key: IssuerKey, algorithm: str) -> dict[str, Any]:
        settings = self._settings
        try:
            return jwt.decode(
                text, key.public, algorithms=[algorithm], issuer=settings.issuer, audience=settings.audience,
                leeway=settings.leeway_ms / 1_000, options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError:
            raise Unverified(_expired(text)) from None
        except jwt.ImmatureSignatureError:
            raise Unverified(NOT_YET) from None
        except (jwt.InvalidIssuerError, jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
            raise Unverified(OTHER_SERVICE) from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Unverified(FOREIGN_INVALID) from None

    def _tenant(self, claims: dict[str, Any]) -> str:
        settings = self._settings
        tenant = settings.tenant
        if settings.tenant_claim:
            claimed = _claim(claims, settings.tenant_claim)
            tenant = tenant if claimed is None else claimed
            if not isinstance(tenant, str) or not tenant:
                raise Unverified(NO_TENANT)
        if tenant and tenant not in self._tenants():
            raise Unverified(NO_TENANT)
        return tenant

    def _grants(self, claims: dict[str, Any]) -> tuple[Grant, ...]:
        settings = self._settings
        grants: dict[Grant, None] = {}
        for text in _texts(_claim(claims, settings.grants_claim)) if settings.grants_claim else ():
            if text.startswith(settings.grants_prefix):
                try:
                    grants[parse_grant(text[len(settings.grants_prefix) :])] = None
                except ValueError:
                    continue  # such as `openid`
        for role in _texts(_claim(claims, settings.roles_claim)) if self._roles else ():
            grants.update(dict.fromkeys(self._roles.get(role, ())))
        return tuple(grants)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str]:
    """The parts of a claim: a list of texts, or a text with blanks between them."""
    if isinstance(value, str):
        return value.split()
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []


def _expired(text: str) -> str:
    """Its signature is right, so it may be read again without the checks."""
    claims = jwt.decode(text, options={"verify_signature": False})
    at_ms = max(0, int(claims["exp"])) * 1_000
    return f"this token expired at {to_rfc3339(at_ms)}; get another one from its issuer"
