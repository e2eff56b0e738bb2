"""Rates of tenants: messages, bytes and requests per second, each a bucket that refills with time, up to the burst.

The limits are the quotas of the tenant, or the settings for what has no quota. Nothing in a bucket is durable: a
restart fills it. The table of buckets is bounded; the oldest is dropped. Without limits nothing is looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.tenant_facts import TenantQuotas
from driftq.core.transitions.lookups import quota_exceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.core.model.replies import Rejected
    from driftq.core.state.tenants import TenantTable
    from driftq.server.settings import TenantSettings

BUCKETS_MAX = 100_000
RATES = ("messages_per_s", "bytes_per_s", "requests_per_s")
_NO_QUOTAS = TenantQuotas()


class _Bucket:
    """What is left of each rate, as of a time."""

    __slots__ = ("at_ms", "left")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.left: dict[str, float] = {}


class TenantRates:
    """The rates of all tenants."""

    def __init__(self, settings: TenantSettings, tenants: Callable[[], TenantTable]) -> None:
        self._defaults = TenantQuotas(settings.messages_per_s, settings.bytes_per_s)
        self._burst_s = settings.burst_ms / 1_000
        self._tenants = tenants
        self._buckets: dict[str, _Bucket] = {}

    @property
    def active(self) -> bool:
        return self._defaults != _NO_QUOTAS or bool(self._tenants().by_name)

    def per_s(self, tenant: str, rate: str) -> int:
        """The limit; 0: none."""
        known = self._tenants().by_name.get(tenant)
        limit: int = getattr(known.quotas, rate) if known is not None else 0
        return limit or getattr(self._defaults, rate)

    def take(self, tenant: str, needs: dict[str, int], now_ms: int, *, always: bool = False) -> Rejected | None:
        """Take from the rates of a tenant, from all or from none of them. Refused if one does not hold enough.
        `always`: what is left is taken, and it is not refused."""
        limits = {rate: limit for rate in needs if (limit := self.per_s(tenant, rate))}
        if not limits:
            return None
        left = self._refilled(tenant, limits, now_ms)
        rejected = None if always else self._refusal(tenant, needs, limits, left)
        if rejected is not None:
            return rejected
        for rate in limits:
            left[rate] = max(0.0, left[rate] - needs[rate]) if always else left[rate] - needs[rate]
        return None

    def refusal(self, tenant: str, needs: dict[str, int], now_ms: int) -> Rejected | None:
        """Why `take` would be refused. Takes nothing."""
        limits = {rate: limit for rate in needs if (limit := self.per_s(tenant, rate))}
        return self._refusal(tenant, needs, limits, self._refilled(tenant, limits, now_ms)) if limits else None

    def used(self, tenant: str, rate: str, now_ms: int) -> int:
        """How much of a rate is in use now."""
        limit = self.per_s(tenant, rate)
        if not limit or tenant not in self._buckets:
            return 0
        return max(0, int(limit * self._burst_s - self._refilled(tenant, {rate: limit}, now_ms)[rate]))

    def _refusal(
        self, tenant: str, needs: dict[str, int], limits: dict[str, int], left: dict[str, float]
    ) -> Rejected | None:
        waits = {rate: self._wait_s(left[rate], needs[rate], limit) for rate, limit in limits.items()}
        longest = max(waits, key=waits.__getitem__)
        if waits[longest] <= 0:
            return None
        used = int(limits[longest] * self._burst_s - left[longest])
        return quota_exceeded(tenant, longest, used, limits[longest], max(1, int(waits[longest] * 1_000)))

    def _refilled(self, tenant: str, limits: dict[str, int], now_ms: int) -> dict[str, float]:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[tenant] = _Bucket(now_ms)
        passed_s = max(0, now_ms - bucket.at_ms) / 1_000
        bucket.at_ms = now_ms
        for rate in tuple(bucket.left):
            limit = limits.get(rate) or self.per_s(tenant, rate)
            bucket.left[rate] = min(limit * self._burst_s, bucket.left[rate] + passed_s * limit)
        for rate, limit in limits.items():
            bucket.left.setdefault(rate, limit * self._burst_s)
        return bucket.left

    def _wait_s(self, available: float, needed: int, per_s: int) -> float:
        """How long until the bucket holds enough. A full bucket admits anything and goes into debt; otherwise a produce
        larger than the burst could never pass."""
        enough = min(needed, per_s * self._burst_s)
        return 0.0 if available >= enough else (enough - available) / per_s
