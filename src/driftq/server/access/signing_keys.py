"""The keys that sign short-lived tokens: a file in the data folder that only its owner can read.

    rotate_keys (driftq auth rotate-key) ──writes──▶ access.keys ──▶ SigningKeys: looks at the file once a second
                                                                      │ the newest key signs, all of them verify
                                                                      └▶ /.well-known/jwks.json

A key that was replaced still verifies until the last token that it can have signed has expired, unless the rotation
drops it. A broker in memory has a key of its own that ends with it. The file is no part of a backup: short-lived tokens
end when a broker is restored elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import DecodeError, Struct, json

FILE = "access.keys"
SEED_BYTES = 32
KEYS_MAX = 16
TTL_MS_MAX = 7 * 86_400_000  # no short-lived token lasts longer, whatever the settings say


class KeysUnusable(Exception):
    """The file of keys cannot be read or written; the message names it and what to do."""


class StoredKey(Struct, frozen=True):
    """A key in the file. `retired_ms` is 0 for the one that signs."""

    seed: bytes
    created_ms: int
    retired_ms: int = 0


class KeyPair:
    """One key pair and its public id."""

    def __init__(self, seed: bytes) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self.private.public_key()
        raw = self.public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.kid = "dq_" + hashlib.sha256(raw).hexdigest()[:16]
        self.jwk = {
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid,
            "x": urlsafe_b64encode(raw).rstrip(b"=").decode(),
        }  # fmt: skip


class SigningKeys:
    """The keys of one broker. `folder` is its data folder; None keeps the key in memory. Raises `KeysUnusable`."""

    def __init__(self, folder: str | None, now_ms: int) -> None:
        self._path = str(Path(folder) / FILE) if folder is not None else None
        self._signature: tuple[int, ...] | None = None
        self.by_kid: dict[str, KeyPair] = {}
        if self._path is None:
            self._use([StoredKey(os.urandom(SEED_BYTES), now_ms)])
            return
        if not Path(self._path).exists():
            rotate_keys(str(folder), now_ms)
        self.reload()

    @property
    def newest(self) -> KeyPair:
        return next(reversed(self.by_kid.values()))

    @property
    def jwks(self) -> dict[str, Any]:
        return {"keys": [key.jwk for key in self.by_kid.values()]}

    def reload(self) -> bool:
        """Read the file again if it changed. Whether a key is gone since."""
        if self._path is None:
            return False
        signature = _signature(self._path)
        if signature is None or signature == self._signature:
            return False  # a file that is missing for a moment, or removed by hand: the keys in memory stay
        known = set(self.by_kid)
        self._use(_read(self._path))
        self._signature = signature
        return not known <= set(self.by_kid)

    def _use(self, stored: list[StoredKey]) -> None:
        keys = [KeyPair(entry.seed) for entry in stored]
        self.by_kid = {key.kid: key for key in keys}


def rotate_keys(folder: str, now_ms: int, *, drop: bool = False) -> str:
    """Add a new key that signs from now on; returns its id. Older keys verify what they have signed until that has
    expired; with `drop` they are removed. Raises `KeysUnusable`."""
    path = str(Path(folder) / FILE)
    stored = _read(path) if Path(path).exists() and not drop else []
    retired = [StoredKey(entry.seed, entry.created_ms, entry.retired_ms or now_ms) for entry in stored]
    kept = [entry for entry in retired if now_ms - entry.retired_ms <= TTL_MS_MAX][-KEYS_MAX + 1 :]
    new = StoredKey(os.urandom(SEED_BYTES), now_ms)
    _write(path, [*kept, new])
    return KeyPair(new.seed).kid


def _read(path: str) -> list[StoredKey]:
    try:
        stored = json.decode(Path(path).read_bytes(), type=list[StoredKey])
    except OSError as error:
        raise KeysUnusable(f"{path} cannot be read: {error.strerror}") from None
    except DecodeError as error:
        raise KeysUnusable(f"{path} is damaged ({error}). Make new keys with `driftq auth rotate-key --drop`") from None
    if not stored or any(len(entry.seed) != SEED_BYTES for entry in stored):
        raise KeysUnusable(f"{path} holds no usable key. Make new keys with `driftq auth rotate-key --drop`")
    return stored


def _write(path: str, stored: list[StoredKey]) -> None:
    """All or nothing, and never readable by others."""
    temporary = f"{path}.{os.getpid()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.encode(stored))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise KeysUnusable(f"{path} cannot be written: {error.strerror}") from None


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
