"""An object store that fails as real ones do, from a seed: calls time out before or after they took effect, answers get
lost, requests are throttled, and a listing lacks what was written last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from driftq.storage.archive.object_store import (
    MemoryObjects,
    ObjectStoreError,
    Reason,
    StoredObject,
    Versioned,
)

LISTING_IS_BEHIND = 3  # how many of the last writes a listing may lack


class FaultyObjects:
    """`MemoryObjects` with faults. `chance` is that of a fault per call; 0 makes it healthy."""

    def __init__(self, inner: MemoryObjects, seed: object, chance: float = 0.0) -> None:
        self.url = inner.url
        self.inner = inner
        self.chance = chance
        self.is_away = False  # every call fails, without effect
        self.is_behind = False  # a listing may lack what was written last, also without other faults
        self.counts: Counter[str] = Counter()
        self._random = Random(f"objects {seed}")
        self._written: list[str] = []  # keys, in order

    def put_new(self, key: str, data: bytes) -> None:
        self._before()
        if self._strikes(0.2):
            # The connection broke in the middle. A store keeps all of an object or none of it.
            self._fail("failed", "partial write")
        self.inner.put_new(key, data)
        self._written.append(key)
        self._after()

    def get(self, key: str) -> bytes:
        self._before()
        return self.inner.get(key)

    def get_range(self, key: str, position: int, size: int) -> bytes:
        self._before()
        return self.inner.get_range(key, position, size)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._before()
        rows = list(self.inner.list(prefix))
        if (self.chance or self.is_behind) and self._random.random() < 0.5:
            self.counts["listing behind"] += 1
            missing = set(self._written[-self._random.randrange(1, LISTING_IS_BEHIND + 1) :])
            rows = [row for row in rows if row.key not in missing]
        return iter(rows)

    def delete(self, key: str) -> None:
        self._before()
        self.inner.delete(key)
        self._after()

    def get_versioned(self, key: str) -> Versioned:
        self._before()
        return self.inner.get_versioned(key)

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        self._before()
        new = self.inner.replace(key, data, version)
        self._after()
        return new

    def behind(self, seed: object) -> FaultyObjects:
        """The same objects for a reader whose listings are behind, and nothing else is wrong."""
        reader = FaultyObjects(self.inner, seed)
        reader.is_behind, reader._written, reader.counts = True, self._written, self.counts
        return reader

    def _strikes(self, share: float) -> bool:
        return self._random.random() < self.chance * share

    def _before(self) -> None:
        if self.is_away:
            self._fail("unreachable", "away")
        if self._strikes(0.4):
            reason: Reason = self._random.choice(("unreachable", "failed", "throttled"))
            self._fail(reason, {"unreachable": "timeout", "failed": "5xx", "throttled": "throttled"}[reason])

    def _after(self) -> None:
        if self._strikes(0.4):
            self._fail("unreachable", "lost reply")

    def _fail(self, reason: Reason, what: str) -> None:
        self.counts[what] += 1
        raise ObjectStoreError(reason, what)
