"""An index of dead letters: for each, why and when it died, as columns in memory.

    log 7, letters 120 to 124     causes: 3 3 1 3 0          numbers of the table below; 0: read the letter itself
                                  times:  t t t u u          when it died
    causes                        1: (billing, rejected, "bad value")   3: (mailing, max_attempts, "timeout after … s")

Letters never change, so the columns only grow at their end and shrink at their start. Which letters were redriven is
not noted here: the progress of the redriving group knows it (`server.dead_letter_scan`). A cause has its whole text for
the first texts of each kind of error; of a million texts that differ in an id, the others share one cause without it.

1. **Build.** A log is indexed at its first use after a start, a slice at a time, from the log store (`piece`).
2. **Keep.** From then on durable facts extend and trim the columns (`observe`). Columns that were not used for a while
   are not extended: what came then is read from the log at the next use.
3. **Bound.** Twelve bytes a letter, for at most `letters_max` letters, and `texts_bytes_max` of causes. What does not
   fit is read from the log each time. Everything can be dropped and built again: it is a cache.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, json

from driftq.core.model import facts as f
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import fingerprint
from driftq.wire.message import BAD_HEAD, read_head
from driftq.wire.records import read_header, unpack

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.dead_letter_kinds import BlockTally
    from driftq.wire.message import DeadLetter, Head
    from driftq.wire.records import Record

LETTERS_MAX = 5_000_000
TEXTS_BYTES_MAX = 64 << 20
CAUSE_COST_BYTES = 250  # what a cause costs in addition to its texts
PIECE_LETTERS = 20_000  # that one step looks at
SLICE_LETTERS = 400  # that one step reads from the log
SLICE_BYTES = 1 << 20
UNUSED_MS = 60_000  # columns that were not used for this long make room for others, and are not extended
KIND_TEXTS_MAX = 10_000  # whole texts of one kind of error that are kept, in half of the memory for texts

TALLY_KINDS_MAX = 200  # a tally of more kinds is not kept

UNKNOWN = 0  # the cause of a letter that must be read


Place = tuple[int, int]  # partition and offset


class Letter(NamedTuple):
    """A dead letter in its log."""

    log_id: int
    partition: int
    offset: int
    at_ms: int
    record: Record
    head: Head

    @property
    def origin(self) -> DeadLetter:
        assert self.head.dlq is not None
        return self.head.dlq

    @property
    def tenant(self) -> str:
        return self.head.envelope.tenant_id if self.head.envelope is not None else ""


class Cause(NamedTuple):
    """Why a letter died, for which group, and whose it is."""

    group: str
    reason: str
    kind: str  # of the error: its fingerprint
    tenant: str
    error: str | None  # the whole text; None: one of many of this kind


class CauseTable:
    """Causes by number. Numbers are valid for this table only."""

    __slots__ = ("_bytes_max", "_many", "_size_bytes", "_text_counts", "_texts", "causes", "is_full")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._texts: dict[tuple[str, str, str, str], int] = {}  # group, reason, error, tenant: the number of a cause
        self._text_counts: Counter[tuple[str, str, str, str]] = Counter()  # by group, reason, kind, tenant
        self._many: dict[tuple[str, str, str, str], int] = {}  # the cause of all further texts of such a kind
        self.causes: list[Cause] = [Cause("", "", "", "", None)]  # the first stands for UNKNOWN
        self.is_full = False

    def number(self, group: str, reason: str, error: str, tenant: str) -> int:
        """The number of a cause, new or known; UNKNOWN if the table is full."""
        text = (group, reason, error, tenant)
        number = self._texts.get(text)
        if number is not None:
            return number
        kind = (group, reason, fingerprint(error), tenant)
        if self._text_counts[kind] < KIND_TEXTS_MAX and 2 * self._size_bytes < self._bytes_max:
            number = self._add(Cause(*kind, error))
            if number != UNKNOWN:
                self._texts[text] = number
                self._text_counts[kind] += 1
            return number
        if kind not in self._many:
            self._many[kind] = self._add(Cause(*kind, None))
        return self._many[kind]

    def _add(self, cause: Cause) -> int:
        size_bytes = CAUSE_COST_BYTES + sum(len(text) for text in cause if text)
        if self._size_bytes + size_bytes > self._bytes_max:
            self.is_full = True
            return UNKNOWN
        self._size_bytes += size_bytes
        self.causes.append(cause)
        return len(self.causes) - 1


class LetterPiece(NamedTuple):
    """Neighbouring letters of one log. It may be empty: then `read` letters were indexed, and the next call comes
    nearer to the letters that were asked for."""

    first: int
    causes: array[int]
    times: array[int]
    table: CauseTable
    read: int  # letters that were read from the log

    @property
    def end(self) -> int:
        return self.first + len(self.causes)


class _Columns:
    """The letters [first, end) of one log."""

    __slots__ = ("causes", "first", "tallies", "times", "unknown", "used_ms")

    def __init__(self, first: int, used_ms: int) -> None:
        self.first = first
        self.causes = array("I")
        self.times = array("q")
        self.unknown = 0  # letters that must be read
        self.used_ms = used_ms
        self.tallies: dict[int, BlockTally] = {}  # by number of a block

    @property
    def end(self) -> int:
        return self.first + len(self.causes)

    def add(self, cause: int, at_ms: int) -> None:
        self.causes.append(cause)
        self.times.append(at_ms)
        self.unknown += cause == UNKNOWN

    def trim(self, start: int) -> int:
        """Drop the letters below `start`; returns how many."""
        count = max(0, min(start - self.first, len(self.causes)))
        self.unknown -= self.causes[:count].count(UNKNOWN)
        del self.causes[:count], self.times[:count]
        self.first = max(self.first, start)
        if count:
            self.tallies.clear()
        return count


class LetterIndex:
    """The index of one engine's dead letters."""

    def __init__(self, engine: Engine, letters_max: int = LETTERS_MAX, texts_bytes_max: int = TEXTS_BYTES_MAX) -> None:
        self._engine = engine
        self._letters_max = letters_max
        self._texts_bytes_max = texts_bytes_max
        self._table = CauseTable(texts_bytes_max)
        self._logs: dict[int, _Columns] = {}
        self._letters = 0  # in all columns
        self._folds: dict[type[f.Fact], Callable[[f.Fact], None]] = {
            f.Appended: self._appended,  # type: ignore[dict-item]
            f.Trimmed: self._trimmed,  # type: ignore[dict-item]
            f.TopicDeleted: self._topic_deleted,  # type: ignore[dict-item]
        }
        engine.sequencer.observers.append(self.observe)

    @property
    def letters(self) -> int:
        """How many letters are in memory."""
        return self._letters

    # --- read ---

    def piece(self, log_id: int, first: int, end: int) -> LetterPiece:
        """Some of the letters [first, end), from `first` on. They are durable. Bounded work: what is not indexed yet is
        read in slices."""
        columns = self._columns(log_id, first)
        read = 0
        if first >= columns.end:
            if not self._has_room():
                return self._read_piece(log_id, first, end)
            read = self._extend(log_id, columns, end)
        low = first - columns.first
        count_max = SLICE_LETTERS if columns.unknown else PIECE_LETTERS
        high = min(len(columns.causes), end - columns.first, low + count_max)
        return LetterPiece(first, columns.causes[low:high], columns.times[low:high], self._table, read)

    def _columns(self, log_id: int, first: int) -> _Columns:
        """The columns of a log. They begin where the first search did; an earlier one builds them again."""
        now_ms = self._engine.now_ms()
        columns = self._logs.get(log_id)
        if columns is not None and first < columns.first:
            self._forget(log_id)
            columns = None
        if columns is None:
            columns = self._logs[log_id] = _Columns(first, now_ms)
        columns.used_ms = now_ms
        return columns

    def _has_room(self) -> bool:
        if self._letters < self._letters_max:
            return True
        unused_ms = self._engine.now_ms() - UNUSED_MS
        for log_id in [log_id for log_id, columns in self._logs.items() if columns.used_ms < unused_ms]:
            self._forget(log_id)
        return self._letters < self._letters_max

    def _extend(self, log_id: int, columns: _Columns, end: int) -> int:
        """Index the next letters of a log; returns how many."""
        before = len(columns.causes)
        room = min(SLICE_LETTERS, self._letters_max - self._letters, end - columns.end)
        for cause, at_ms in self._read(log_id, columns.end, columns.end + room):
            columns.add(cause, at_ms)
        read = len(columns.causes) - before
        self._letters += read
        return read

    def _read_piece(self, log_id: int, first: int, end: int) -> LetterPiece:
        """A piece that is not kept."""
        causes, times = array("I"), array("q")
        for cause, at_ms in self._read(log_id, first, min(end, first + SLICE_LETTERS)):
            causes.append(cause)
            times.append(at_ms)
        return LetterPiece(first, causes, times, self._table, len(causes))

    def _read(self, log_id: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Cause and time of the letters from `first` on, at least one. Damaged ones are UNKNOWN: a caller that reads
        them finds the damage."""
        try:
            batches = self._engine.read(log_id, first, end, SLICE_BYTES)
        except CorruptLog as error:
            yield from ((UNKNOWN, 0) for _ in range(first, min(end, error.end_offset)))
            return
        for batch in batches:
            header = read_header(batch)
            low, high = max(0, first - header.first_offset), min(header.count, end - header.first_offset)
            for record in unpack(batch, header, first=low, count=high - low):
                yield self._number(record.head), header.at_ms

    def _number(self, head: bytes) -> int:
        try:
            letter = _decode(head)
        except BAD_HEAD:
            return UNKNOWN
        origin = letter.dlq
        if origin is None:
            return UNKNOWN
        tenant = letter.envelope.tenant_id if letter.envelope is not None else ""
        return self._table.number(origin.group, origin.reason, origin.last_error, tenant)

    # --- tallies of blocks ---

    def tally(self, log_id: int, block: int) -> BlockTally | None:
        columns = self._logs.get(log_id)
        return columns.tallies.get(block) if columns is not None else None

    def keep_tally(self, log_id: int, block: int, end: int, tally: BlockTally) -> None:
        """Keep the tally of a block that ends at `end`, if its letters are in memory."""
        columns = self._logs.get(log_id)
        if columns is not None and end <= columns.end and len(tally.kinds) <= TALLY_KINDS_MAX:
            columns.tallies[block] = tally

    # --- keep up with durable facts ---

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        if not self._logs:
            return
        for fact in facts:
            fold = self._folds.get(type(fact))
            if fold is not None:
                fold(fact)

    def _appended(self, fact: f.Appended) -> None:
        """Columns that are still being built, that had no room or are not used get these letters from the log."""
        columns = self._logs.get(fact.log_id)
        if columns is None or fact.first_offset != columns.end or self._letters + fact.count > self._letters_max:
            return
        if fact.at_ms - columns.used_ms > UNUSED_MS:
            return
        for record in unpack(fact.batch):
            columns.add(self._number(record.head), fact.at_ms)
        self._letters += fact.count

    def _trimmed(self, fact: f.Trimmed) -> None:
        columns = self._logs.get(fact.log_id)
        if columns is not None:
            self._letters -= columns.trim(fact.start_offset)
            self._renew_table()

    def _topic_deleted(self, fact: f.TopicDeleted) -> None:
        for log_id in fact.log_ids:
            if log_id in self._logs:
                self._forget(log_id)
                self._renew_table()

    def _forget(self, log_id: int) -> None:
        self._letters -= len(self._logs.pop(log_id).causes)

    def _renew_table(self) -> None:
        """A full table may hold causes of letters that are gone: build the index again."""
        if self._table.is_full:
            self._table = CauseTable(self._texts_bytes_max)
            self._logs.clear()
            self._letters = 0


class _LetterOrigin(Struct):
    """The fields of `wire.message.DeadLetter` that are indexed."""

    group: str
    reason: str
    last_error: str


class _LetterEnvelope(Struct):
    tenant_id: str = ""


class _LetterHead(Struct):
    envelope: _LetterEnvelope | None = None
    dlq: _LetterOrigin | None = None


_decode = json.Decoder(_LetterHead).decode


def read_letters(engine: Engine, log_id: int, partition: int, first: int, end: int, bytes_max: int) -> Iterator[Letter]:
    """Letters of [first, end), as many as `bytes_max` allows and at least one, if there is one."""
    for batch in engine.read(log_id, first, end, bytes_max):
        header = read_header(batch)
        low, high = max(0, first - header.first_offset), min(header.count, end - header.first_offset)
        for offset, record in enumerate(unpack(batch, header, first=low, count=high - low), header.first_offset + low):
            yield Letter(log_id, partition, offset, header.at_ms, record, read_head(record.head))
