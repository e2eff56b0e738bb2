"""Who holds what: leases, the ranges held on a first attempt, and entries for messages that have a history.

A claim of a thousand fresh messages is one lease and one range. Only a message that failed, was delayed or was given
back gets an `Entry` of its own. `core.progress` says what happens to them; nothing here decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Lease:
    """The time-boxed right of one owner to the messages of one claim. `live` counts the messages still under it."""

    __slots__ = ("at_ms", "live", "owner", "token", "until_ms")

    def __init__(self, owner: str, token: str, at_ms: int, until_ms: int) -> None:
        self.owner = owner
        self.token = token
        self.at_ms = at_ms
        self.until_ms = until_ms
        self.live = 0


class Entry:
    """A message with a history in a group. Not held means that it rests until `retry_at_ms`; the last lease is kept, so
    that a late ack can still be recognised."""

    __slots__ = (
        "attempts", "error", "failures", "held", "lease", "lease_losses", "releases", "retry_at_ms", "version",
    )  # fmt: skip

    def __init__(self, attempts: int, version: int) -> None:
        self.attempts = attempts
        self.version = version
        self.failures = 0
        self.lease_losses = 0
        self.releases = 0
        self.retry_at_ms = 0
        self.error = ""
        self.lease: Lease | None = None
        self.held = False


Piece = tuple[int, int, Lease]


class HeldRanges:
    """Disjoint ranges of offsets, each under a lease, ascending."""

    __slots__ = ("ends", "firsts", "leases")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ends: list[int] = []
        self.leases: list[Lease] = []

    def __iter__(self) -> Iterator[Piece]:
        return zip(self.firsts, self.ends, self.leases, strict=True)

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def lease_at(self, offset: int) -> Lease | None:
        index = bisect_right(self.firsts, offset) - 1
        return self.leases[index] if index >= 0 and offset < self.ends[index] else None

    def overlapping(self, first: int, end: int) -> Iterator[Piece]:
        """The parts of held ranges that lie in [first, end)."""
        index = max(0, bisect_right(self.firsts, first) - 1)
        while index < len(self.firsts) and self.firsts[index] < end:
            low, high = max(first, self.firsts[index]), min(end, self.ends[index])
            if low < high:
                yield low, high, self.leases[index]
            index += 1

    def add(self, first: int, end: int, lease: Lease) -> None:
        """Add a range; neighbours under the same lease become one."""
        if not self.firsts or (first >= self.ends[-1] and lease is not self.leases[-1]):
            self.firsts.append(first)
            self.ends.append(end)
            self.leases.append(lease)
            return
        index = bisect_right(self.firsts, first)
        if index < len(self.firsts) and self.firsts[index] == end and self.leases[index] is lease:
            end = self.ends[index]
            del self.firsts[index], self.ends[index], self.leases[index]
        if index and self.ends[index - 1] == first and self.leases[index - 1] is lease:
            self.ends[index - 1] = end
            return
        self.firsts.insert(index, first)
        self.ends.insert(index, end)
        self.leases.insert(index, lease)

    def cut(self, first: int, end: int) -> list[Piece]:
        """Take [first, end) out and return what was there."""
        firsts, ends, leases = self.firsts, self.ends, self.leases
        index = bisect_right(firsts, first) - 1
        if index < 0 or ends[index] <= first:
            index += 1
        elif firsts[index] == first and ends[index] == end:
            whole = (first, end, leases[index])
            del firsts[index], ends[index], leases[index]
            return [whole]
        pieces: list[Piece] = []
        while index < len(firsts) and firsts[index] < end:
            start, stop, lease = firsts[index], ends[index], leases[index]
            low, high = max(first, start), min(end, stop)
            pieces.append((low, high, lease))
            if start < low:
                ends[index] = low
                index += 1
                if high < stop:
                    firsts.insert(index, high)
                    ends.insert(index, stop)
                    leases.insert(index, lease)
            elif high < stop:
                firsts[index] = high
            else:
                del firsts[index], ends[index], leases[index]
        return pieces

    def clear(self) -> None:
        self.firsts.clear()
        self.ends.clear()
        self.leases.clear()
