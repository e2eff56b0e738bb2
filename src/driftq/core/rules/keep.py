"""Keeping the leases of a connection that reads slowly but settles: see `engine.consumer_window` for which and when."""

from __future__ import annotations

from driftq.core.case import Case
from driftq.core.commands import Held, Keep
from driftq.core.facts import Extended
from driftq.core.progress import Progress
from driftq.core.ranges import Range
from driftq.core.replies import Rejected, Reply, Settlement
from driftq.core.rules.topics import bad_partition, group_of
from driftq.core.timeouts import extensions


def keep(case: Case, command: Keep) -> Reply:
    group = group_of(case, command.topic, command.group)
    if isinstance(group, Rejected):
        return group
    ranges: dict[int, list[Range]] = {}
    for held in command.held:
        if not 0 <= held.partition < len(group.progress):
            return bad_partition(held.partition, case.state.topics[group.topic])
        progress = group.progress[held.partition]
        ranges.setdefault(progress.log_id, []).extend(_shorter(progress, held, case.now_ms, command.until_ms))
    for log_id, found in ranges.items():
        progress = case.state.progress_of(group.group_id, log_id)
        for until_ms, some in extensions(case.state.logs[log_id], progress, found, command.until_ms).items():
            case.facts.append(Extended(group.group_id, log_id, tuple(some), until_ms))
    return Settlement((), command.until_ms)


def _shorter(progress: Progress, held: Held, now_ms: int, until_ms: int) -> list[Range]:
    """What is held under the token by a lease that still runs and ends before `until_ms`."""
    found = [
        (low, high)
        for low, high, lease in progress.held.overlapping(held.first, held.end)
        if lease.token == held.token and now_ms < lease.until_ms < until_ms
    ]
    for offset in progress.entries_in(held.first, held.end):
        entry = progress.entries[offset]
        lease = entry.lease
        if entry.held and lease is not None and lease.token == held.token and now_ms < lease.until_ms < until_ms:
            found.append((offset, offset + 1))
    return sorted(found)
