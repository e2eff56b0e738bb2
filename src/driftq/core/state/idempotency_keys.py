"""Idempotency keys and job ids of produces: where the message of a key is, and until when the key is in use.

An idempotency key is in use until it expires. A job id is in use while its message is unfinished, and for `ttl_ms`
after that. As long as no end was noted (`is_open`), `expires_ms` is only the time of the next check, and whether the
message is unfinished is answered by `Tenure`.
The TTL of a new key is the request's, or that of the setting `idempotency.ttl_ms` (`key_ttl_ms`).

Keys are indexed by the time at which they are checked, in buckets of `BUCKET_MS`. A sweep takes whole buckets, oldest
first, so it costs what it drops and never walks over the rest:

    bucket 7: k1 k2 job-1     now = 7 * BUCKET_MS: k1 and k2 are dropped; job-1 is dropped if it ended a ttl ago,
    bucket 8: k3              else it moves to the bucket of its next check

A key that moved leaves a stale name in its old bucket. `_counts` counts the names that are not stale; a bucket without
any is dropped.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from driftq.core.model.snapshot_facts import KeyState

if TYPE_CHECKING:
    from driftq.core.model.commands import ProduceKey
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.model.ranges import Range

CRC_END = 1 << 32  # digests below it are checksums from older versions, those above are fingerprints
BUCKET_MS = 250
CHECK_MS = 30_000  # between two checks of a job id that is in use, at least
BUCKET_LOOKS_MAX = 5_000  # job ids that are checked again together
SWEPT_AT_ONCE = 2_500
OLD_JOB_TTL_MS = 600_000  # for job ids in old snapshots, which do not store it

_SEPARATOR = "\x1f"
_JOB = "job\x1e"


class ProducedKey(Struct, frozen=True, gc=False):
    """Where the message of a key is. There may be millions of them, so the garbage collector does not track them."""

    log_id: int
    offset: int
    records: int
    digest: int
    expires_ms: int
    ttl_ms: int = 0  # for a job id: how long it stays in use after the job's end; 0 for other keys
    is_open: bool = False  # a job id whose job has not ended, as far as was noted


class Tenure(Protocol):
    """Answers whether the message of a job id is finished."""

    def is_unfinished(self, log_id: int, offset: int) -> bool: ...

    def ended_ms(self, log_id: int) -> int:
        """The last time that something other than settling may have ended jobs of this log."""

    def topic_of(self, log_id: int) -> str: ...


def key_ttl_ms(key: ProduceKey, limits: BrokerLimits) -> int:
    """How long a new idempotency key, or the id of a job that has ended, stays in use."""
    return key.ttl_ms or limits.key_ttl_ms


def produce_scope(once: ProduceKey) -> str:
    return _SEPARATOR.join((once.tenant, once.topic, once.key))


def job_key(job_id: str) -> str:
    """The key of a job id. It cannot be the same as an idempotency key."""
    return _JOB + job_id


def is_job(scope: str) -> bool:
    return scope.split(_SEPARATOR, 2)[-1].startswith(_JOB)


def _routed_scope(scope: str, topic: str) -> str:
    """The scope of a job in the topic that it was routed to."""
    tenant, _, key = scope.split(_SEPARATOR, 2)
    return _SEPARATOR.join((tenant, topic, key))


class _JobOffsets:
    """The job ids of one log, by offset, ascending. A forgotten id leaves a None until half of them are."""

    __slots__ = ("forgotten", "offsets", "scopes")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.scopes: list[str | None] = []
        self.forgotten = 0

    def add(self, offset: int, scope: str) -> None:
        self.offsets.append(offset)
        self.scopes.append(scope)

    def forget(self, offset: int) -> None:
        index = bisect_left(self.offsets, offset)
        self.scopes[index] = None
        self.forgotten += 1
        if self.forgotten > 64 and 2 * self.forgotten > len(self.scopes):
            self.offsets = array("q", compress(self.offsets, self.scopes))
            self.scopes = list(filter(None, self.scopes))
            self.forgotten = 0

    def within(self, first: int, end: int) -> Iterator[str]:
        for index in range(bisect_left(self.offsets, first), bisect_left(self.offsets, end)):
            scope = self.scopes[index]
            if scope is not None:
                yield scope


class ProducedKeyTable:
    """All keys of produces, by scope."""

    __slots__ = ("_buckets", "_counts", "_jobs", "_keys", "_routed", "_tenure", "_times")

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._keys: dict[str, ProducedKey] = {}
        self._buckets: dict[int, list[str]] = {}
        self._counts: dict[int, int] = {}  # how many names of a bucket are not stale
        self._times: list[int] = []  # heap of the buckets
        self._jobs: dict[int, _JobOffsets] = {}  # by log
        self._routed: dict[str, str] = {}  # by scope in the topic that a job was routed to: its own scope

    def __len__(self) -> int:
        return len(self._keys)

    # --- queries ---

    def find(self, scope: str, now_ms: int) -> ProducedKey | None:
        key = self._keys.get(scope)
        return key if key is not None and self._until_ms(key, now_ms) > now_ms else None

    def of(self, key: ProduceKey, now_ms: int) -> ProducedKey | None:
        """The message that was produced under a key."""
        return self.find(produce_scope(key), now_ms)

    def job_of(self, key: ProduceKey, now_ms: int) -> ProducedKey | None:
        return self.find_job(produce_scope(key), now_ms)

    def find_job(self, scope: str, now_ms: int) -> ProducedKey | None:
        """The job of this id, or the one that was routed here under it."""
        key = self.find(scope, now_ms)
        own_scope = self._routed.get(scope) if key is None else None
        return self.find(own_scope, now_ms) if own_scope is not None else key

    def _until_ms(self, key: ProducedKey, now_ms: int) -> int:
        """Until when a key is in use, as far as is known now."""
        if not key.ttl_ms or (key.expires_ms > now_ms and not key.is_open):
            return key.expires_ms
        if self._tenure.is_unfinished(key.log_id, key.offset):
            return now_ms + key.ttl_ms
        return self._tenure.ended_ms(key.log_id) + key.ttl_ms

    def job_at(self, log_id: int, offset: int) -> str:
        """The scope of the job at an offset; "" if its id is forgotten."""
        jobs = self._jobs.get(log_id)
        return next(jobs.within(offset, offset + 1), "") if jobs is not None else ""

    def ttl_ms(self, scope: str) -> int:
        """How long the id of a known job stays in use after the job's end."""
        return self._keys[scope].ttl_ms

    def live(self, now_ms: int) -> int:
        """How many keys there are, without those that are due to be swept."""
        return len(self._keys) - sum(self._counts[bucket] for bucket in self._due(now_ms))

    def next_ms(self) -> int | None:
        """When the next sweep is due."""
        return self._times[0] * BUCKET_MS if self._times else None

    def due_ms(self, now_ms: int) -> int:
        """The time up to which a sweep drops keys: about `SWEPT_AT_ONCE` of them, at least one bucket; 0 if none is
        due."""
        until = count = 0
        for bucket in sorted(self._due(now_ms)):
            count += self._counts[bucket]
            if until and count > SWEPT_AT_ONCE:
                break
            until = bucket
        return until * BUCKET_MS

    def _due(self, now_ms: int) -> set[int]:
        """The buckets that are due. What is below a bucket in the heap is not due if that bucket is not, so this looks
        at about as many as are due, however long keys live. The heap may name a bucket twice, or one that is gone."""
        times, indexes, due = self._times, [0], set()
        for index in indexes:
            if index < len(times) and times[index] * BUCKET_MS <= now_ms:
                due.add(times[index])
                indexes += (2 * index + 1, 2 * index + 2)
        return due & self._counts.keys()

    # --- folding ---

    def remember(self, scope: str, key: ProducedKey) -> None:
        """The newest is last, so that the offsets of a log's job ids ascend."""
        self.forget(scope)
        self._keys[scope] = key
        self._push(scope, key.expires_ms)
        if key.ttl_ms:
            jobs = self._jobs.get(key.log_id)
            if jobs is None:
                jobs = self._jobs[key.log_id] = _JobOffsets()
            jobs.add(key.offset, scope)
            routed = _routed_scope(scope, self._tenure.topic_of(key.log_id))
            if routed != scope:
                self._routed[routed] = scope

    def forget(self, scope: str) -> None:
        key = self._keys.pop(scope, None)
        if key is None:
            return
        self._leave(_bucket(key.expires_ms))
        if key.ttl_ms:
            self._jobs[key.log_id].forget(key.offset)
            routed = _routed_scope(scope, self._tenure.topic_of(key.log_id))
            if self._routed.get(routed) == scope:
                del self._routed[routed]

    def forget_log(self, log_id: int) -> None:
        """Forget the job ids of a deleted log."""
        jobs = self._jobs.get(log_id)
        if jobs is not None:
            for scope in list(jobs.within(0, 1 << 62)):
                self.forget(scope)
            del self._jobs[log_id]

    def end_jobs(self, log_id: int, ranges: Iterable[Range], at_ms: int) -> None:
        """Messages were settled or cancelled: the ids of jobs that are finished now stay in use for their ttl."""
        jobs = self._jobs.get(log_id)
        if jobs is None:
            return
        for first, end in ranges:
            for scope in list(jobs.within(first, end)):
                key = self._keys[scope]
                if not self._tenure.is_unfinished(log_id, key.offset):
                    self._end(scope, key, at_ms + key.ttl_ms)

    def end_below(self, log_id: int, first: int, end: int, at_ms: int) -> None:
        """The messages of a range are about to be dropped: their jobs end."""
        jobs = self._jobs.get(log_id)
        for scope in list(jobs.within(first, end)) if jobs is not None else ():
            key = self._keys[scope]
            if self._tenure.is_unfinished(log_id, key.offset):
                self._end(scope, key, at_ms + key.ttl_ms)

    def _end(self, scope: str, key: ProducedKey, expires_ms: int) -> None:
        """A job ended. One that ended before keeps its id for as long as was noted then."""
        closed = self._keys[scope] = replace(key, is_open=False) if key.is_open else key
        self._move(scope, closed, expires_ms if key.is_open else max(key.expires_ms, expires_ms))

    def sweep(self, until_ms: int, at_ms: int) -> None:
        """Drop the keys of the buckets up to `until_ms`. Unfinished jobs are checked again later."""
        slots: dict[int, int] = {}
        while self._times and self._times[0] * BUCKET_MS <= until_ms:
            bucket = self._times[0]
            for scope in self._buckets[bucket]:
                key = self._keys.get(scope)
                if key is None or _bucket(key.expires_ms) != bucket:
                    continue  # stale
                next_ms = self._until_ms(key, at_ms)
                if next_ms <= at_ms:
                    self.forget(scope)
                else:
                    next_ms = max(next_ms, at_ms + CHECK_MS) if key.is_open else next_ms
                    self._move(scope, key, self._look_ms(next_ms, key.ttl_ms, slots))

    def _look_ms(self, next_ms: int, ttl_ms: int, slots: dict[int, int]) -> int:
        """When to check a job id again: together with others, but not with too many."""
        width = max(BUCKET_MS, ttl_ms // 10)
        base = -(-next_ms // width) * width // BUCKET_MS + 1
        bucket = slots.get(base, base)
        while self._counts.get(bucket, 0) >= BUCKET_LOOKS_MAX:
            bucket += 1
        slots[base] = bucket
        return (bucket - 1) * BUCKET_MS if bucket > base else next_ms + (-next_ms % width)

    def _move(self, scope: str, key: ProducedKey, expires_ms: int) -> None:
        if expires_ms == key.expires_ms:
            return
        self._keys[scope] = replace(key, expires_ms=expires_ms)
        self._leave(_bucket(key.expires_ms))
        self._push(scope, expires_ms)

    def _leave(self, bucket: int) -> None:
        """A name in a bucket became stale. A bucket with only stale names is dropped, also from the heap."""
        self._counts[bucket] -= 1
        if not self._counts[bucket]:
            del self._counts[bucket], self._buckets[bucket]
            while self._times and self._times[0] not in self._counts:
                heapq.heappop(self._times)

    def _push(self, scope: str, expires_ms: int) -> None:
        bucket = _bucket(expires_ms)
        names = self._buckets.get(bucket)
        if names is None:
            names = self._buckets[bucket] = []
            self._counts[bucket] = 0
            heapq.heappush(self._times, bucket)
        names.append(scope)
        self._counts[bucket] += 1

    # --- snapshots ---

    def snapshot(self) -> Iterator[KeyState]:
        for scope, key in self._keys.items():
            place = key.log_id, key.offset, key.records
            yield KeyState(scope, *place, key.digest, key.expires_ms, key.ttl_ms, key.is_open)

    def restore(self, fact: KeyState) -> None:
        ttl_ms = fact.ttl_ms or (OLD_JOB_TTL_MS if is_job(fact.key) else 0)
        key = ProducedKey(fact.log_id, fact.offset, fact.count, fact.digest, fact.expires_ms, ttl_ms, fact.is_open)
        self.remember(fact.key, key)


def _bucket(expires_ms: int) -> int:
    """The number of a bucket. All its keys are due at number * BUCKET_MS."""
    return expires_ms // BUCKET_MS + 1
