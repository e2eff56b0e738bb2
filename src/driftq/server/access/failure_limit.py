"""Slows down callers that send wrong credentials, by address.

Every address has a bucket of failures that refills with time. While it is empty, credentials from this address are not
looked at, and the caller is asked to wait. Credentials that were accepted before are not affected: they are recognised
before this limit is asked. The table is bounded; the address that failed longest ago is dropped first.
"""

from __future__ import annotations

import ipaddress

FAILURES_MAX = 20  # in a burst
REFILL_PER_S = 1.0  # a caller that guesses gets this many tries
ADDRESSES_MAX = 10_000


class FailureLimit:
    """Failed credentials by address."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}  # by address: failures left, as of a time in seconds
        self.suppressed: dict[str, int] = {}  # by address: requests that were not looked at since the last failure

    def wait_s(self, address: str, now_s: float) -> float:
        """How long the address has to wait until a credential is looked at; 0: not at all."""
        if not self._buckets:
            return 0.0
        key = network_of(address)
        left = self._left(key, now_s)
        if left >= 1.0:
            return 0.0
        self.suppressed[key] = self.suppressed.get(key, 0) + 1
        return (1.0 - left) / REFILL_PER_S

    def failed(self, address: str, now_s: float) -> int:
        """A credential from this address was wrong. Returns how many were not looked at since the failure before."""
        key = network_of(address)
        # What was not used of the burst refills with time, up to the whole burst.
        left = self._left(key, now_s)
        self._buckets.pop(key, None)  # and in again at the end: the first of the table failed longest ago
        if len(self._buckets) >= ADDRESSES_MAX:
            oldest = next(iter(self._buckets))
            del self._buckets[oldest]
            self.suppressed.pop(oldest, None)
        self._buckets[key] = (max(0.0, left - 1.0), now_s)
        return self.suppressed.pop(key, 0)

    def _left(self, key: str, now_s: float) -> float:
        left, at_s = self._buckets.get(key, (float(FAILURES_MAX), now_s))
        return min(float(FAILURES_MAX), left + max(0.0, now_s - at_s) * REFILL_PER_S)


def network_of(address: str) -> str:
    """An IPv6 caller has a whole /64 of addresses to fail from."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
