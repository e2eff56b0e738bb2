"""How many dead letters of a topic there are of each kind of error.

    log 7      block 0           block 1                          the end
    waiting    8192 letters      6000, others were redriven       100
    tally      {timeout: 8192}   {timeout: 5900, refused: 100}    counted each time

Letters never change, and one that was settled does not wait again, unless the redriving group is moved. So the kinds of
a block stay as they are for as long as the same number of its letters wait. A count adds the tallies of whole blocks,
and looks only at the letters of blocks in which something was redriven since, and at those after the last whole block.

`step` is a bounded piece of work, and what it read stays in the index: a caller that has no time to wait for a whole
count takes what was counted so far, and a later count gets further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.dead_letter_index import UNKNOWN, LetterIndex, LetterPiece, read_letters
from driftq.wire.dead_letters import ErrorKind
from driftq.wire.errors import fingerprint
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.dead_letter_index import Place
    from driftq.server.dead_letter_scan import WaitingRange, WaitingWalk

BLOCK_LETTERS = 8_192  # that a tally is of
TENANTS_MAX = 100  # that a kind names
STEP_COST = 40_000  # what one step may cost; looking at an indexed letter is 3
LETTER_COST, KIND_COST, BLOCK_COST, READ_COST = 3, 10, 100, 60

KindKey = tuple[str, str, str]  # group, reason and kind of error


class LetterKind:
    """Letters of one kind: how many, which is the first, when they died, and whose they are."""

    __slots__ = ("count", "example", "first", "first_ms", "last_ms", "tenants")

    def __init__(self) -> None:
        self.count = 0
        self.first: Place = (1 << 62, 0)
        self.example: str | None = None  # the error of the first; None: it has to be read
        self.first_ms, self.last_ms = 1 << 62, 0  # when the earliest and the latest died
        self.tenants: set[str] = set()

    def add(
        self, count: int, first: Place, example: str | None, tenants: Iterable[str], first_ms: int, last_ms: int
    ) -> None:
        self.count += count
        if first < self.first:
            self.first, self.example = first, example
        self.first_ms, self.last_ms = min(self.first_ms, first_ms), max(self.last_ms, last_ms)
        for tenant in tenants:
            if tenant and len(self.tenants) < TENANTS_MAX:
                self.tenants.add(tenant)

    def info(self, group: str, reason: str, error: str) -> ErrorKind:
        first_at, last_at = to_rfc3339(self.first_ms), to_rfc3339(self.last_ms)
        example = self.example if self.example is not None else error
        return ErrorKind(group, reason, error, example, self.count, last_at, first_at, sorted(self.tenants))


class BlockTally(NamedTuple):
    """The kinds of the waiting letters of one block. It holds for as long as its key does."""

    key: tuple[int, ...]  # of the group and its moves, the first waiting letter, and how many wait
    kinds: dict[KindKey, LetterKind]


class _Block(NamedTuple):
    """A block that is being counted."""

    log_id: int
    partition: int
    number: int
    end: int
    tally: BlockTally


class KindCounts:
    """How many letters of a walk there are of each kind of error."""

    def __init__(self, engine: Engine, index: LetterIndex, walk: WaitingWalk) -> None:
        self._engine = engine
        self._index = index
        self._walk = walk
        self._kinds: dict[KindKey, LetterKind] = {}
        self._block: _Block | None = None
        self.counted = 0
        self.is_over = False

    def kinds(self) -> list[ErrorKind]:
        """The most frequent kind first, of what was counted so far. It ends the count."""
        if self._block is not None:
            self._add(self._block.tally)
            self._block = None
        counted = sorted(self._kinds.items(), key=lambda item: (-item[1].count, item[1].first))
        return [kind.info(*key) for key, kind in counted]

    def step(self) -> None:
        cost = 0
        while cost < STEP_COST:
            waiting = self._walk.next_range()
            block = self._block
            if block is not None and (
                waiting is None or (waiting.partition, waiting.first) >= (block.partition, block.end)
            ):
                self._finish_block()
            if waiting is None:
                self.is_over = self._read_examples(cost)
                return
            cost += self._count(waiting) if self._block is not None else self._begin_block(waiting)

    def _begin_block(self, waiting: WaitingRange) -> int:
        """Add the tally of the block that a range begins in; without one, prepare to count it. Returns the cost."""
        number = waiting.first // BLOCK_LETTERS
        end = min((number + 1) * BLOCK_LETTERS, self._walk.end(waiting.partition))
        key = (*self._walk.version(waiting.partition), waiting.first, self._walk.count(waiting, end))
        tally = self._index.tally(waiting.log_id, number)
        if tally is None or tally.key != key:
            self._block = _Block(waiting.log_id, waiting.partition, number, end, BlockTally(key, {}))
            return BLOCK_COST
        self._add(tally)
        self._walk.move_to((waiting.partition, end))
        return BLOCK_COST + KIND_COST * len(tally.kinds)

    def _finish_block(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._add(block.tally)
            if block.end == (block.number + 1) * BLOCK_LETTERS:
                self._index.keep_tally(block.log_id, block.number, block.end, block.tally)

    def _add(self, tally: BlockTally) -> None:
        for key, part in tally.kinds.items():
            kind = self._kinds.setdefault(key, LetterKind())
            kind.add(part.count, part.first, part.example, part.tenants, part.first_ms, part.last_ms)
            self.counted += part.count

    def _count(self, waiting: WaitingRange) -> int:
        """Count some letters of the present block. Returns the cost."""
        assert self._block is not None
        piece = self._index.piece(waiting.log_id, waiting.first, min(waiting.end, self._block.end))
        partition, causes, kinds = waiting.partition, piece.causes, self._block.tally.kinds
        firsts = dict(zip(reversed(causes), range(piece.end - 1, piece.first - 1, -1), strict=True))
        lasts = dict(zip(causes, range(piece.first, piece.end), strict=True))
        counts = Counter(causes)
        if unknown := counts.pop(UNKNOWN, 0):
            self._count_unknown(waiting, piece, kinds)
        for number, count in counts.items():
            cause = piece.table.causes[number]
            first_ms, last_ms = (piece.times[offset - piece.first] for offset in (firsts[number], lasts[number]))
            kind = kinds.setdefault((cause.group, cause.reason, cause.kind), LetterKind())
            kind.add(count, (partition, firsts[number]), cause.error, (cause.tenant,), first_ms, last_ms)
        self._walk.move_to((partition, piece.end))
        return BLOCK_COST + LETTER_COST * len(causes) + READ_COST * (piece.read + unknown)

    def _count_unknown(self, waiting: WaitingRange, piece: LetterPiece, kinds: dict[KindKey, LetterKind]) -> None:
        letters = [
            letter
            for offset, cause in enumerate(piece.causes, piece.first)
            if cause == UNKNOWN
            for letter in read_letters(self._engine, waiting.log_id, waiting.partition, offset, offset + 1, 1)
        ]
        for letter in letters:
            origin, place = letter.origin, (letter.partition, letter.offset)
            kind = kinds.setdefault((origin.group, origin.reason, fingerprint(origin.last_error)), LetterKind())
            kind.add(1, place, origin.last_error, (letter.tenant,), letter.at_ms, letter.at_ms)

    def _read_examples(self, cost: int) -> bool:
        """Read the first letters of kinds whose texts are not in the index. True when all were."""
        for (_, _, error), kind in self._kinds.items():
            if kind.example is None:
                if cost >= STEP_COST:
                    return False
                cost += 5 * READ_COST
                partition, offset = kind.first
                log_id = self._walk.topic.log_ids[partition]
                letters = list(read_letters(self._engine, log_id, partition, offset, offset + 1, 1))
                kind.example = letters[0].origin.last_error if letters else error
        return True
