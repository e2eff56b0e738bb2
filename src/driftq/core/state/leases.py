"""Leases: which owner holds which messages of a group, until when, and what is remembered of earlier attempts.

    claim of offsets 3..9 by worker A:     Lease(A, token t1, until 12:00:30, live=7)
                                              ^
    HeldRanges:   firsts  3                   |   a first attempt: one range, one lease
                  ends   10   leases [t1] ----+

    offset 5 fails, is delivered again:    Entry(5): attempts 2, failures 1, lease -> Lease(B, t2, ...)
    HeldRanges:   3..4 under t1, 6..9 under t1

1. A claim makes one `Lease`, which knows the ranges it was given. Messages on their first attempt are held as ranges
   (`core.state.held_ranges`).
2. A message that failed, was given back or was delayed gets an `Entry`, and never goes back to the ranges. As long as
   a delayed message was never delivered, `Entries` keeps only its time.
3. An entry that is not held is resting until `retry_at_ms`. It keeps its last lease: a late ack of that holder counts
   until the message is delivered again.
4. A lease whose `until_ms` has passed is expired by the next claim or sweep (`core.transitions.expiry`). No timer
   changes state.
5. `live` counts the messages under a lease. At 0 its timer in `Progress` is removed.

Leases and entries refer to nothing that refers back to them, so the garbage collector does not track them: a million
of them do not make its passes longer.

`core.state.progress` says when each of these changes; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from driftq.core.model.ranges import Range
from driftq.core.model.snapshot_facts import EntryState


class Lease(Struct, gc=False, eq=False):
    """The right of one owner to the messages of one claim, until a time."""

    owner: str  # the name that the client gave itself
    token: str  # proves that a caller is the holder; the same for all messages of a claim
    at_ms: int  # when the messages were delivered: execution timeouts count from here
    until_ms: int  # when it runs out
    run: Range | None = None  # the first range that it was given; some of it may have been settled since
    more: tuple[Range, ...] | list[Range] = ()  # the other ranges: most leases have one only
    live: int = 0  # messages still under it
    number: int = 0  # of its timer; 0: it has none, because it is the last lease of a resting message


class Entry(Struct, gc=False, eq=False):
    """A message with a history in a group: held, or resting until `retry_at_ms`."""

    attempts: int  # deliveries so far
    version: int  # of the last lease: rises with every delivery
    failures: int = 0  # attempts that ended by a nack
    lease_losses: int = 0  # attempts that ended because the lease ran out
    releases: int = 0  # deliveries that were given back
    retry_at_ms: int = 0  # while resting: when it may be delivered again
    error: str = ""  # of the last failure
    lease: Lease | None = None  # the current lease, or the last one while resting
    held: bool = False
    lost: bool = False  # the last lease ran out and its holder has not reported why

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


class Entries:
    """The entries of a group in one log, by offset.

    A delayed message that was never delivered is a number in `delayed`. Its entry is made when it is read, and kept
    when it is put back.
    """

    __slots__ = ("_changed", "delayed", "version")

    def __init__(self) -> None:
        self._changed: dict[int, Entry] = {}
        self.delayed: dict[int, int] = {}  # by offset: when a message may be delivered for the first time
        self.version = 0  # of the entries of delayed messages

    def __len__(self) -> int:
        return len(self._changed) + len(self.delayed)

    def __contains__(self, offset: int) -> bool:
        return offset in self._changed or offset in self.delayed

    def __iter__(self) -> Iterator[int]:
        yield from self._changed
        yield from self.delayed

    def __getitem__(self, offset: int) -> Entry:
        entry = self._changed.get(offset)
        return entry if entry is not None else self._of_delayed(self.delayed[offset])

    def __setitem__(self, offset: int, entry: Entry) -> None:
        self.delayed.pop(offset, None)
        self._changed[offset] = entry

    def get(self, offset: int) -> Entry | None:
        entry = self._changed.get(offset)
        if entry is None and offset in self.delayed:
            return self._of_delayed(self.delayed[offset])
        return entry

    def pop(self, offset: int) -> Entry:
        entry = self._changed.pop(offset, None)
        return entry if entry is not None else self._of_delayed(self.delayed.pop(offset))

    def delay(self, times: dict[int, int], version: int) -> None:
        """Add delayed messages with their times. The dictionary is kept if there are none yet."""
        self.version = version
        if self.delayed:
            self.delayed.update(times)
        else:
            self.delayed = times

    def changed(self) -> Iterator[tuple[int, Entry]]:
        """All but the delayed messages that were never delivered."""
        return iter(self._changed.items())

    def free(self, count: int) -> None:
        """Remove some, whichever they are."""
        for entries in (self._changed, self.delayed):
            freed = min(count, len(entries))
            for _ in range(freed):
                entries.popitem()
            count -= freed

    def clear(self) -> None:
        self._changed.clear()
        self.delayed = {}

    def _of_delayed(self, not_before_ms: int) -> Entry:
        return Entry(0, self.version, retry_at_ms=not_before_ms)


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
