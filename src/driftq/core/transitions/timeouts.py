"""The execution timeout of an attempt: no lease of a message runs past the attempt's delivery plus its `timeout_ms`.

Claims, extensions and kept leases ask here until when a lease may run. One that ends at its timeout is a failure with
the reason `timeout`, not a lost lease.
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
    """A range that was delivered at `at_ms` and should be held until then, cut where an attempt has to end sooner."""
    for offset, timeout_ms in log.timeouts(first, end):
        if at_ms + timeout_ms < until_ms:
            if first < offset:
                yield Span(first, offset, until_ms)
            yield Span(offset, offset + 1, at_ms + timeout_ms)
            first = offset + 1
    if first < end:
        yield Span(first, end, until_ms)


def leases(log: Log, ranges: list[Range], at_ms: int, until_ms: int) -> list[tuple[int, list[Range]]]:
    """Ranges of a claim in their order, with the time at which the lease of each run of them ends."""
    if not log.timeout_offsets:
        return [(until_ms, ranges)]
    found: list[tuple[int, list[Range]]] = []
    for first, end in ranges:
        for span in spans(log, first, end, at_ms, until_ms):
            if not found or found[-1][0] != span.until_ms:
                found.append((span.until_ms, []))
            found[-1][1].append((span.first, span.end))
    return found


def extensions(log: Log, progress: Progress, ranges: Iterable[Range], until_ms: int) -> dict[int, list[Range]]:
    """Held ranges by the time until which their leases can be extended."""
    ranges = list(ranges)
    if not log.timeout_offsets:
        return {until_ms: ranges} if ranges else {}
    found: dict[int, list[Range]] = {}
    for first, end in ranges:
        for low, high, lease in _pieces(progress, first, end):
            for span in spans(log, low, high, lease.at_ms, until_ms):
                found.setdefault(span.until_ms, []).append((span.first, span.end))
    return found


def is_timeout(log: Log, offset: int, lease: Lease | None) -> bool:
    """Whether a lease ended because its attempt had to."""
    if lease is None or not log.timeout_offsets:
        return False
    return any(lease.until_ms >= lease.at_ms + timeout_ms for _, timeout_ms in log.timeouts(offset, offset + 1))


def _pieces(progress: Progress, first: int, end: int) -> list[tuple[int, int, Lease]]:
    found = list(progress.held.overlapping(first, end))
    for offset in progress.entries_in(first, end):
        entry = progress.entries[offset]
        if entry.held and entry.lease is not None:
            found.append((offset, offset + 1, entry.lease))
    return sorted(found, key=lambda piece: piece[0])
