"""What each tenant may produce per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.replies import Rejected
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.server.settings import TenantSettings

TENANTS_MAX = 100_000


class _Bucket:
    """Tokens that refill with time, up to the burst."""

    __slots__ = ("at_ms", "messages", "size_bytes")

    def __init__(self, messages: float, size_bytes: float, at_ms: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.at_ms = at_ms


class TenantRates:
    """Messages and bytes per second that a tenant may produce, with a burst.

    A token bucket for each tenant, in a table of bounded size from which the oldest is dropped. Nothing here is
    durable: a restart fills every bucket. Without a limit in the settings, nothing is looked up.
    """

    def __init__(self, tenants: TenantSettings) -> None:
        self._messages_per_s = tenants.messages_per_s
        self._bytes_per_s = tenants.bytes_per_s
        self._burst_s = tenants.burst_ms / 1_000
        self._buckets: dict[str, _Bucket] = {}
        self.active = bool(self._messages_per_s or self._bytes_per_s)

    def take(self, tenant: str, messages: int, size_bytes: int, now_ms: int) -> Rejected | None:
        """Charge a produce to the tenant's bucket; refused if the bucket does not hold enough."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._new(tenant, now_ms)
        passed_s = max(0, now_ms - bucket.at_ms) / 1_000
        bucket.at_ms = now_ms
        bucket.messages = min(self._messages_per_s * self._burst_s, bucket.messages + passed_s * self._messages_per_s)
        bucket.size_bytes = min(self._bytes_per_s * self._burst_s, bucket.size_bytes + passed_s * self._bytes_per_s)
        wait_s = max(
            self._wait_s(bucket.messages, messages, self._messages_per_s),
            self._wait_s(bucket.size_bytes, size_bytes, self._bytes_per_s),
        )
        if wait_s > 0:
            wait_ms = max(1, int(wait_s * 1_000))
            message = f"tenant {tenant!r} produces faster than it may; try again in {wait_ms} ms"
            return Rejected(Code.OVERLOADED, message, {"reason": "tenant_rate", "retry_after_ms": wait_ms})
        bucket.messages -= messages
        bucket.size_bytes -= size_bytes
        return None

    def _wait_s(self, available: float, needed: int, per_s: int) -> float:
        """How long until the bucket holds enough. A full bucket admits anything and goes into debt; otherwise a produce
        larger than the burst could never pass."""
        if not per_s:
            return 0.0
        enough = min(needed, per_s * self._burst_s)
        return 0.0 if available >= enough else (enough - available) / per_s

    def _new(self, tenant: str, now_ms: int) -> _Bucket:
        if len(self._buckets) >= TENANTS_MAX:
            del self._buckets[next(iter(self._buckets))]
        bucket = _Bucket(self._messages_per_s * self._burst_s, self._bytes_per_s * self._burst_s, now_ms)
        self._buckets[tenant] = bucket
        return bucket
