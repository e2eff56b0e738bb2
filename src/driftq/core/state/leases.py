"""Who holds what: leases, the ranges held on a first attempt, and entries for messages that have a history.

A claim of a thousand fresh messages is one lease and one range. Only a message that failed, was delayed or was given
back gets an `Entry` of its own. `core.state.progress` says what happens to them; nothing here decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from driftq.core.model.snapshot_facts import EntryState


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
        "attempts", "error", "failures", "held", "lease", "lease_losses", "lost", "releases", "retry_at_ms", "version",
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
        self.lost = False  # the last attempt ended by a lost lease, and its holder has not said why

    def was_delivered(self) -> bool:
        """False: it waits for the time that its producer chose."""
        return bool(self.attempts or self.failures or self.lease_losses or self.releases)

    def image(self, group_id: int, log_id: int, offset: int) -> EntryState:
        lease = self.lease or Lease("", "", 0, 0)
        return EntryState(
            group_id, log_id, offset, self.attempts, self.version, self.failures, self.lease_losses, self.releases,
            self.retry_at_ms, self.error, self.held, lease.owner, lease.token, lease.at_ms, lease.until_ms, self.lost,
        )  # fmt: skip

    @classmethod
    def placed(cls, image: EntryState) -> Entry:
        entry = cls(image.attempts, image.version)
        entry.failures, entry.lease_losses, entry.releases = image.failures, image.lease_losses, image.releases
        entry.error, entry.lost = image.error, image.unexplained
        if image.token or image.owner:
            entry.lease = Lease(image.owner, image.token, image.at_ms, image.until_ms)
        return entry


DEAD_MAX = 1_000


class DeadOffsets:
    """The last messages of a group that became dead letters, with their last holder: an ack that comes too late can be
    told, and the repeat of the nack or reject that ended a message is recognised. Bounded; the oldest are dropped."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, str]] = {}

    def __contains__(self, offset: int) -> bool:
        return offset in self._holders

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        return ((offset, owner, token) for offset, (owner, token) in self._holders.items())

    def add(self, offset: int, owner: str, token: str) -> None:
        self._holders[offset] = (owner, token)
        if len(self._holders) > DEAD_MAX:
            del self._holders[next(iter(self._holders))]

    def was_held(self, offset: int, token: str, owner: str) -> bool:
        """Whether a message died under this token or, without one, in this owner's hands."""
        last_owner, last_token = self._holders[offset]
        return bool(last_token) and (token == last_token if token else owner == last_owner)

    def trim(self, start: int) -> None:
        for offset in [offset for offset in self._holders if offset < start]:
            del self._holders[offset]

    def clear(self) -> None:
        self._holders.clear()


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
