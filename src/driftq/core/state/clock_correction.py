"""What a correction of the clock does to times that are recorded already.

Running timers (leases of messages, effects and wakes, and backoffs) keep the time that was left, whether the clock was
set forward or back. Times that a client chose, or that mean an age, do not change: `not_before`, deadlines, the expiry
of keys, stages and streams, and the time stamps of records. After a step back they are reached later, never earlier.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from driftq.core.state.effects import EffectStatus

if TYPE_CHECKING:
    from driftq.core.model.facts import ClockSet
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State


def set_clock(state: State, fact: ClockSet) -> None:
    """Fold a correction, or a record of the time."""
    state.last_ms = fact.at_ms
    if fact.at_ms != fact.from_ms:
        _shift_timers(state, fact)


def _shift_timers(state: State, fact: ClockSet) -> None:
    """Shift every timer that runs at `from_ms`. Walks through the whole state, because corrections are rare."""
    for group in state.groups.values():
        for progress in group.progress:
            _shift_progress(progress, fact)
            state.schedule(progress)
    for effect in state.effects:
        if effect.status is EffectStatus.PENDING:
            effect.until_ms = shifted(effect.until_ms, fact)
    for subscription in state.subscriptions.by_number.values():
        if subscription.until_ms:
            subscription.until_ms = shifted(subscription.until_ms, fact)
            state.subscriptions.schedule(subscription)
    for stream in state.streams.by_log.values():
        if stream.touched_ms > fact.at_ms:
            stream.touched_ms = fact.at_ms  # a sliding lifetime starts anew, instead of lasting longer by the step
            state.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())


def shifted(timer_ms: int, fact: ClockSet) -> int:
    """When a timer ends by the new clock. A timer that ran out by the old clock has also run out by the new one."""
    if timer_ms > fact.from_ms:
        return timer_ms + fact.at_ms - fact.from_ms
    return min(timer_ms, fact.at_ms)


def _shift_progress(progress: Progress, fact: ClockSet) -> None:
    # A lease may be in the heap twice, and entries may share a lease or, after a restart, have one each. Shift every
    # lease once.
    live = {lease: number for _, number, lease in progress.lease_heap if lease.live}
    known = dict.fromkeys(entry.lease for entry in progress.entries.values() if entry.lease is not None)
    for lease in {**live, **known}:
        step_ms = shifted(lease.until_ms, fact) - lease.until_ms
        lease.at_ms += step_ms  # a lease keeps its length, by which a timeout is known
        lease.until_ms += step_ms
    progress.lease_heap = [(lease.until_ms, number, lease) for lease, number in live.items()]
    heapq.heapify(progress.lease_heap)
    waiting: list[tuple[int, int]] = []
    for offset, entry in progress.entries.items():
        if entry.held:
            continue
        if entry.was_delivered():
            entry.retry_at_ms = shifted(entry.retry_at_ms, fact)
        waiting.append((entry.retry_at_ms, offset))
    heapq.heapify(waiting)
    progress.resting_heap = waiting
