"""Client certificates as identities: their subject or an alternative name, mapped by `auth.certificates`.

    certificate of a connection ──▶ the first rule that fits one of its names ──▶ Identity, valid until it expires
                                        no rule: the certificate says nothing, and a token is needed

The TLS of the listener has verified the certificate. A request that carries a token has the identity of the token: the
certificate does not add to it, and does not stand in for a token that is wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import json

from driftq.server.access.identity import Identity, Proof, Unverified
from driftq.wire.grants import matches, parse_grants

if TYPE_CHECKING:
    from driftq.server.access.auth_settings import CertificateRule
    from driftq.server.http.tls import PeerCertificate

KNOWN_MAX = 10_000  # certificates that are remembered
EXPIRED: Final = "the certificate of this connection has expired; connect again with a new one"
NO_TENANT: Final = "the certificate of this connection belongs to a tenant that this broker does not have"
_COMMA = re.compile(r"(?<!\\),")  # between the parts of a subject; one inside of a value is escaped


def fits(pattern: str, name: str) -> bool:
    """Whether a name of a certificate fits a rule. `*` stands for any characters, and in a subject for those of one
    part: `CN=worker-*,O=Acme` needs exactly these two parts."""
    if not _is_subject(pattern):
        return not _is_subject(name) and matches(pattern, name)
    patterns, parts = _COMMA.split(pattern), _COMMA.split(name)
    return (
        _is_subject(name)
        and len(patterns) == len(parts)
        and all(matches(one, other) for one, other in zip(patterns, parts, strict=True))
    )


def _is_subject(name: str) -> bool:
    """`CN=worker-1` is the begin of a subject, `URI:spiffe://acme/worker` an alternative name."""
    kind = re.match(r"[^=:]*", name)
    return kind is not None and name[kind.end() : kind.end() + 1] == "="


class CertificateIdentities:
    """The identities of certificates. `tenants` are those that exist now."""

    def __init__(self, rules: Iterable[CertificateRule], tenants: Callable[[], Container[str]]) -> None:
        self._rules = {_pin(rule): rule for rule in rules}
        self._tenants = tenants
        self._known: dict[PeerCertificate, Identity] = {}

    def identity(self, certificate: PeerCertificate, now_s: float, now_ms: int) -> Identity | None:
        """Who shows a certificate, by the machine's clock and by the broker's; None if no rule fits. Raises
        `Unverified`."""
        identity = self._known.get(certificate)
        if identity is None or identity.until_s <= now_s:
            identity = self._new(certificate, now_s, now_ms)
            if identity is not None:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[certificate] = identity
        return identity

    def vouches(self, pin: str, tenant: str) -> bool:
        """Whether the rule of an identity and its tenant still exist."""
        return pin in self._rules and (not tenant or tenant in self._tenants())

    def _new(self, certificate: PeerCertificate, now_s: float, now_ms: int) -> Identity | None:
        names = (certificate.subject, *certificate.names)
        for pin, rule in self._rules.items():
            name = next((name for name in names if fits(rule.name, name)), None)
            if name is None:
                continue
            if certificate.not_after_s <= now_s:
                raise Unverified(EXPIRED)
            if rule.tenant and rule.tenant not in self._tenants():
                raise Unverified(NO_TENANT)
            return Identity(
                name, parse_grants(rule.grants), tenant=rule.tenant, until_s=certificate.not_after_s,
                proof=Proof.CERTIFICATE, pin=pin, ends_ms=now_ms + int((certificate.not_after_s - now_s) * 1_000),
            )  # fmt: skip
        return None


def _pin(rule: CertificateRule) -> str:
    """Identifies a rule: what was derived under it ends when it is changed."""
    return hashlib.sha256(json.encode(rule)).hexdigest()[:16]
