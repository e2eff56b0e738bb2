"""`[auth]` and `[jwt]`: the settings of how callers prove who they are. `[audit]`: what is recorded of them.

Tokens of a foreign issuer and client certificates are mapped to tenants and grants here: what is not mapped may do
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from driftq.settings.loader import SettingsError, about
from driftq.wire.grants import parse_grant

# Every one of them verifies with a public key: `none` and those with a shared secret are not among them.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
Milliseconds = Annotated[int, Meta(ge=1)]
_DAY_MS = 86_400_000


class CertificateRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What the holders of some client certificates may do."""

    name: str  # a subject like CN=worker-*,O=Acme or an alternative name like URI:spiffe://acme/*
    grants: tuple[str, ...]
    tenant: str = ""


class AuthSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[auth]`: how callers prove who they are."""

    mode: Annotated[
        Literal["none", "tokens", "jwt", "tokens+jwt"],
        about(
            "How callers prove who they are: none (only on loopback), tokens (`driftq auth init` makes the first), "
            "jwt (tokens of the issuer in `[jwt]`), or tokens+jwt."
        ),
    ] = "none"
    derived_ttl_ms_max: Annotated[
        int,
        Meta(ge=1_000, le=7 * 86_400_000),
        about("How long a short-lived token (`driftq tokens derive`) may last; at most 7 days."),
    ] = 86_400_000
    certificates: Annotated[
        tuple[CertificateRule, ...],
        about("What client certificates allow: `name` (a subject or an alternative name), `grants`, and `tenant`."),
    ] = ()

    def check(self, *, asks_for_certificates: bool) -> None:
        """What the types do not express; raises `SettingsError`."""
        if self.certificates and not self.is_on:
            raise SettingsError("auth.certificates needs auth.mode: without it every caller may do everything")
        if self.certificates and not asks_for_certificates:
            raise SettingsError("auth.certificates needs listen.tls_client_ca: no client is asked for a certificate")
        for rule in self.certificates:
            if not {"=", ":"} & set(rule.name) or not rule.grants:
                raise SettingsError(
                    "auth.certificates: each rule has grants, and a name like CN=worker-*,O=Acme or URI:spiffe://acme/*"
                )
            check_grants(f"auth.certificates: {rule.name}", rule.grants)

    @property
    def is_on(self) -> bool:
        return self.mode != "none"

    @property
    def has_tokens(self) -> bool:
        return self.mode in ("tokens", "tokens+jwt")

    @property
    def has_jwt(self) -> bool:
        return self.mode in ("jwt", "tokens+jwt")


class JwtSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[jwt]`: the issuer whose tokens are accepted, and what they allow."""

    issuer: Annotated[str, about("The `iss` of accepted tokens, exactly as the issuer writes it.")] = ""
    audience: Annotated[tuple[str, ...], about("The `aud` of accepted tokens; one of these is enough.")] = ()
    jwks: Annotated[str, about("The issuer's public keys: an https URL (its `jwks_uri`), or a file.")] = ""
    algorithms: Annotated[
        tuple[str, ...], about("Algorithms of accepted signatures; those with a shared secret do not exist here.")
    ] = ("RS256", "ES256", "EdDSA")
    leeway_ms: Annotated[
        int,
        Meta(ge=0, le=600_000),
        about("How far the issuer's clock may differ: a token is accepted so much earlier and longer."),
    ] = 30_000
    refresh_ms: Annotated[Milliseconds, about("How often the keys are fetched again; old ones stay if that fails.")] = (
        300_000
    )
    unknown_key_ms: Annotated[
        Milliseconds, about("At most once in this time, a token with an unknown key has the keys fetched at once.")
    ] = 10_000
    timeout_ms: Annotated[
        Milliseconds, about("Time limit of a fetch, and how long a call with an unknown key waits for it.")
    ] = 2_000
    name_claim: Annotated[str, about("The claim with the holder's name.")] = "sub"
    tenant: Annotated[str, about("The tenant of holders without `jwt.tenant_claim`; empty: they are operators.")] = ""
    tenant_claim: Annotated[
        str, about("The claim with the holder's tenant; who lacks it has `jwt.tenant`, or is refused if that is empty.")
    ] = ""
    grants_claim: Annotated[
        str, about("The claim with grants: a list, or a text with blanks such as `scope`. What is no grant is ignored.")
    ] = ""
    grants_prefix: Annotated[
        str, about("What a grant in `jwt.grants_claim` begins with; it is taken off, and the rest is ignored.")
    ] = ""
    roles_claim: Annotated[str, about("The claim with roles; `realm_access.roles` is a claim inside of another.")] = (
        "roles"
    )
    roles: Annotated[dict[str, tuple[str, ...]], about('The grants of each role: {reader = ["read:*"]}.')] = {}

    def check(self) -> None:
        """What the types do not express; raises `SettingsError`."""
        for name in ("issuer", "audience", "jwks"):
            if not getattr(self, name):
                raise SettingsError(
                    f"auth.mode accepts tokens of an issuer, so jwt.{name} is needed: set jwt.issuer, jwt.audience "
                    "and jwt.jwks"
                )
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                raise SettingsError(f"jwt.algorithms: {algorithm!r} is none of {', '.join(ALGORITHMS)}")
        if not self.algorithms:
            raise SettingsError("jwt.algorithms is empty, so no token could be accepted")
        if not self.grants_claim and not self.roles:
            raise SettingsError(
                "no token of the issuer would have a right: set jwt.grants_claim, or jwt.roles with the grants of "
                "each role"
            )
        for role, grants in self.roles.items():
            check_grants(f"jwt.roles: {role}", grants)


class AuditTrailSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[audit]`: whether changes and refusals are recorded, and how long the records are kept."""

    mode: Annotated[
        Literal["auto", "on", "off"],
        about("Whether changes and refusals are recorded in `_audit`: auto (if `auth.mode` is not none), on or off."),
    ] = "auto"
    retention_ms: Annotated[int, Meta(ge=_DAY_MS), about("How long records of the audit are kept; at least a day.")] = (
        365 * _DAY_MS
    )
    retention_bytes: Annotated[
        int, Meta(ge=1 << 20), about("How many bytes of them are kept; the oldest are dropped first.")
    ] = 1 << 30


def check_grants(name: str, grants: Iterable[str]) -> None:
    for grant in grants:
        try:
            parse_grant(grant)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None
