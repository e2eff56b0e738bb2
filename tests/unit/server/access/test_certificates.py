"""Rules of client certificates: which names they fit, and how long an identity lasts."""

from __future__ import annotations

import pytest

from driftq.server.access.auth_settings import CertificateRule
from driftq.server.access.certificates import CertificateIdentities, fits
from driftq.server.access.identity import Unverified
from driftq.server.http.tls import PeerCertificate
from driftq.server.settings import load
from driftq.settings.loader import SettingsError

NAMED = PeerCertificate("CN=worker-1,O=Acme", "worker-1", ("DNS:w.acme.example", "URI:spiffe://acme/a/w"), 1_000.0)
TLS = ["listen.tls_certificate=a", "listen.tls_key=b", "listen.tls_client_ca=c", "auth.mode=tokens"]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("CN=worker-*,O=Acme", "CN=worker-1,O=Acme", True),
        ("CN=worker-*,O=Acme", "CN=worker-1,OU=x,O=Acme", False),
        ("CN=worker-*,O=Acme", "CN=worker-1,O=Evil,O=Acme", False),
        ("CN=worker-*,O=Acme", "CN=worker-1\\,O=Acme", False),
        ("CN=worker-*", "CN=worker-1\\,O=Acme", True),
        ("CN=a", "CN=A", False),
        ("URI:spiffe://acme/*", "URI:spiffe://acme/a/b", True),
        ("URI:spiffe://acme/*", "CN=URI:spiffe://acme/a", False),
        ("DNS:*=x", "CN=x", False),
        ("*=worker", "CN=worker", True),
    ],
)
def test_a_rule_fits_whole_names(pattern, name, expected):
    assert fits(pattern, name) is expected


def identities(*rules: CertificateRule) -> CertificateIdentities:
    return CertificateIdentities(rules, set)


def test_the_first_rule_that_fits_decides():
    read, observe = CertificateRule("DNS:*.acme.example", ("read:a",)), CertificateRule("CN=*,O=Acme", ("observe",))
    for rules, grant in (((read, observe), "read:a"), ((observe, read), "observe")):
        identity = identities(*rules).identity(NAMED, 0.0, 0)
        assert identity is not None
        assert [str(grant) for grant in identity.grants] == [grant]
    assert identities(CertificateRule("CN=other", ("observe",))).identity(NAMED, 0.0, 0) is None


def test_an_identity_ends_with_its_certificate_also_on_a_connection_that_stays_open():
    known = identities(CertificateRule("CN=*,O=Acme", ("observe",)))
    identity = known.identity(NAMED, 990.0, 5_000)
    assert identity is not None
    assert (identity.until_s, identity.ends_ms) == (1_000.0, 15_000)
    assert known.identity(NAMED, 999.0, 0) is identity
    with pytest.raises(Unverified, match="has expired"):
        known.identity(NAMED, 1_000.0, 0)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ('{name="worker", grants=["observe"]}', "a name like"),
        ('{name="*", grants=["observe"]}', "a name like"),
        ('{name="CN=a", grants=[]}', "grants"),
        ('{name="CN=a", grants=["everything"]}', "is not a grant"),
        ('{name="CN=a"}', "grants"),
        ('{name="CN=a", grants=["observe"], verb="x"}', "verb"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule, text):
    with pytest.raises(SettingsError, match=text):
        load(None, {}, [*TLS, f"auth.certificates=[{rule}]"])


def test_rules_need_callers_that_are_asked_for_a_certificate():
    rule = 'auth.certificates=[{name="CN=a", grants=["observe"]}]'
    assert load(None, {}, [*TLS, rule]).settings.auth.certificates == (CertificateRule("CN=a", ("observe",)),)
    with pytest.raises(SettingsError, match=r"needs auth\.mode"):
        load(None, {}, [rule])
    with pytest.raises(SettingsError, match=r"needs listen\.tls_client_ca"):
        load(None, {}, [TLS[-1], rule])
