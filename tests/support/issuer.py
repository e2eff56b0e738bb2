"""An issuer of tokens for tests: real keys, real signatures, its public keys in a file or on an HTTP server."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.server import Server

ISSUER = "https://login.acme.example/"
AUDIENCE = "driftq"
BOTH = "auth.mode=tokens+jwt"
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def private_key(algorithm: str) -> PrivateKey:
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65_537, 2_048) if algorithm == "RS256" else ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: PrivateKey, kid: str) -> dict[str, Any]:
    public: Any = key.public_key()
    if isinstance(key, ec.EllipticCurvePrivateKey):
        document = ECAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(key, rsa.RSAPrivateKey):
        document = RSAAlgorithm.to_jwk(public, as_dict=True)
    else:
        document = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {**document, "kid": kid, "use": "sig"}


class Issuer:
    """Signs tokens with the newest of its keys, unless another is named."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.keys: dict[str, tuple[PrivateKey, str]] = {}  # by kid, with the algorithm
        self.add_key("first", algorithm)

    def add_key(self, kid: str, algorithm: str = "ES256") -> None:
        self.keys[kid] = private_key(algorithm), algorithm

    def document(self) -> bytes:
        return json.dumps({"keys": [public_jwk(key, kid) for kid, (key, _) in self.keys.items()]}).encode()

    def write(self, path: Path) -> None:
        """Replace the file in one step."""
        path.with_suffix(".new").write_bytes(self.document())
        path.with_suffix(".new").replace(path)

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Those of an ordinary token, changed; what is None is left out."""
        now_s = int(time.time())
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now_s, "exp": now_s + 600}
        return {name: value for name, value in {**usual, **claims}.items() if value is not None}

    def token(self, *grants: str, kid: str = "", **claims: Any) -> str:
        """A token with grants in the claim `permissions`."""
        kid = kid or next(reversed(self.keys))
        key, algorithm = self.keys[kid]
        return jwt.encode(self.claims(**{"permissions": list(grants), **claims}), key, algorithm, {"kid": kid})


def settings(jwks: str | Path, *more: str) -> list[str]:
    """Assignments for a server that accepts the tokens of an `Issuer`."""
    return [
        BOTH, f"jwt.issuer={ISSUER}", f"jwt.audience={AUDIENCE}", f"jwt.jwks={jwks}", "jwt.grants_claim=permissions",
        "jwt.leeway_ms=0", *more,
    ]  # fmt: skip


class IssuerServer:
    """Serves the public keys of an issuer on this machine. `answer` can be replaced to misbehave."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.fetches = 0
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], None] = self.document
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetches += 1
                outer.answer(self)

            def log_message(self, format: str, *values: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys?of=acme"

    def document(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.send(handler, self.issuer.document())

    def send(self, handler: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def __enter__(self) -> IssuerServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def status_of(server: Server, token: str, target: str = "/v1/version") -> int:
    return server.call("GET", target, headers={"Authorization": f"Bearer {token}"}).status
