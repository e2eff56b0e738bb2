"""Leases: which owner holds which messages of a group, until when, and what is remembered of earlier attempts.

    claim of offsets 3..9 by worker A:     Lease(A, token t1, until 12:00:30, live=7)
                                              ^
    HeldRanges:   firsts  3                   |   a first attempt: one range, one lease
                  ends   10   leases [t1] ----+

    offset 5 fails, is delivered again:    Entry(5): attempts 2, failures 1, lease -> Lease(B, t2, ...)
    HeldRanges:   3..4 under t1, 6..9 under t1

1. A claim makes one `Lease`. Messages on their first attempt are held as ranges (`HeldRanges`).
2. A message that failed, was given back or was delayed gets an `Entry`, and never goes back to the ranges.
3. An entry that is not held is resting until `retry_at_ms`. It keeps its last lease: a late ack of that holder counts
   until the message is delivered again.
4. A lease whose `until_ms` has passed is expired by the next claim or sweep (`core.transitions.lease_expiry`). No timer
   changes state.
5. `live` counts the messages under a lease. At 0 its item in the heap of `Progress` is stale.

`core.state.progress` says when each of these changes; nothing here decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from driftq.core.model.snapshot_facts import EntryState


class Lease:
    """The right of one owner to the messages of one claim, until a time."""

    __slots__ = ("at_ms", "live", "owner", "token", "until_ms")

    def __init__(self, owner: str, token: str, at_ms: int, until_ms: int) -> None:
        self.owner = owner  # the name that the client gave itself
        self.token = token  # proves that a caller is the holder; the same for all messages of a claim
        self.at_ms = at_ms  # when the messages were delivered: execution timeouts count from here
        self.until_ms = until_ms  # when it runs out
        self.live = 0  # messages still under it


class Entry:
    """A message with a history in a group: held, or resting until `retry_at_ms`."""

    __slots__ = (
        "attempts", "error", "failures", "held", "lease", "lease_losses", "lost", "releases", "retry_at_ms", "version",
    )  # fmt: skip

    def __init__(self, attempts: int, version: int) -> None:
        self.attempts = attempts  # deliveries so far
        self.version = version  # of the last lease: rises with every delivery
        self.failures = 0  # attempts that ended by a nack
        self.lease_losses = 0  # attempts that ended because the lease ran out
        self.releases = 0  # deliveries that were given back
        self.retry_at_ms = 0  # while resting: when it may be delivered again
        self.error = ""  # of the last failure
        self.lease: Lease | None = None  # the current lease, or the last one while resting
        self.held = False
        self.lost = False  # the last lease ran out and its holder has not reported why

    def was_delivered(self) -> bool:
        """False if it is delayed by its producer and has never been delivered."""
        return bool(self.attempts or self.failures or self.lease_losses or self.releases)

    def snapshot(self, group_id: int, log_id: int, offset: int) -> EntryState:
        lease = self.lease or Lease("", "", 0, 0)
        return EntryState(
            group_id, log_id, offset, self.attempts, self.version, self.failures, self.lease_losses, self.releases,
            self.retry_at_ms, self.error, self.held, lease.owner, lease.token, lease.at_ms, lease.until_ms, self.lost,
        )  # fmt: skip

    @classmethod
    def restored(cls, fact: EntryState) -> Entry:
        entry = cls(fact.attempts, fact.version)
        entry.failures, entry.lease_losses, entry.releases = fact.failures, fact.lease_losses, fact.releases
        entry.error, entry.lost = fact.error, fact.unexplained
        if fact.token or fact.owner:
            entry.lease = Lease(fact.owner, fact.token, fact.at_ms, fact.until_ms)
        return entry


DEAD_MAX = 1_000


class DeadOffsets:
    """The last dead letters of a group with their last holders. A late ack is refused with the right reason, and the
    repeat of the nack or reject that ended a message is recognised. Bounded: the oldest are dropped."""

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
        """Whether the last holder had this token or, if none is given, this owner's name."""
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
        """Remove [first, end) and return the pieces that were held."""
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
