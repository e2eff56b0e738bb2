"""What each consumer connection holds, how much more it may take, and which of its leases the broker keeps.

A connection reads messages in the order of delivery. Those it has not settled are its window:

    delivered ──▶ │ oldest │ waiting │ waiting │ … │ ◀── room for `room()` more
                      │         └ kept until the last settlement plus one lease
                      └ runs until it became the oldest plus one lease

1. After a claim, call `ConsumerWindows.deliver` for what the state still holds under its token.
2. Pass every durable frame to `ConsumerWindows.observe`. It finds the windows whose messages ended, on any connection
   and for any reason, and calls their `notify`.
3. After that, and when `next_ms` has come, call `extensions` and send what it returns as `Keep` commands.
4. Claim no more than `room`.

A message that is settled, nacked or given back in time is a settlement. A connection that settles nothing for one lease
gets no extension: the stored leases end by themselves. Extensions are rare: a lease is renewed once less than three
quarters of it are left, all waiting messages together, so a connection causes a few facts per lease at most. No clock,
no I/O: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.facts import ClockSet
from driftq.core.model.ranges import Range, runs
from driftq.core.transitions.expiry import TIMEOUT

if TYPE_CHECKING:
    from driftq.core.state.leases import Lease
    from driftq.core.state.progress import Progress

FIRST_SIZE = 32  # of an adaptive window, until a lease has shown how much the connection settles
_LONG_AGO_MS = -(1 << 62)
BUCKETS = 16  # per lease: how finely settlements are remembered

Index = dict[int, "Run"]  # offset of one log -> the delivery that holds it


class Run:
    """One delivered range. `live` counts what is still held of it; nothing below `first` is."""

    __slots__ = ("end", "first", "index", "live", "partition", "token", "until_ms", "window")

    def __init__(self, window: ConsumerWindow, index: Index, held: c.Held, until_ms: int) -> None:
        self.window = window
        self.index = index
        self.partition = held.partition
        self.first = held.first
        self.end = held.end
        self.token = held.token
        self.until_ms = until_ms  # of its waiting messages; the window knows about the oldest
        self.live = held.end - held.first

    def offsets(self) -> list[int]:
        index = self.index
        return [offset for offset in range(self.first, self.end) if index.get(offset) is self]


class ConsumerWindow:
    """The unsettled messages of one connection. With `prefetch` its size is fixed. Without it the size adapts: 32 or
    more during the first lease, and after that what the connection settled during the last one, at least 1 and at most
    `in_flight_max`. A connection that held nothing for a whole lease starts over."""

    __slots__ = (
        "_began_ms", "_check_ms", "_emptied_ms", "_in_flight_max", "_lease_ms", "_lowest_until_ms", "_oldest",
        "_oldest_since_ms", "_oldest_until_ms", "_prefetch", "_recent", "_recent_count", "_runs", "_settled_ms", "held",
        "keys", "notify",
    )  # fmt: skip

    def __init__(
        self, lease_ms: int, in_flight_max: int, prefetch: int | None = None, notify: Callable[[], None] | None = None
    ) -> None:
        self.held = 0  # unsettled messages
        self.keys: set[tuple[int, int]] = set()  # the (group, log) pairs of which it ever held something
        self.notify = notify or _ignore  # called when messages left the window
        self._lease_ms = lease_ms
        self._in_flight_max = in_flight_max
        self._prefetch = prefetch
        self._began_ms = 0  # the first delivery, or the first after a lease without any
        self._emptied_ms = _LONG_AGO_MS  # when it last held nothing
        self._runs: deque[Run] = deque()  # in order of delivery
        self._oldest: tuple[Run, int] | None = None  # the first unsettled message in order of delivery
        self._oldest_since_ms = 0  # when it became the oldest
        self._oldest_until_ms = 0  # when its lease ends
        self._settled_ms = 0  # the last settlement, or the delivery into an empty window
        self._recent: deque[list[int]] = deque()  # [bucket, settlements] of the last lease
        self._recent_count = 0  # the sum of their settlements
        self._check_ms = 0  # before it no lease needs an extension
        self._lowest_until_ms = 0  # of the waiting messages, as of the last check

    # --- how much ---

    def size(self, now_ms: int) -> int:
        """How many messages this connection may hold."""
        if self._prefetch is not None:
            return self._prefetch
        oldest_bucket = BUCKETS * (now_ms - self._lease_ms) // self._lease_ms + 1
        while self._recent and self._recent[0][0] < oldest_bucket:
            self._recent_count -= self._recent.popleft()[1]
        is_first_lease = now_ms < self._began_ms + self._lease_ms
        is_idle = not self.held and now_ms >= self._emptied_ms + self._lease_ms
        least = FIRST_SIZE if is_first_lease or is_idle else 1
        return min(self._in_flight_max, max(least, self._recent_count))

    def room(self, now_ms: int) -> int:
        return max(0, self.size(now_ms) - self.held)

    # --- what comes and goes ---

    def add(self, index: Index, held: c.Held, until_ms: int, at_ms: int) -> None:
        run = Run(self, index, held, until_ms)
        index.update(dict.fromkeys(range(held.first, held.end), run))
        if not self.held:
            if at_ms >= self._emptied_ms + self._lease_ms:
                self._began_ms = at_ms
            self._settled_ms = max(self._settled_ms, at_ms)
            self._lowest_until_ms = until_ms
        # A reply can come after a settlement that was decided later than its claim.
        self._lowest_until_ms = min(self._lowest_until_ms, until_ms)
        self._check_ms = min(self._check_ms, until_ms - 3 * self._lease_ms // 4)
        self._runs.append(run)
        self.held += run.live
        if self._oldest is None:
            self.advance(at_ms)

    def remove(self, run: Run, settled: int, lost: int, now_ms: int) -> None:
        """Messages of a run ended: the connection settled some and lost some. Then `advance`, once for all runs."""
        run.live -= settled + lost
        self.held -= settled + lost
        if not self.held:
            self._emptied_ms = now_ms
        if settled:
            self._settled_ms = now_ms
            bucket = BUCKETS * now_ms // self._lease_ms
            if self._recent and self._recent[-1][0] == bucket:
                self._recent[-1][1] += settled
            else:
                self._recent.append([bucket, settled])
            self._recent_count += settled

    def set_clock(self, step_ms: int, now_ms: int) -> None:
        """The clock was corrected. What was left of each lease is left still; the silence starts over."""
        for run in self._runs:
            run.until_ms = min(run.until_ms + step_ms, now_ms + self._lease_ms)
        self._oldest_until_ms = min(self._oldest_until_ms + step_ms, now_ms + self._lease_ms)
        self._settled_ms = self._oldest_since_ms = self._began_ms = self._emptied_ms = now_ms
        self._lowest_until_ms = self._check_ms = 0  # recomputed at the next check
        self._recent.clear()
        self._recent_count = 0

    def close(self) -> None:
        """The connection ended. Its leases stay as they are stored."""
        for run in self._runs:
            for offset in run.offsets():
                del run.index[offset]
        self._runs.clear()
        self._oldest = None
        self.held = 0

    def advance(self, now_ms: int) -> None:
        """Find the oldest message. A new one has a full lease from now on, unless the whole window has stalled."""
        if self._oldest is not None and self._oldest[0].index.get(self._oldest[1]) is self._oldest[0]:
            return
        queue = self._runs
        while queue and not queue[0].live:
            queue.popleft()
        if not queue:
            self._oldest = None
            return
        run = queue[0]
        while run.index.get(run.first) is not run:
            run.first += 1
        self._oldest = run, run.first
        self._oldest_until_ms = run.until_ms
        self._oldest_since_ms = now_ms if now_ms < self._settled_ms + self._lease_ms else self._settled_ms
        self._check_ms = min(self._check_ms, run.until_ms - 3 * self._lease_ms // 4)

    # --- whose leases are kept ---

    def next_ms(self) -> int | None:
        """When to call `extensions` again even if nothing happens; None: not before a settlement."""
        end_ms = None
        if self.held and self._settled_ms + self._lease_ms > self._lowest_until_ms:
            end_ms = self._lowest_until_ms
        if self._oldest is not None and self._oldest_since_ms + self._lease_ms > self._oldest_until_ms:
            end_ms = self._oldest_until_ms if end_ms is None else min(end_ms, self._oldest_until_ms)
        return end_ms - self._lease_ms // 4 if end_ms is not None else None

    def extensions(self, now_ms: int) -> list[tuple[int, list[c.Held]]]:
        """The leases to extend, by the time until which they then run."""
        if now_ms < self._check_ms or self._oldest is None:
            return []
        extended: dict[int, list[c.Held]] = {}
        horizon_ms = now_ms + 3 * self._lease_ms // 4
        run, oldest = self._oldest
        end_ms = self._oldest_since_ms + self._lease_ms
        if self._oldest_until_ms <= now_ms:  # it has ended; the sweep will see it
            self._oldest_since_ms = self._oldest_until_ms - self._lease_ms
        elif self._oldest_until_ms < min(end_ms, horizon_ms):
            self._oldest_until_ms = end_ms
            extended[end_ms] = [c.Held(run.partition, oldest, oldest + 1, run.token)]
        end_ms = self._settled_ms + self._lease_ms
        lowest_ms = end_ms
        for run in self._runs:
            waiting = run.live - (run is self._oldest[0])
            if not waiting or run.until_ms <= now_ms:
                continue
            if run.until_ms < min(end_ms, horizon_ms):
                run.until_ms = end_ms
                offsets = run.offsets()
                if run is self._oldest[0]:
                    offsets.remove(oldest)
                held = [c.Held(run.partition, first, end, run.token) for first, end in runs(offsets)]
                extended.setdefault(end_ms, []).extend(held)
            lowest_ms = min(lowest_ms, run.until_ms)
        self._lowest_until_ms = lowest_ms
        if self._oldest_until_ms < self._oldest_since_ms + self._lease_ms:
            lowest_ms = min(lowest_ms, self._oldest_until_ms)
        self._check_ms = lowest_ms - 3 * self._lease_ms // 4
        return list(extended.items())

    def until_ms(self, run: Run, offset: int) -> int:
        """When the lease of a held message ends, as far as the window knows."""
        return self._oldest_until_ms if self._oldest == (run, offset) else run.until_ms


class ConsumerWindows:
    """All windows of a broker, and which of them holds a message."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[int, int], Index] = {}  # (group, log)
        self._windows: set[ConsumerWindow] = set()  # those that were ever delivered something
        self._last_step_ms = 0  # how far the clock was set the last time, as durable facts have it
        self.asking: dict[int, int] = {}  # connections of a group that have room and ask for messages
        self._handlers: dict[type[f.Fact], Callable[[Any, int], Iterable[ConsumerWindow]]] = {
            f.Settled: self._settled,
            f.Failed: self._failed,
            f.Released: self._released,
            f.Trimmed: self._trimmed,
            f.GroupSought: self._sought,
            f.GroupDeleted: self._group_deleted,
            f.TopicDeleted: self._topic_deleted,
            ClockSet: self._clock_set,
        }

    def __bool__(self) -> bool:
        """Whether some window may hold something."""
        return bool(self._indexes)

    def deliver(self, window: ConsumerWindow, progress: Progress, delivered: c.Held, until_ms: int, at_ms: int) -> None:
        """A window gets what it still holds of a delivery: some may have been cancelled before the reply came. If the
        clock was set forward in the meantime, the stored lease has moved with it, and this delivery moves too."""
        key = progress.group_id, progress.log_id
        window.keys.add(key)
        self._windows.add(window)
        index = self._indexes.setdefault(key, {})
        token, partition = delivered.token, delivered.partition
        for first, end, lease in held_under(progress, delivered.first, delivered.end, token):
            moved_ms = lease.until_ms - until_ms
            step_ms = moved_ms if moved_ms == self._last_step_ms > 0 else 0  # else `observe` will move it
            window.add(index, c.Held(partition, first, end, token), until_ms + step_ms, at_ms + step_ms)

    def close(self, window: ConsumerWindow) -> None:
        window.close()
        self._windows.discard(window)
        for key in window.keys:
            if not self._indexes.get(key, True):
                del self._indexes[key]

    def observe(self, facts: list[f.Fact], now_ms: int) -> None:
        """Durable facts: messages that ended leave their windows, which are then notified."""
        moved: dict[ConsumerWindow, None] = {}
        for fact in facts:
            handler = self._handlers.get(type(fact))
            if handler is not None:
                moved.update(dict.fromkeys(handler(fact, now_ms)))
        for window in moved:
            window.notify()

    # --- facts that end a hold ---

    def _settled(self, fact: f.Settled, now_ms: int) -> Iterable[ConsumerWindow]:
        index = self._indexes.get((fact.group_id, fact.log_id))
        if not index:
            return ()
        # A lost lease can make a dead letter. That is not the connection's doing.
        return _take(index, fact.ranges, now_ms, fact.at_ms if fact.how == f.DEAD else None)

    def _failed(self, fact: f.Failed, now_ms: int) -> Iterable[ConsumerWindow]:
        index = self._indexes.get((fact.group_id, fact.log_id))
        if not index:
            return ()
        lost = fact.lease_lost or fact.error == TIMEOUT
        return _take(index, ((fact.offset, fact.offset + 1),), now_ms, _NEVER if lost else None)

    def _released(self, fact: f.Released, now_ms: int) -> Iterable[ConsumerWindow]:
        index = self._indexes.get((fact.group_id, fact.log_id))
        return _take(index, fact.ranges, now_ms, None) if index else ()

    def _trimmed(self, fact: f.Trimmed, now_ms: int) -> Iterable[ConsumerWindow]:
        moved: list[ConsumerWindow] = []
        for (_, log_id), index in self._indexes.items():
            if log_id == fact.log_id:
                moved.extend(_take(index, ((0, fact.start_offset),), now_ms, _NEVER))
        return moved

    def _sought(self, fact: f.GroupSought, now_ms: int) -> Iterable[ConsumerWindow]:
        return self._drop([(fact.group_id, fact.log_id)], now_ms)

    def _group_deleted(self, fact: f.GroupDeleted, now_ms: int) -> Iterable[ConsumerWindow]:
        return self._drop([key for key in self._indexes if key[0] == fact.group_id], now_ms)

    def _topic_deleted(self, fact: f.TopicDeleted, now_ms: int) -> Iterable[ConsumerWindow]:
        deleted = set(fact.log_ids)
        return self._drop([key for key in self._indexes if key[1] in deleted], now_ms)

    def _clock_set(self, fact: ClockSet, now_ms: int) -> Iterable[ConsumerWindow]:
        if fact.at_ms == fact.from_ms:
            return ()
        self._last_step_ms = fact.at_ms - fact.from_ms
        for window in self._windows:
            window.set_clock(self._last_step_ms, now_ms)
        return self._windows

    def _drop(self, keys: list[tuple[int, int]], now_ms: int) -> Iterable[ConsumerWindow]:
        moved: list[ConsumerWindow] = []
        for key in keys:
            index = self._indexes.get(key)
            if index:
                moved.extend(_take(index, ((min(index), max(index) + 1),), now_ms, _NEVER))
        return moved


