"""The object store seam: named, immutable objects in a bucket or a folder, and one small object that is replaced.

    put_new(key, data)            a new object; refused if the key is taken        chunks, segments, packs
    replace(key, data, version)   refused if the object is not that version        the manifest, and nothing else

`CloudObjects` keeps them in S3, Google Cloud Storage or Azure, `FolderObjects` in a local folder, `MemoryObjects` in
memory. Keys are relative to the store and consist of `A-Z a-z 0-9 . _ - /`.

**What a write that failed may have done.** `ObjectStoreError` from a write means that the outcome is unknown: the
object may be there, now or in a moment. Repeating the same `put_new` is safe. If it then reports `ObjectExists`, the
caller reads the object and compares: it may be its own.

**What is consistent.** A read that starts after a write has returned sees it. A listing may be behind: it may lack
objects that are there, and name some that are gone. So nothing may rely on a listing being complete.

Calls block, and may come from several threads at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

Reason = Literal["unreachable", "denied", "no_bucket", "full", "throttled", "failed"]

ADVICE: dict[Reason, str] = {
    "unreachable": "the object store does not answer; check its address and the network",
    "denied": "the object store refused the credentials, or they do not allow this; check them and the policy",
    "no_bucket": "there is no such bucket, container or folder; create it, or correct the address",
    "full": "the object store has no room; free some space, or raise its quota",
    "throttled": "the object store asks for fewer requests",
    "failed": "the object store failed",
}


class ObjectStoreError(Exception):
    """A call failed. For a write: its outcome is unknown."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{ADVICE[reason]} ({detail})")
        self.reason: Reason = reason


class ObjectExists(Exception):
    """The key is taken. It may be taken by an earlier attempt of the same write."""


class ObjectMissing(Exception):
    """There is no object of this key."""


class VersionChanged(Exception):
    """The object is not the version that the caller knows. Nothing was written."""


class StoredObject(NamedTuple):
    """One row of a listing."""

    key: str
    size_bytes: int


class Versioned(NamedTuple):
    """An object and what `replace` needs to know that it is still this one."""

    data: bytes
    version: str


class ObjectStore(Protocol):
    """Objects by key."""

    url: str  # where they are, without credentials

    def put_new(self, key: str, data: bytes) -> None:
        """Store an object, durably, all of it or nothing. Raises `ObjectExists` or `ObjectStoreError`."""

    def get(self, key: str) -> bytes:
        """Raises `ObjectMissing` or `ObjectStoreError`."""

    def get_range(self, key: str, position: int, size: int) -> bytes:
        """`size` bytes from `position` on; fewer only at the end. Raises `ObjectMissing` or `ObjectStoreError`."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose keys start with `prefix`, which ends in `/`, ascending by key. It may be behind."""

    def delete(self, key: str) -> None:
        """Idempotent. Raises `ObjectStoreError`."""

    def get_versioned(self, key: str) -> Versioned:
        """Raises `ObjectMissing` or `ObjectStoreError`."""

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        """Replace an object of this version, durably; None: there must be none. Returns the new version. Raises
        `VersionChanged` or `ObjectStoreError`."""


class MemoryObjects:
    """Objects in memory, for tests."""

    def __init__(self) -> None:
        self.url = "memory:"
        self._objects: dict[str, Versioned] = {}
        self._writes = 0
        self._lock = threading.Lock()

    def put_new(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key)
            self._write(key, data)

    def get(self, key: str) -> bytes:
        return self.get_versioned(key).data

    def get_range(self, key: str, position: int, size: int) -> bytes:
        return self.get(key)[position : position + size]

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with self._lock:
            rows = [(key, held) for key, held in self._objects.items() if key.startswith(prefix)]
        return (StoredObject(key, len(held.data)) for key, held in sorted(rows))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def get_versioned(self, key: str) -> Versioned:
        with self._lock:
            held = self._objects.get(key)
        if held is None:
            raise ObjectMissing(key)
        return held

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        with self._lock:
            held = self._objects.get(key)
            if (held.version if held is not None else None) != version:
                raise VersionChanged(key)
            return self._write(key, data)

    def _write(self, key: str, data: bytes) -> str:
        self._writes += 1
        version = str(self._writes)
        self._objects[key] = Versioned(bytes(data), version)
        return version
