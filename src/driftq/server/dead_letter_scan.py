"""Finding the dead letters of a topic that were not redriven.

A redriven letter stays in its log, settled for the group `driftq.redrive`. So the letters that wait are those which
that group has not settled; ranges that were redriven are skipped without looking at them. Why and when a letter died is
in the index (`server.dead_letter_index`), so a search reads only what it returns.

    WaitingWalk ── ranges of waiting letters ──┬─ LetterSearch   those that a filter admits, read from the log
                                               └─ KindCounts     how many there are of each kind of error

Each `step` is a bounded piece of work: the caller gives other requests a turn between two steps. The end of each log is
taken at the start, so letters that die in the meantime do not prolong a search.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.groups import DEAD_PREFIX, Topic
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.dead_letter_index import UNKNOWN, CauseTable, Letter, LetterIndex, LetterPiece, read_letters
from driftq.storage.cold_segments import ColdRange
from driftq.wire.dead_letters import REDRIVE_GROUP, ErrorKind
from driftq.wire.errors import fingerprint
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine

READ_BYTES = 1 << 20  # of letters, in one step
KIND_TENANTS_MAX = 100  # that a kind of error names
LOOKS_MAX = 40_000  # what one step costs at most; looking at an indexed letter is 1
READ_LOOKS = 60  # reading a letter
RANGE_LOOKS = 40  # starting with a range

Place = tuple[int, int]  # partition and offset
BEFORE_ALL: Place = (0, -1)


class Filter(NamedTuple):
    """A `LetterFilter` with its times parsed."""

    group: str = ""
    error: str = ""
    reason: str = ""
    since_ms: int = 0
    until_ms: int = 2**62
    places: frozenset[Place] | None = None

    def admits_all(self) -> bool:
        """Whether every letter passes, or every one of `places`."""
        return self._replace(places=None) == Filter()

    def admits(self, letter: Letter) -> bool:
        origin = letter.origin
        return self.admits_cause(origin.group, origin.reason, origin.last_error) and (
            self.since_ms <= letter.at_ms < self.until_ms
            and (self.places is None or (letter.partition, letter.offset) in self.places)
        )

    def admits_cause(self, group: str, reason: str, error: str) -> bool:
        return self.group in ("", group) and self.reason in ("", reason) and self.error in error


def dead_topic(state: State, name: str) -> Topic | Rejected:
    """The dead-letter topic of a topic. Its own name works as well."""
    return state.topics.get(dead_name(name)) or no_such_topic(name)


def dead_name(name: str) -> str:
    return name if name.startswith(DEAD_PREFIX) else DEAD_PREFIX + name


def waiting_count(state: State, topic: Topic) -> int:
    """How many dead letters of a topic were not redriven."""
    dead = state.topics.get(DEAD_PREFIX + topic.name)
    if dead is None:
        return 0
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
        self._flags = bytearray()  # by number of a cause: whether the filter may admit it
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
        cost = len(piece.causes) + READ_LOOKS * piece.read
        if UNKNOWN in piece.causes:
            cost += READ_LOOKS * len(admitted)
            admitted = self._check(waiting, piece, admitted)
        end = piece.end
        if len(admitted) > count_max:
            admitted = admitted[:count_max]
            end = admitted[-1] + 1
        places += [(waiting.partition, offset) for offset in admitted]
        return end, cost

    def _check(self, waiting: WaitingRange, piece: LetterPiece, offsets: list[int]) -> list[int]:
        """Read the letters whose cause is not indexed, and drop those that the filter does not admit."""
        return [
            offset
            for offset in offsets
            if piece.causes[offset - piece.first] != UNKNOWN or self._admits(waiting.log_id, waiting.partition, offset)
        ]

    def _admits(self, log_id: int, partition: int, offset: int) -> bool:
        letters = read_letters(self._engine, log_id, partition, offset, offset + 1, 1)
        return any(self._filter.admits(letter) for letter in letters)

    def _flags_of(self, table: CauseTable) -> bytearray:
        if self._table is not table:
            self._table = table
            self._flags = bytearray(b"\1")  # UNKNOWN may be admitted
        for cause in table.causes[len(self._flags) :]:
            self._flags.append(self._filter.admits_cause(cause.group, cause.reason, cause.error))
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


class _Kind:
    """A kind of error, while its letters are counted."""

    __slots__ = ("count", "example", "first", "first_ms", "last_ms", "tenants")

    def __init__(self) -> None:
        self.count = 0
        self.first: Place = (1 << 62, 0)
        self.example = ""  # the error of the first
        self.first_ms, self.last_ms = 1 << 62, 0  # when the earliest and the latest died
        self.tenants: set[str] = set()

    def add(self, count: int, first: Place, error: str, tenant: str, first_ms: int, last_ms: int) -> None:
        self.count += count
        if first < self.first:
            self.first, self.example = first, error
        self.first_ms, self.last_ms = min(self.first_ms, first_ms), max(self.last_ms, last_ms)
        if tenant and len(self.tenants) < KIND_TENANTS_MAX:
            self.tenants.add(tenant)

    def info(self, group: str, reason: str, error: str) -> ErrorKind:
        first_at, last_at = to_rfc3339(self.first_ms), to_rfc3339(self.last_ms)
        return ErrorKind(group, reason, error, self.example, self.count, last_at, first_at, sorted(self.tenants))


class KindCounts:
    """How many letters of a walk there are of each kind of error."""

    def __init__(self, engine: Engine, index: LetterIndex, walk: WaitingWalk) -> None:
        self._engine = engine
        self._index = index
        self._walk = walk
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._fingerprints: dict[str, str] = {}
        self.is_over = False

    def kinds(self) -> list[ErrorKind]:
        """The most frequent kind first."""
        counted = sorted(self._kinds.items(), key=lambda item: (-item[1].count, item[1].first))
        return [kind.info(*key) for key, kind in counted]

    def step(self) -> None:
        looks = 0
        while looks < LOOKS_MAX:
            waiting = self._walk.next_range()
            if waiting is None:
                self.is_over = True
                return
            piece = self._index.piece(waiting.log_id, waiting.first, waiting.end)
            self._count(waiting, piece)
            self._walk.move_to((waiting.partition, piece.end))
            looks += RANGE_LOOKS + 3 * len(piece.causes) + READ_LOOKS * (piece.read + piece.causes.count(UNKNOWN))

    def _count(self, waiting: WaitingRange, piece: LetterPiece) -> None:
        partition, causes = waiting.partition, piece.causes
        firsts = dict(zip(reversed(causes), range(piece.end - 1, piece.first - 1, -1), strict=True))
        lasts = dict(zip(causes, range(piece.first, piece.end), strict=True))
        for number, count in Counter(causes).items():
            if number == UNKNOWN:
                self._read_unknown(waiting, piece)
                continue
            group, reason, error, tenant = piece.table.causes[number]
            first_ms, last_ms = (piece.times[offset - piece.first] for offset in (firsts[number], lasts[number]))
            kind = self._kind(group, reason, error)
            kind.add(count, (partition, firsts[number]), error, tenant, first_ms, last_ms)

    def _read_unknown(self, waiting: WaitingRange, piece: LetterPiece) -> None:
        for offset, cause in enumerate(piece.causes, piece.first):
            if cause == UNKNOWN:
                for letter in read_letters(self._engine, waiting.log_id, waiting.partition, offset, offset + 1, 1):
                    origin, place = letter.origin, (letter.partition, letter.offset)
                    kind = self._kind(origin.group, origin.reason, origin.last_error)
                    kind.add(1, place, origin.last_error, letter.tenant, letter.at_ms, letter.at_ms)

    def _kind(self, group: str, reason: str, error: str) -> _Kind:
        kind_text = self._fingerprints.get(error)
        if kind_text is None:
            kind_text = self._fingerprints[error] = fingerprint(error)
        key = (group, reason, kind_text)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind()
        return kind
