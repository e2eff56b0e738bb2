"""Deadlines: when to look at what next, and what a correction of the clock does to the times that are recorded.

`Deadlines` is an index over the state for the driver of the broker. It holds hints. A hint that is too early costs one
look, and whatever changes a time pushes a new hint. Taking a hint changes no state.

When the clock is corrected (`set_clock`), running timers (leases of messages, effects and wakes, and backoffs) keep the
time that was left, whether the clock was set forward or back. Times that a client chose, or that mean an age, do not
change: `not_before`, deadlines, the expiry of keys, stages and streams, and the time stamps of records. After a step
back they are reached later, never earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model.facts import ClockSet
from driftq.core.model.job_facts import MadeDue
from driftq.core.state.effects import EffectStatus
from driftq.core.state.timer_queue import TimerQueue

if TYPE_CHECKING:
    from driftq.core.model.commands import Subject
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State


class Deadlines:
    """A heap with one valid hint per subject; a hint is stale when `_earliest` has another time for its subject."""

    __slots__ = ("_earliest", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Subject]] = []
        self._earliest: dict[Subject, int] = {}

    def push(self, subject: Subject, at_ms: int | None) -> None:
        if at_ms is None:
            return
        earliest = self._earliest.get(subject)
        if earliest is None or at_ms < earliest:
            self._earliest[subject] = at_ms
            heapq.heappush(self._heap, (at_ms, subject))

    def next_ms(self) -> int | None:
        """The earliest time, after dropping stale hints."""
        while self._heap and self._earliest.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int, limit: int) -> list[Subject]:
        """Up to `limit` subjects that are due. The caller pushes those again that have a next time."""
        taken: list[Subject] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
            at_ms, subject = heapq.heappop(self._heap)
            if self._earliest.get(subject) == at_ms:
                del self._earliest[subject]
                taken.append(subject)
        return taken


def timer_folds(state: State) -> dict[type, Callable[[Any], None]]:
    """The folds of facts that move timers."""
    return {ClockSet: lambda fact: set_clock(state, fact), MadeDue: lambda fact: make_due(state, fact)}


# --- times that an operator moves ---


def make_due(state: State, fact: MadeDue) -> None:
    """Fold an early end of delays and backoffs."""
    state.last_ms = max(state.last_ms, fact.at_ms)
    if not fact.group_id:
        state.logs[fact.log_id].make_due(fact.ranges)
        return
    progress = state.progress_of(fact.group_id, fact.log_id)
    progress.make_due(fact)
    state.schedule(progress)


# --- corrections of the clock ---


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
            stream.touched_ms = fact.at_ms  # a sliding lifetime starts over, instead of lasting longer by the step
            state.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())


def shifted(timer_ms: int, fact: ClockSet) -> int:
    """When a timer ends by the new clock. A timer that ran out by the old clock has also run out by the new one."""
    if timer_ms > fact.from_ms:
        return timer_ms + fact.at_ms - fact.from_ms
    return min(timer_ms, fact.at_ms)


def _shift_progress(progress: Progress, fact: ClockSet) -> None:
    # Entries may share a lease or, after a restart, have one each. Shift every lease once.
    live = [lease for _, _, lease in progress.lease_timers]
    known = (entry.lease for _, entry in progress.entries.changed() if entry.lease is not None)
    for lease in dict.fromkeys((*live, *known)):
        step_ms = shifted(lease.until_ms, fact) - lease.until_ms
        lease.at_ms += step_ms  # a lease keeps its length, by which a timeout is known
        lease.until_ms += step_ms
    progress.lease_timers = TimerQueue((lease.until_ms, lease.number, lease) for lease in live)
    waiting = [(not_before_ms, offset) for offset, not_before_ms in progress.entries.delayed.items()]
    for offset, entry in progress.entries.changed():
        if entry.held:
            continue
        if entry.was_delivered():
            entry.retry_at_ms = shifted(entry.retry_at_ms, fact)
        waiting.append((entry.retry_at_ms, offset))
    progress.retry_timers = TimerQueue(waiting)
