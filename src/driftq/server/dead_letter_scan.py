"""Finding the dead letters of a topic that were not redriven.

A redriven letter stays in its log, settled for the group `driftq.redrive`. So the letters that wait are those which
that group has not settled; ranges that were redriven are skipped without looking at them. Why and when a letter died is
in the index (`server.dead_letter_index`), so a search reads only what it returns.

    WaitingWalk ── ranges of waiting letters ──┬─ LetterSearch   those that a filter admits, read from the log
                                               └─ KindCounts     how many of each kind (`server.dead_letter_kinds`)

Each `step` is a bounded piece of work: the caller gives other requests a turn between two steps. The end of each log is
taken at the start, so letters that die in the meantime do not prolong a search.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.groups import DEAD_PREFIX, Topic
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.dead_letter_index import (
    UNKNOWN,
    Cause,
    CauseTable,
    Letter,
    LetterIndex,
    Place,
    read_letters,
)
from driftq.storage.cold_segments import ColdRange
from driftq.wire.dead_letters import REDRIVE_GROUP
from driftq.wire.errors import MARK, fingerprint

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine

READ_BYTES = 1 << 20  # of letters, in one step
LOOKS_MAX = 40_000  # what one step costs at most; looking at an indexed letter is 1
READ_LOOKS = 60  # reading a letter
RANGE_LOOKS = 40  # starting with a range
READS_MAX = 400  # letters that one step reads to decide about them

NO, YES, READ = range(3)  # whether a filter admits the letters of a cause; READ: that depends on their texts
BEFORE_ALL: Place = (0, -1)


class Filter(NamedTuple):
    """A `LetterFilter` with its times parsed."""

    group: str = ""
    error: str = ""
    kind: str | None = None
    reason: str = ""
    since_ms: int = 0
    until_ms: int = 2**62
    places: frozenset[Place] | None = None

    def admits_all(self) -> bool:
        """Whether every letter passes, or every one of `places`."""
        return self._replace(places=None) == Filter()

    def admits(self, letter: Letter) -> bool:
        origin = letter.origin
        return (
            self.group in ("", origin.group)
            and self.reason in ("", origin.reason)
            and self.error in origin.last_error
            and (self.kind is None or self.kind == fingerprint(origin.last_error))
            and self.since_ms <= letter.at_ms < self.until_ms
            and (self.places is None or (letter.partition, letter.offset) in self.places)
        )

    def verdict(self, cause: Cause) -> int:
        """NO, YES or READ, apart from times and places."""
        if self.group not in ("", cause.group) or self.reason not in ("", cause.reason):
            return NO
        if self.kind not in (None, cause.kind):
            return NO
        if cause.error is not None:
            return YES if self.error in cause.error else NO
        # Of its texts the parts between the marks are known.
        return YES if any(self.error in part for part in cause.kind.split(MARK)) else READ


def dead_topic(state: State, name: str) -> Topic | Rejected:
    """The dead-letter topic of a topic. Its own name works as well."""
    return state.topics.get(dead_name(name)) or no_such_topic(name)


def dead_name(name: str) -> str:
    return name if name.startswith(DEAD_PREFIX) else DEAD_PREFIX + name


def waiting_count(state: State, topic: Topic) -> int:
    """How many dead letters of a topic were not redriven."""
    dead = state.topics.get(DEAD_PREFIX + topic.name)
    return letters_waiting(state, dead) if dead is not None else 0


def letters_waiting(state: State, dead: Topic) -> int:
    """How many letters of a dead-letter topic were not redriven."""
    group = dead.groups.get(REDRIVE_GROUP)
    count = 0
    for partition, log_id in enumerate(dead.log_ids):
        start, end = state.logs[log_id].start, state.logs[log_id].end
        if group is not None:
            progress = group.progress[partition]
            count += max(0, end - max(start, progress.floor) - progress.settled.count)
        else:
            count += end - start
    return count


class WaitingRange(NamedTuple):
    """Neighbouring letters that were not redriven."""

    partition: int
    log_id: int
    first: int
    end: int


class WaitingWalk:
    """The waiting letters of a topic after a place, by partition and offset, a range at a time."""

    def __init__(self, engine: Engine, state: State, topic: Topic, after: Place = BEFORE_ALL) -> None:
        self.topic = topic
        self.after = after
        self._state = state
        self._ends = [engine.durable_end(log_id) for log_id in topic.log_ids]
        self._partition, self._offset = after[0], after[1] + 1

    def next_range(self) -> WaitingRange | None:
        """The next range; None at the end. It is returned again until `move_to`."""
        group = self.topic.groups.get(REDRIVE_GROUP)
        while self._partition < len(self._ends):
            log_id = self.topic.log_ids[self._partition]
            log, end = self._state.logs.get(log_id), self._ends[self._partition]
            if log is not None:
                first = max(self._offset, log.start)
                settled_first = end
                if group is not None:
                    progress = group.progress[self._partition]
                    first = progress.settled.next_outside(max(first, progress.floor))
                    settled = progress.settled.above(first)
                    settled_first = settled[0] if settled is not None else end
                if first < end:
                    return WaitingRange(self._partition, log_id, first, min(end, settled_first))
            self._partition, self._offset = self._partition + 1, 0
        return None

    def count(self, waiting: WaitingRange, end: int) -> int:
        """How many letters wait from the beginning of a range up to `end`, also after the range."""
        group = self.topic.groups.get(REDRIVE_GROUP)
        if group is None:
            return end - waiting.first
        settled = group.progress[waiting.partition].settled
        return end - waiting.first - settled.count_between(waiting.first, end)

    def end(self, partition: int) -> int:
        """Where the walk ends in a partition."""
        return self._ends[partition]

    def version(self, partition: int) -> tuple[int, int]:
        """Changes when letters that were settled may wait again."""
        group = self.topic.groups.get(REDRIVE_GROUP)
        return (group.group_id, group.progress[partition].fresh_version) if group is not None else (0, 0)

    def move_to(self, place: Place) -> None:
        """Continue at this place."""
        self._partition, self._offset = place


class LetterSearch:
    """The letters of a walk that a filter admits."""

    def __init__(self, engine: Engine, index: LetterIndex, walk: WaitingWalk, letter_filter: Filter) -> None:
        self._engine = engine
        self._index = index
        self._filter = letter_filter
        self._walk = walk
        self._named = deque(sorted(place for place in letter_filter.places or () if place > walk.after))
        self._admitted: deque[Place] = deque()  # not read yet
        self._found = walk.after  # the last place that was returned
        self._table: CauseTable | None = None  # that `_flags` belong to
        self._flags = bytearray()  # by number of a cause: NO, YES or READ
        self._is_over = False  # everything is in `_admitted`

    @property
    def is_over(self) -> bool:
        return self._is_over and not self._admitted

    def find(self, count_max: int) -> list[Place]:
        """The next places, at most `count_max`; perhaps none, although there are more."""
        if not self._admitted:
            self._admitted.extend(self._next_places(count_max))
        places = [self._admitted.popleft() for _ in range(min(count_max, len(self._admitted)))]
        self._found = places[-1] if places else self._found
        return places

    def after(self) -> str | None:
        """The cursor of a search that continues after what was found; None if there is nothing more."""
        partition, offset = self._found
        return f"{partition}:{offset}" if not self.is_over else None

    def step(self, count_max: int) -> list[Letter]:
        """Up to `count_max` letters, about `READ_BYTES`; perhaps none yet. A damaged one raises `CorruptLog`."""
        places = self.find(count_max)
        letters: list[Letter] = []
        size_bytes = at = 0
        while at < len(places) and size_bytes < READ_BYTES:
            try:
                at, read = self._read(places, at, READ_BYTES - size_bytes)
            except ColdRange:
                if letters:
                    break
                self._admitted.extendleft(reversed(places))  # they are asked for again
                raise
            letters += read
            size_bytes += sum(len(letter.record.value) + len(letter.record.head) for letter in read)
        self._admitted.extendleft(reversed(places[at:]))
        self._found = places[at - 1] if at else self._found
        return letters

    def _read(self, places: list[Place], at: int, bytes_max: int) -> tuple[int, list[Letter]]:
        """Read a run of neighbours from `places[at]` on. Returns the index after it, and the letters that still
        exist."""
        partition, first = places[at]
        end = at + 1
        while end < len(places) and places[end] == (partition, first + end - at):
            end += 1
        letters = list(
            read_letters(
                self._engine, self._walk.topic.log_ids[partition], partition, first, first + end - at, bytes_max
            )
        )
        if letters and letters[-1].offset + 1 < first + end - at:
            end = at + letters[-1].offset + 1 - first
        return end, letters

    def _next_places(self, count_max: int) -> list[Place]:
        if self._filter.places is not None:
            return self._next_named(count_max)
        places: list[Place] = []
        looks = 0
        while looks < LOOKS_MAX and len(places) < count_max:
            waiting = self._walk.next_range()
            if waiting is None:
                self._is_over = True
                break
            if self._filter.admits_all():
                end = min(waiting.end, waiting.first + count_max - len(places))
                places += [(waiting.partition, offset) for offset in range(waiting.first, end)]
                looks += RANGE_LOOKS + end - waiting.first
            else:
                try:
                    end, cost = self._look(waiting, places, count_max - len(places))
                except ColdRange:
                    if places:
                        break  # the next call asks for it again
                    raise
                looks += RANGE_LOOKS + cost
            self._walk.move_to((waiting.partition, end))
        return places

    def _look(self, waiting: WaitingRange, places: list[Place], count_max: int) -> tuple[int, int]:
        """Add the admitted places of a part of a range, at most `count_max`. Returns where the part ends and what it
        cost."""
        piece = self._index.piece(waiting.log_id, waiting.first, waiting.end)
        flags, low, high = self._flags_of(piece.table), self._filter.since_ms, self._filter.until_ms
        admitted = [
            offset
            for offset, cause, at_ms in zip(range(piece.first, piece.end), piece.causes, piece.times, strict=True)
            if flags[cause] and (cause == UNKNOWN or low <= at_ms < high)
        ]
        cost, end = len(piece.causes) + READ_LOOKS * piece.read, piece.end
        doubtful = [offset for offset in admitted if flags[piece.causes[offset - piece.first]] == READ]
        if doubtful:
            end = doubtful[READS_MAX] if len(doubtful) > READS_MAX else end
            rejected = self._rejected(waiting, doubtful[:READS_MAX])
            admitted = [offset for offset in admitted if offset < end and offset not in rejected]
            cost += READ_LOOKS * min(READS_MAX, len(doubtful))
        if len(admitted) > count_max:
            admitted = admitted[:count_max]
            end = admitted[-1] + 1
        places += [(waiting.partition, offset) for offset in admitted]
        return end, cost

    def _rejected(self, waiting: WaitingRange, offsets: list[int]) -> set[int]:
        """Read letters, neighbours together, and return those that the filter does not admit."""
        rejected = set(offsets)
        at = 0
        while at < len(offsets):
            first, run = offsets[at], at + 1
            while run < len(offsets) and offsets[run] == first + run - at:
                run += 1
            end = first + run - at
            letters = list(read_letters(self._engine, waiting.log_id, waiting.partition, first, end, READ_BYTES))
            rejected.difference_update(letter.offset for letter in letters if self._filter.admits(letter))
            at += (letters[-1].offset + 1 if letters else end) - first
        return rejected

    def _admits(self, log_id: int, partition: int, offset: int) -> bool:
        letters = read_letters(self._engine, log_id, partition, offset, offset + 1, 1)
        return any(self._filter.admits(letter) for letter in letters)

    def _flags_of(self, table: CauseTable) -> bytearray:
        if self._table is not table:
            self._table = table
            self._flags = bytearray((READ,))  # of UNKNOWN
        for cause in table.causes[len(self._flags) :]:
            self._flags.append(self._filter.verdict(cause))
        return self._flags

    def _next_named(self, count_max: int) -> list[Place]:
        """Places that the filter names."""
        places: list[Place] = []
        looks = 0
        while self._named and looks < LOOKS_MAX and len(places) < count_max:
            place = self._named.popleft()
            self._walk.move_to(place)
            waiting = self._walk.next_range()
            looks += RANGE_LOOKS
            if waiting is None or (waiting.partition, waiting.first) != place:
                continue  # redriven, dropped, or never there
            if not self._filter.admits_all():
                looks += READ_LOOKS
                try:
                    if not self._admits(waiting.log_id, *place):
                        continue
                except ColdRange:
                    self._named.appendleft(place)  # it is asked for again when it is here
                    if places:
                        break
                    raise
            places.append(place)
        self._is_over = not self._named
        return places
