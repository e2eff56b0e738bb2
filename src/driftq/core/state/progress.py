"""A group's progress in one log: a cursor for each lane, and what is pending below it.

For the group, every offset of the log is in exactly one state:

    0        floor                      cursor          end
    |settled  |  h h s r s s w h s s s s |  fresh ...     |
    fresh     at or above the cursor of its lane: never delivered
    ready     (r) delivered, but given back before a client saw it: counts as fresh
    held      (h) under a lease
    resting   (w) waits for its next attempt: in backoff, given back with a delay, or delayed by its producer
    settled   (s) below the floor, or in `settled`: done for this group, permanently

            lease           settle
    fresh ---------> held ---------> settled
      ^    lease   ^  |  fail, release (sent), lease lost
      |  (ready)   |  v
      +-- release  resting -------> settled (acked late, dead-lettered, cancelled)
          (unsent)

A claim of a thousand fresh messages costs one lease and one range in `held`. Only a message with a history of its own
(it failed, was given back or delayed) has an `Entry`, and is then never in `held`. A group that acks in order needs no
memory per message. The methods fold facts; `core.transitions.claim_selection` decides what a claim gets.

No operation walks through everything that is pending: a lease knows the ranges that it was given (`held_by`), and the
timers of leases and retries are queues in order of time (`core.state.timer_queue`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from driftq.core.model.facts import LaneKey
from driftq.core.model.ranges import Range, RangeSet
from driftq.core.state.held_ranges import HeldRanges
from driftq.core.state.leases import DeadOffsets, Entries, Entry, Lease
from driftq.core.state.timer_queue import TimerQueue

if TYPE_CHECKING:
    from driftq.core.model.facts import Extended, Failed, FailureExplained, Leased, Released
    from driftq.core.model.job_facts import MadeDue
    from driftq.core.model.snapshot_facts import CursorState, EntryState, HeldState, SettledState
    from driftq.core.state.delays import Delays


class MessageState(Enum):
    """The state of an offset for a group. Ready offsets are reported as fresh."""

    FRESH = "never delivered"
    HELD = "held"
    RESTING = "waiting for its next attempt"
    SETTLED = "settled"


class Progress:
    """What one group has done with one log."""

    __slots__ = (
        "cursor", "dead", "entries", "floor", "fresh_version", "group_id", "held", "in_flight", "lane_cursors",
        "last_lease", "lease_timers", "log_id", "ready", "retry_debt", "retry_timers", "settled", "top_version",
        "turns",
    )  # fmt: skip

    def __init__(self, group_id: int, log_id: int, start: int) -> None:
        self.group_id = group_id  # the group, and ...
        self.log_id = log_id  # ... the log that this is the progress of
        self.floor = start  # everything below is settled
        self.cursor = start  # the next fresh offset of the default lane
        self.lane_cursors: dict[LaneKey, int] = {}  # the same for each explicit lane that was delivered from
        # What retries took ahead of their share, in thousandths of a message (0 to 999). It decides who gets the next
        # message, so it is folded from facts and is in the snapshot.
        self.retry_debt = 0
        self.turns: dict[str, int] = {}  # fair topics: when each tenant got a message last; higher is later
        self.settled = RangeSet()  # settled offsets above the floor
        self.ready = RangeSet()  # given back before a client saw them
        self.held = HeldRanges()  # held on their first attempt, as ranges with their leases
        self.dead = DeadOffsets()  # the last dead letters, to recognise late and repeated calls
        self.entries = Entries()  # messages with a history: held again, or resting
        self.in_flight = 0  # held messages, in ranges and in entries
        self.fresh_version = 1  # lease version of a first delivery; rises when the group seeks
        self.top_version = 0  # the highest lease version so far
        self.retry_timers: TimerQueue[tuple[int, int]] = TimerQueue()  # (retry_at_ms, offset) of resting entries
        self.lease_timers: TimerQueue[tuple[int, int, Lease]] = TimerQueue()  # (until_ms, number, lease) that hold some
        self.last_lease = 0  # the number of the last lease: of two that end together the older one comes first

    # --- queries ---

    def state_of(self, offset: int) -> tuple[MessageState, Lease | None, Entry | None]:
        """The state of an offset, its lease (the last one, if it is resting) and its entry."""
        entry = self.entries.get(offset)
        if entry is not None:
            return (MessageState.HELD if entry.held else MessageState.RESTING), entry.lease, entry
        lease = self.held.lease_at(offset)
        if lease is not None:
            return MessageState.HELD, lease, None
        if offset < self.floor or offset in self.settled:
            return MessageState.SETTLED, None, None
        return MessageState.FRESH, None, None

    def is_settled(self, offset: int) -> bool:
        return offset < self.floor or offset in self.settled

    def is_pending(self, offset: int) -> bool:
        """Whether it is held, or waits for its next attempt."""
        return offset in self.entries or self.held.lease_at(offset) is not None

    @property
    def resting(self) -> int:
        """How many entries are not held."""
        return self.retry_timers.count

    def next_ms(self) -> int | None:
        """When a lease ends or a resting message becomes due, whichever is first."""
        lease_ms, retry_ms = self.lease_timers.next_ms(), self.retry_timers.next_ms()
        if lease_ms is None or retry_ms is None:
            return lease_ms if retry_ms is None else retry_ms
        return min(lease_ms, retry_ms)

    def held_by(self, lease: Lease) -> Iterator[int]:
        """The offsets that a lease still holds, in the order in which it got them."""
        for first, end in (lease.run, *lease.more) if lease.run is not None else ():
            entry = self.entries.get(first)
            if entry is not None and entry.held and entry.lease is lease:
                yield first  # an entry is always leased alone
                continue
            for low, high, holder in self.held.overlapping(first, end):
                if holder is lease:
                    yield from range(low, high)

    # --- folding facts ---

    def lease(self, fact: Leased) -> None:
        lease = Lease(fact.owner, fact.token, fact.at_ms, fact.until_ms, fact.ranges[0], fact.ranges[1:])
        self.retry_debt = fact.retry_debt
        entries = self.entries
        for first, end in fact.ranges:
            entry = entries.get(first) if entries else None
            if entry is not None:
                assert end == first + 1 and not entry.held, "an entry is leased alone, and not while held"
                self.retry_timers.remove((entry.retry_at_ms, first))
                entry.attempts += 1
                entry.version += 1
                entry.held, entry.lost = True, False
                entry.lease = lease
                entries[first] = entry
                self.top_version = max(self.top_version, entry.version)
            else:
                self._lease_fresh(first, end, lease, fact.lane)
            lease.live += end - first
            self.in_flight += end - first
        self._start_timer(lease)

    def _lease_fresh(self, first: int, end: int, lease: Lease, lane: tuple[int, str, str, str] | None) -> None:
        if self.ready.count:
            self.ready.discard(first, end)
        self.held.add(first, end, lease)
        if self.fresh_version > self.top_version:
            self.top_version = self.fresh_version
        if lane is not None:
            key = LaneKey(*lane)
            self.lane_cursors[key] = max(self.lane_cursors.get(key, 0), end)
        elif end > self.cursor:
            self.cursor = end
        tenant = lane[3] if lane is not None else ""
        if tenant or self.turns:
            self.turns[tenant] = max(self.turns.values(), default=0) + 1

    def extend(self, fact: Extended) -> None:
        renewed: dict[Lease, Lease] = {}  # messages that share a lease share the new one too
        for first, end in fact.ranges:
            for low, high, old in self.held.cut(first, end):
                self.held.add(low, high, self._renew(renewed, old, fact.until_ms, (low, high)))
            for offset in self.entries_in(first, end):
                entry = self.entries[offset]
                if entry.held and entry.lease is not None:
                    entry.lease = self._renew(renewed, entry.lease, fact.until_ms, (offset, offset + 1))
        for lease in renewed.values():
            if lease.live:
                self._start_timer(lease)

    def _renew(self, renewed: dict[Lease, Lease], old: Lease, until_ms: int, run: Range) -> Lease:
        lease = renewed.get(old)
        if lease is None:
            lease = renewed[old] = Lease(old.owner, old.token, old.at_ms, until_ms, run)
        elif isinstance(lease.more, list):
            lease.more.append(run)
        else:
            lease.more = [run]
        lease.live += run[1] - run[0]
        self._drop(old, run[1] - run[0])
        return lease

    def fail(self, fact: Failed) -> None:
        entry = self._end_attempt(fact.offset)
        entry.error, entry.lost = fact.error, fact.lease_lost
        if fact.lease_lost:
            entry.lease_losses += 1
        else:
            entry.failures += 1
        self._rest(fact.offset, entry, fact.retry_at_ms)

    def explain(self, fact: FailureExplained) -> None:
        entry = self._end_attempt(fact.offset)
        entry.error, entry.lost = fact.error, False
        self._rest(fact.offset, entry, fact.retry_at_ms)

    def release(self, fact: Released) -> None:
        for first, end in fact.ranges:
            if not fact.sent:
                for low, high, lease in self.held.cut(first, end):
                    self.ready.add(low, high)
                    self.in_flight -= high - low
                    self._drop(lease, high - low)
            for offset in self._held_in(first, end):
                entry = self._end_attempt(offset)
                entry.attempts -= 1
                entry.releases += fact.sent
                entry.lease = None
                self._rest(offset, entry, fact.retry_at_ms)

    def make_due(self, fact: MadeDue) -> None:
        """These messages do not wait any longer."""
        for offset in (offset for run in fact.ranges for offset in self.entries_in(*run)):
            self._end_hold(offset, self.entries[offset])
            self._rest(offset, self.entries[offset], fact.at_ms)

    def settle(self, first: int, end: int) -> None:
        """These offsets are done, whatever state they were in."""
        for low, high, lease in self.held.cut(first, end):
            self.in_flight -= high - low
            self._drop(lease, high - low)
        if self.entries:
            for offset in self.entries_in(first, end):
                self._end_hold(offset, self.entries.pop(offset))
        if self.ready.count:
            self.ready.discard(first, end)
        settled = self.settled
        if first <= self.floor:
            self.floor = max(self.floor, end)
            while (lowest := settled.lowest()) is not None and lowest[0] <= self.floor:
                self.floor = max(self.floor, settled.pop_front()[1])
        else:
            settled.add(first, end)

    def dead_letter(self, offset: int) -> None:
        """Settle a message as a dead letter, and remember its last holder."""
        _, lease, _ = self.state_of(offset)
        self.dead.add(offset, *((lease.owner, lease.token) if lease is not None else ("", "")))
        self.settle(offset, offset + 1)

    def clear(self, end: int) -> None:
        """The log is empty: as `trim`, whatever was pending."""
        self._restart(end)
        self.dead.trim(end)

    def trim(self, start: int) -> None:
        """Retention dropped everything below `start`."""
        if start > self.floor:
            self.settle(self.floor, start)
        self.cursor = max(self.cursor, start)
        self.dead.trim(start)

    def forget_lanes(self, lanes: Container[LaneKey]) -> None:
        """Drop the cursors of lanes that are gone; their number would only grow."""
        for key in [key for key in self.lane_cursors if key not in lanes]:
            del self.lane_cursors[key]
        tenants = {key.tenant for key in self.lane_cursors}
        self.turns = {tenant: turn for tenant, turn in self.turns.items() if tenant in tenants}

    def pass_over(self, ranges: Iterable[Range]) -> None:
        """Settle what the group never gets (see `Log.passed_over`)."""
        for first, end in ranges:
            if end > self.floor:
                self.settle(max(first, self.floor), end)

    def delay_all(self, delayed: Iterable[tuple[int, int]], now_ms: int) -> None:
        """New messages must not be delivered before their time. They are given as (time, offset)."""
        waiting = [item for item in delayed if item[0] > now_ms and item[1] >= self.floor]
        self.entries.delay({offset: not_before_ms for not_before_ms, offset in waiting}, self.fresh_version - 1)
        self.retry_timers.extend(waiting)

    def delay_from_start(self, delays: Delays) -> None:
        """The same for those that a group meets at its start, which it takes over."""
        self.entries.delay(delays.times, self.fresh_version - 1)
        self.retry_timers = delays.timers

    def seek(self, offset: int) -> None:
        """Start over at an offset. Lease versions keep rising, so that earlier holders stay fenced off."""
        self._restart(offset)
        self.dead.clear()
        self.lane_cursors.clear()
        self.turns.clear()
        self.retry_debt = 0
        self.fresh_version = self.top_version + 1

    def _restart(self, offset: int) -> None:
        self.held.clear()
        self.entries.clear()
        self.settled.clear()
        self.ready.clear()
        self.retry_timers.clear()
        self.lease_timers.clear()
        self.in_flight = 0
        self.floor = self.cursor = offset

    # --- steps of the folds ---

    def entries_in(self, first: int, end: int) -> list[int]:
        if end - first == 1:
            return [first] if first in self.entries else []
        if end - first < len(self.entries):
            return [offset for offset in range(first, end) if offset in self.entries]
        return sorted(offset for offset in self.entries if first <= offset < end)

    def _held_in(self, first: int, end: int) -> list[int]:
        """Held offsets of a range: in entries and in ranges."""
        offsets = [offset for offset in self.entries_in(first, end) if self.entries[offset].held]
        for low, high, _ in self.held.overlapping(first, end):
            offsets.extend(range(low, high))
        return sorted(offsets)

    def _end_attempt(self, offset: int) -> Entry:
        """Take an offset out of `held` or `entries` and return its entry, a new one after a first attempt."""
        if offset in self.entries:
            entry = self.entries.pop(offset)
        else:
            pieces = self.held.cut(offset, offset + 1)
            assert pieces, f"offset {offset} of log {self.log_id} is not held by group {self.group_id}"
            entry = Entry(1, self.fresh_version, lease=pieces[0][2], held=True)
        self._end_hold(offset, entry)
        return entry

    def _end_hold(self, offset: int, entry: Entry) -> None:
        """An entry ends its attempt or its rest."""
        if not entry.held:
            self.retry_timers.remove((entry.retry_at_ms, offset))
            return
        self.in_flight -= 1
        if entry.lease is not None:
            self._drop(entry.lease, 1)

    def _rest(self, offset: int, entry: Entry, until_ms: int) -> None:
        entry.held = False
        entry.retry_at_ms = until_ms
        self.entries[offset] = entry
        self.retry_timers.add((until_ms, offset))

    def _start_timer(self, lease: Lease) -> None:
        self.last_lease += 1
        lease.number = self.last_lease
        self.lease_timers.add((lease.until_ms, lease.number, lease))

    def _drop(self, lease: Lease, count: int) -> None:
        lease.live -= count
        if lease.live == 0 and lease.number:
            self.lease_timers.remove((lease.until_ms, lease.number, lease))
            lease.run, lease.more, lease.number = None, (), 0  # an entry may keep it for as long as it waits

    # --- snapshots ---

    def restore(self, fact: CursorState) -> None:
        self.floor, self.cursor = fact.floor, fact.cursor
        self.fresh_version, self.top_version = fact.fresh_version, fact.top_version
        for priority, task, label, tenant, cursor in fact.lane_cursors:
            self.lane_cursors[LaneKey(priority, task, label, tenant)] = cursor
        self.turns = dict(fact.turns)
        self.retry_debt = fact.retry_debt
        for first, end in fact.settled:
            self.settled.add(first, end)
        for first, end in fact.ready:
            self.ready.add(first, end)
        for offset, owner, token in fact.dead:
            self.dead.add(offset, owner, token)

    def restore_settled(self, fact: SettledState) -> None:
        self.settled.unpack(fact.firsts, fact.ends)

    def restore_held(self, fact: HeldState) -> None:
        lease = Lease(fact.owner, fact.token, fact.at_ms, fact.until_ms, fact.ranges[0], fact.ranges[1:])
        for first, end in fact.ranges:
            self.held.add(first, end, lease)
            lease.live += end - first
        self.in_flight += lease.live
        self._start_timer(lease)

    def restore_entry(self, fact: EntryState) -> None:
        entry = Entry.restored(fact)
        if not fact.held:
            self._rest(fact.offset, entry, fact.retry_at_ms)
            return
        entry.held = True
        entry.retry_at_ms = fact.retry_at_ms
        self.entries[fact.offset] = entry
        self.in_flight += 1
        if entry.lease is not None:
            entry.lease.live = 1
            entry.lease.run = fact.offset, fact.offset + 1
            self._start_timer(entry.lease)