_NEVER = 1 << 62


def _ignore() -> None:
    pass


def _take(index: Index, ranges: Iterable[Range], now_ms: int, ended_ms: int | None) -> Iterable[ConsumerWindow]:
    """Take offsets out of their windows. A lease that had ended at `ended_ms` was lost; None: all were settled."""
    settled: dict[Run, int] = {}
    lost: dict[Run, int] = {}
    for first, end in ranges:
        offsets: Iterable[int] = range(first, end)
        if end - first > len(index):
            offsets = [offset for offset in index if first <= offset < end]
        for offset in offsets:
            run = index.get(offset)
            if run is None:
                continue
            ended = ended_ms is not None and ended_ms >= run.window.until_ms(run, offset)
            counts = lost if ended else settled
            counts[run] = counts.get(run, 0) + 1
            del index[offset]
    moved: dict[ConsumerWindow, None] = {}
    for run in settled | lost:
        run.window.remove(run, settled.get(run, 0), lost.get(run, 0), now_ms)
        moved[run.window] = None
    for window in moved:
        window.advance(now_ms)
    return moved


def held_under(progress: Progress, first: int, end: int, token: str) -> list[tuple[int, int, Lease]]:
    """What of a range is held under a token, with the lease."""
    held = [(low, high, lease) for low, high, lease in progress.held.overlapping(first, end) if lease.token == token]
    for offset in progress.entries_in(first, end):
        entry = progress.entries[offset]
        if entry.held and entry.lease is not None and entry.lease.token == token:
            held.append((offset, offset + 1, entry.lease))
    return held
