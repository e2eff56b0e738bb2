"""Execution timeouts: no lease of a message runs longer than its delivery plus its `timeout_ms`.

Claims, extensions and kept leases ask here until when a lease may run. An attempt that reaches its timeout has failed
with the reason `timeout`; its lease does not count as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.core.model.ranges import Range
    from driftq.core.state.leases import Lease
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

TIMEOUT = "timeout"


class Span(NamedTuple):
    """Offsets of a log whose leases end at the same time."""

    first: int
    end: int
    until_ms: int


def spans(log: Log, first: int, end: int, at_ms: int, until_ms: int) -> Iterator[Span]:
    """Cut a range that was delivered at `at_ms` and is leased until `until_ms` where an attempt must end earlier."""
    for offset, timeout_ms in log.timeouts(first, end):
        if at_ms + timeout_ms < until_ms:
            if first < offset:
                yield Span(first, offset, until_ms)
            yield Span(offset, offset + 1, at_ms + timeout_ms)
            first = offset + 1
    if first < end:
        yield Span(first, end, until_ms)


def leases(log: Log, ranges: list[Range], at_ms: int, until_ms: int) -> list[tuple[int, list[Range]]]:
    """The ranges of a claim in order, grouped by the time at which their lease ends."""
    if not log.timeout_offsets:
        return [(until_ms, ranges)]
    result: list[tuple[int, list[Range]]] = []
    for first, end in ranges:
        for span in spans(log, first, end, at_ms, until_ms):
            if not result or result[-1][0] != span.until_ms:
                result.append((span.until_ms, []))
            result[-1][1].append((span.first, span.end))
    return result


def extensions(log: Log, progress: Progress, ranges: Iterable[Range], until_ms: int) -> dict[int, list[Range]]:
    """Held ranges, by the time until which their leases can be extended."""
    ranges = list(ranges)
    if not log.timeout_offsets:
        return {until_ms: ranges} if ranges else {}
    result: dict[int, list[Range]] = {}
    for first, end in ranges:
        for low, high, lease in _pieces(progress, first, end):
            for span in spans(log, low, high, lease.at_ms, until_ms):
                result.setdefault(span.until_ms, []).append((span.first, span.end))
    return result


def is_timeout(log: Log, offset: int, lease: Lease | None) -> bool:
    """Whether a lease ended because its attempt reached its timeout."""
    if lease is None or not log.timeout_offsets:
        return False
    return any(lease.until_ms >= lease.at_ms + timeout_ms for _, timeout_ms in log.timeouts(offset, offset + 1))


def _pieces(progress: Progress, first: int, end: int) -> list[tuple[int, int, Lease]]:
    result = list(progress.held.overlapping(first, end))
    for offset in progress.entries_in(first, end):
        entry = progress.entries[offset]
        if entry.held and entry.lease is not None:
            result.append((offset, offset + 1, entry.lease))
    return sorted(result, key=lambda piece: piece[0])
