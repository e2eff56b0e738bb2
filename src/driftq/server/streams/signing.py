"""Signs webhooks with Ed25519 and makes the tokens of callbacks, both from one secret that the journal keeps.

A token says which wake it was made for, so that a late one is told that it is late. Knows no subscription.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SEED_BYTES = 32


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """One key pair and the key of tokens."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"webhook signing" + seed).digest())
        self._token_key = hashlib.sha256(b"callback tokens" + seed).digest()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.kid = "ds_" + hashlib.sha256(public).hexdigest()[:16]
        self.jwks = {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": _base64url(public)}
            ]
        }

    def signature(self, body: bytes, at_s: int) -> str:
        """The value of `Webhook-Signature`."""
        signed = self._private.sign(b"%d.%b" % (at_s, body))
        return f"t={at_s},kid={self.kid},ed25519={_base64url(signed)}"

    def token(self, subscription: str, generation: int) -> str:
        proof = hmac.new(self._token_key, f"{generation}:{subscription}".encode(), hashlib.sha256).digest()
        return f"{generation}.{_base64url(proof)}"

    def generation_of(self, token: str, subscription: str) -> int | None:
        """The generation a token of ours was made for; None for any other."""
        number = token.partition(".")[0]
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        if not hmac.compare_digest(token.encode(), self.token(subscription, int(number)).encode()):
            return None
        return int(number)
