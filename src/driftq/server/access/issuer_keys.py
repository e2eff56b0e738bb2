"""The public keys of a foreign issuer (JWKS): from a file or a URL, kept in memory, fetched again now and then.

    start ──▶ fetch ──▶ keys in use ◀── the answers of later fetches; a fetch that fails changes nothing
                ▲
                ├── every `refresh_ms`; a file, when it changes
                └── a token with an unknown key id, at most once in `unknown_key_ms`

No request fetches: it looks the key up, and waits for a fetch that is under way if it needs one. Keys that are known
stay in use while the issuer is away. An answer is bounded in size and in the number of keys, and the outbound client
decides which addresses may be called. Only public keys with an allowed algorithm are taken.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from msgspec import DecodeError, json

from driftq.server.logs import RateLimited
from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.outbound.client import RESPONSE_BYTES_MAX, OutboundClient, OutboundFailed, target_of
from driftq.settings.loader import SettingsError

if TYPE_CHECKING:
    from driftq.server.access.auth_settings import JwtSettings

KEYS_MAX = 100
RSA_BITS_MIN = 2_048
FILE_INTERVAL_S = 1.0
AGENT = "driftq"
PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_rate_limited = RateLimited(logging.getLogger("driftq.access"))


class UnusableKeys(Exception):
    """A document holds no usable key; the message gives the reason."""


class IssuerKey(NamedTuple):
    """A public key, and what it may verify."""

    kid: str
    pin: str  # identifies the key itself: issuers use a kid again
    algorithms: frozenset[str]
    public: PublicKey


def parse_keys(document: bytes, allowed: tuple[str, ...]) -> tuple[IssuerKey, ...]:
    """The keys of a JWKS that verify with an allowed algorithm; others are left out, as the standard asks. Raises
    `UnusableKeys` if none is left."""
    try:
        entries = json.decode(document)["keys"]
    except (DecodeError, TypeError, KeyError, RecursionError):
        raise UnusableKeys("it is no JWKS document: JSON with a list of `keys`") from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise UnusableKeys(f"it has no list of at most {KEYS_MAX} `keys`")
    keys = tuple(key for entry in entries if (key := _key(entry, frozenset(allowed))) is not None)
    if not keys:
        raise UnusableKeys(f"it has no public key for {', '.join(allowed)}")
    return keys


def _key(entry: Any, allowed: frozenset[str]) -> IssuerKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    try:
        public, possible = _public_key(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if public is None:
        return None
    algorithms = possible & allowed & frozenset([entry["alg"]] if "alg" in entry else possible)
    kid = entry.get("kid", "")
    if not algorithms or not isinstance(kid, str):
        return None
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return IssuerKey(kid, hashlib.sha256(encoded).hexdigest()[:16], algorithms, public)


def _public_key(entry: dict[str, Any]) -> tuple[PublicKey | None, frozenset[str]]:
    """The key and the algorithms of its type. A private key in a public place is none to trust."""
    if "d" in entry:
        return None, frozenset()
    match entry.get("kty"):
        case "RSA":
            rsa = RSAAlgorithm.from_jwk(entry)
            if isinstance(rsa, RSAPublicKey) and rsa.key_size >= RSA_BITS_MIN:
                return rsa, frozenset(_OF_RSA)
        case "EC":
            curve = ECAlgorithm.from_jwk(entry)
            if isinstance(curve, EllipticCurvePublicKey) and curve.curve.name in _CURVES:
                return curve, frozenset([_CURVES[curve.curve.name]])
        case "OKP":
            edwards = OKPAlgorithm.from_jwk(entry)
            if isinstance(edwards, Ed25519PublicKey):
                return edwards, frozenset(["EdDSA"])
    return None, frozenset()


class IssuerKeys:
    """The keys that are in use. Raises `SettingsError` for a URL that may not be called and a file without keys: a file
    that cannot be read at a start is a mistake, an issuer that is away is not."""

    def __init__(self, settings: JwtSettings, outbound: OutboundClient) -> None:
        self._settings = settings
        self._keys: tuple[IssuerKey, ...] = ()
        self._source: _Url | _File
        try:
            if "://" in settings.jwks:
                self._source = _Url(settings, outbound)
            else:
                self._source = file = _File(settings.jwks)
                self._keys = parse_keys(file.read_now(), settings.algorithms)
        except (AddressRefused, UnusableKeys) as error:
            raise SettingsError(f"jwt.jwks: {error}") from None
        except OSError as error:
            raise SettingsError(f"jwt.jwks: {settings.jwks} cannot be read: {error.strerror}") from None
        self._fetching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._fetched_s = float("-inf")  # the begin of the last fetch, in the loop's time
        self._removed: Callable[[], None] = lambda: None
        self.fetches = 0

    @property
    def is_empty(self) -> bool:
        """No fetch has worked yet."""
        return not self._keys

    def has(self, pin: str) -> bool:
        return any(key.pin == pin for key in self._keys)

    def find(self, kid: str | None, algorithm: str) -> IssuerKey | None:
        """The key of a token. Without an id it is the only one for its algorithm."""
        fitting = [key for key in self._keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return fitting[0] if fitting and (kid is not None or len(fitting) == 1) else None

    def start(self, on_removed: Callable[[], None]) -> None:
        """Fetch the keys now and from time to time, until `close`. `on_removed` is called when a key is gone."""
        self._removed = on_removed
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        for task in (self._following, self._fetching):
            if task is not None:
                task.cancel()

    def fetch_for_unknown(self) -> asyncio.Task[None] | None:
        """The fetch that may bring an unknown key; None if there was one a short time ago."""
        if self._fetching is not None:
            return self._fetching
        now_s = asyncio.get_running_loop().time()
        return self._fetch() if now_s - self._fetched_s >= self._settings.unknown_key_ms / 1_000 else None

    def _fetch(self) -> asyncio.Task[None]:
        if self._fetching is None:
            loop = asyncio.get_running_loop()
            self._fetched_s = loop.time()
            self._fetching = loop.create_task(self._fetch_once())
        return self._fetching

    async def _fetch_once(self) -> None:
        self.fetches += 1
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1_000):
                document = await self._source.read()
            self._use(parse_keys(document, self._settings.algorithms))
        except (AddressRefused, OutboundFailed, OSError, UnusableKeys) as error:
            # `TimeoutError` is an `OSError`.
            reason = str(error) or "no answer in time (jwt.timeout_ms)"
            kept = "no token of the issuer is accepted yet" if self.is_empty else "those from before stay in use"
            _rate_limited.warn("issuer", "the keys of the issuer cannot be read (jwt.jwks): %s; %s", reason, kept)
        finally:
            self._fetching = None

    def _use(self, keys: tuple[IssuerKey, ...]) -> None:
        before = {key.pin for key in self._keys}
        self._keys = keys
        if not before <= {key.pin for key in keys}:
            self._removed()

    async def _follow(self) -> None:
        while True:
            await asyncio.wait({self._fetch()})
            await self._source.wait(self.is_empty)


class _Url:
    """Keys at a URL."""

    def __init__(self, settings: JwtSettings, outbound: OutboundClient) -> None:
        self._target = target_of(settings.jwks)
        outbound.check(self._target)
        self._outbound = outbound
        self._settings = settings

    async def read(self) -> bytes:
        response = await self._outbound.get(self._target, AGENT)
        if response.status != 200:
            raise OutboundFailed(f"the answer has the status {response.status}")
        return response.body

    async def wait(self, is_empty: bool) -> None:
        settings = self._settings
        wait_ms = min(settings.refresh_ms, settings.unknown_key_ms) if is_empty else settings.refresh_ms
        await asyncio.sleep(wait_ms / 1_000)


class _File:
    """Keys in a file, which is looked at once a second."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._signature = self._status()

    async def read(self) -> bytes:
        return await asyncio.to_thread(self.read_now)

    async def wait(self, is_empty: bool) -> None:
        while True:
            await asyncio.sleep(FILE_INTERVAL_S)
            signature = await asyncio.to_thread(self._status)
            if signature != self._signature:
                self._signature = signature
                return

    def read_now(self) -> bytes:
        with Path(self._path).open("rb") as file:
            document = file.read(RESPONSE_BYTES_MAX + 1)
        if len(document) > RESPONSE_BYTES_MAX:
            raise UnusableKeys(f"{self._path} is larger than {RESPONSE_BYTES_MAX} bytes")
        return document

    def _status(self) -> tuple[int, ...] | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116  # follows links, as containers use them
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
