"""Leases that ran out. An expired lease is a failed attempt like a nack (`core.transitions.retry`): the message waits
in backoff and is delivered again, or becomes a dead letter.

A lease can end in two ways. If the holder did not settle in time, the lease is *lost*. If the attempt reached its
execution timeout (`core.transitions.timeouts`), the attempt *failed* with the reason `timeout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.transitions.claim_selection import until
from driftq.core.transitions.retry import fail
from driftq.core.transitions.timeouts import TIMEOUT, is_timeout

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Lease
    from driftq.core.state.progress import Progress

ACK_TIMEOUT = "ack_timeout"


def expire_leases(ctx: DecisionContext, group: Group, progress: Progress, limit: int) -> int:
    """End up to `limit` attempts whose lease ran out, as far as one frame has room. Returns how many."""
    offsets = expired_offsets(progress, ctx.now_ms, limit)
    log = ctx.state.logs[progress.log_id]
    for count, offset in enumerate(offsets):
        if ctx.is_full():
            return count
        timed_out = is_timeout(log, offset, progress.state_of(offset)[1])
        fail(ctx, group, progress, offset, TIMEOUT if timed_out else ACK_TIMEOUT, lost=not timed_out)
    return len(offsets)


def expired_offsets(progress: Progress, now_ms: int, limit: int) -> list[int]:
    """Up to `limit` held offsets whose lease ran out: those of the oldest leases, in ascending order."""
    expired: set[Lease] = set()
    count = 0
    for until_ms, _, lease in until(progress.lease_heap, now_ms):
        if count >= limit:
            break
        if lease.live > 0 and lease.until_ms == until_ms and lease not in expired:
            expired.add(lease)
            count += lease.live
    if not expired:
        return []
    offsets: list[int] = []
    for first, end, lease in progress.held:
        if lease in expired:
            offsets.extend(range(first, end))
    offsets.extend(offset for offset in progress.held_entries if progress.entries[offset].lease in expired)
    offsets.sort()
    return offsets[:limit]
