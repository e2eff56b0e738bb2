"""Webhooks: signatures and tokens that can be checked, and the URLs that are accepted."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.outbound.client import OutboundClient
from driftq.server.settings import Settings
from driftq.server.streams.webhooks import Signer, check_url


def test_a_signature_can_be_checked_with_the_published_key():
    signer = Signer(b"secret")
    head, kid, signature = signer.signature(b"body", 1_700_000_000).split(",")
    (key,) = signer.jwks["keys"]
    assert (head, kid) == ("t=1700000000", f"kid={key['kid']}")
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    public.verify(base64.urlsafe_b64decode(signature.removeprefix("ed25519=") + "=="), b"1700000000.body")
    assert Signer(b"secret").kid == signer.kid
    assert Signer(b"other").kid != signer.kid


def test_a_token_is_valid_for_its_subscription_and_carries_its_generation():
    signer = Signer(b"secret")
    token = signer.token("s", 7)
    assert signer.generation_of(token, "s") == 7
    assert signer.generation_of(token, "t") is None
    for forged in ("", "7", "7.", "8." + token.partition(".")[2], token[:-1], "x" + token, token + "é"):
        assert signer.generation_of(forged, "s") is None
    assert Signer(b"other").generation_of(token, "s") is None


@pytest.mark.parametrize(
    "url", ["https://example.org/hook", "http://localhost:9/x", "http://127.0.0.1:9", "https://1.1.1.1/"]
)
def test_a_webhook_may_be_at_an_https_url_or_on_this_machine(url):
    check_url(url, OutboundClient(Settings()))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/", "http://10.0.0.1/", "https://10.0.0.1/", "https://169.254.169.254/latest", "https://[::1]/",
        "https://localhost/", "https://a.localhost/", "ftp://example.org/", "nonsense", "https://", "https://[fe80::1]/",
        "https://u:p@example.org/", "https://example.org:99999/", "http://127.0.0.1.example.org/",
        "http://127.0.0.1:8080/v1/topics", "http://localhost:8080/", "https://example.org/caf\u00e9",
        "https://caf\u00e9.example/", "https://example.org/a b", "https://example.org/\r\nX: y", "http://0.0.0.0:9/",
    ],
)  # fmt: skip
def test_a_webhook_may_not_be_at_a_private_or_malformed_url(url):
    with pytest.raises(AddressRefused):
        check_url(url, OutboundClient(Settings()))
