"""Where a group stands in a range of a partition: settled ranges and pending messages, page by page, in offset order.

A page costs what it shows, not what was ever settled: ranges are found by bisection, and where very many messages are
pending a page also ends after so many offsets. It is a question, so the answer waits like any other.
"""

from __future__ import annotations

from itertools import islice

from driftq.core.case import Case
from driftq.core.commands import ReadStates
from driftq.core.holding import Entry, Lease
from driftq.core.progress import Progress
from driftq.core.ranges import Range
from driftq.core.replies import PendingView, Rejected, Reply, StatesView
from driftq.core.rules.topics import bad_partition, group_of
from driftq.wire.errors import Code

LEASED = "leased"
RETRYING = "retrying"
DELAYED = "delayed"
SPAN = 100_000  # offsets a page walks over where it would have to search among many more pending ones


def read_states(case: Case, command: ReadStates) -> Reply:
    group = group_of(case, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    topic = case.state.topics[command.topic]
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    log = case.state.logs[topic.log_ids[command.partition]]
    progress = group.progress[command.partition]
    first = command.offset if command.offset is not None else min(progress.floor, log.end)
    if not 0 <= first <= log.end:
        return Rejected(Code.INVALID_ARGUMENT, f"offset must be 0 to {log.end}")
    end = stop = max(first, min(log.end, command.end) if command.end is not None else log.end)
    if len(progress.entries) > SPAN:
        stop = min(end, max(first, progress.floor) + SPAN)
    settled = _settled(progress, first, stop, command.limit)
    if len(settled) == command.limit:
        stop = settled[-1][1]
    pending = _pending(progress, min(stop, max(first, progress.floor)), stop, command.limit)
    if len(pending) == command.limit:
        stop = pending[-1].offset + 1
        settled = [(low, min(high, stop)) for low, high in settled if low < stop]
    return StatesView(progress.floor, first, stop, end, tuple(settled), tuple(pending))


def _settled(progress: Progress, first: int, stop: int, limit: int) -> list[Range]:
    """The settled ranges above the floor that lie in [first, stop)."""
    return list(islice(progress.settled.overlapping(first, stop), limit))


def _pending(progress: Progress, first: int, stop: int, limit: int) -> list[PendingView]:
    shown = [_entry(offset, progress.entries[offset]) for offset in progress.entries_in(first, stop)[:limit]]
    for low, high, lease in islice(progress.held.overlapping(first, stop), limit):
        shown.extend(_held(offset, lease) for offset in range(low, min(high, low + limit)))
        if len(shown) > 2 * limit:
            break
    shown.sort(key=_offset)
    return shown[:limit]


def _offset(view: PendingView) -> int:
    return view.offset


def _held(offset: int, lease: Lease) -> PendingView:
    return PendingView(offset, LEASED, 1, lease.owner, lease.until_ms, 0, "")


def _entry(offset: int, entry: Entry) -> PendingView:
    if entry.held and entry.lease is not None:
        lease = entry.lease
        return PendingView(offset, LEASED, entry.attempts, lease.owner, lease.until_ms, 0, entry.error)
    state = DELAYED if entry.attempts == 0 and not entry.releases else RETRYING
    return PendingView(offset, state, entry.attempts, "", 0, entry.retry_at_ms, entry.error)
