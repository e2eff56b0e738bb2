"""Folds what is left of a damaged folder into a history that fits together again.

The rule: a frame behind a hole is kept if all of its facts fit; if one does not, the whole frame is left out and named.
Where a log continues behind its end, its own files are asked for the missing records; what they do not have becomes
`RecordsLost`, so that no offset is given out twice. The outcome is an ordinary history: the core folds it as any other.

`Salvager` decides and remembers what it did; it writes nothing. `repair.repair` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driftq.core.broker import Broker
from driftq.core.model import facts as f
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.snapshot_facts import NumbersState
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.repair.fact_fit import Made, ahead, as_known, passed_over, why_not
from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import Disk, ReadOnlyDisk
from driftq.storage.log_store import MemoryLogStore
from driftq.storage.segments import SegmentLogStore
from driftq.wire import records

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.storage.data_folder import DataFolder

FAR = 1 << 62
READ_BYTES = 1 << 20
FENCES_SKIPPED = 1_000_000  # fences of lost effects must not be given out again


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets [first, end) of a log."""

    log_id: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A frame that no longer fits."""

    lsn: int
    facts: tuple[f.Fact, ...]
    reason: str


@dataclass(slots=True)
class Losses:
    """What is gone, what came back, and what no longer fits."""

    holes: list[tuple[int, int]] = field(default_factory=list)
    lost: list[Stretch] = field(default_factory=list)
    saved: list[Stretch] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.holes or self.lost or self.left_out)


class StartOver(Exception):
    """A frame failed half-way through its fold: fold again from the start, without it."""

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(f"lsn {lsn}: {reason}")
        self.lsn = lsn
        self.reason = reason


class LogFiles:
    """All logs as their files have them. Changes nothing."""

    def __init__(self, disk: Disk, folder: DataFolder) -> None:
        self._disk = disk
        self._folder = folder
        self._store = SegmentLogStore(
            ReadOnlyDisk(disk), folder.logs, store=folder.store, cache_bytes=4 << 20, open_files=16
        )

    def ids(self) -> list[int]:
        return sorted(int(name) for name in self._disk.list(self._folder.logs) if name.isascii() and name.isdigit())

    def end(self, log_id: int) -> int:
        """The offset behind the last record in the files, whatever the journal says; 0 if there is none."""
        self._store.restore(log_id, 0, FAR)
        return max((span.end_offset for span in self._store.spans(log_id)), default=0)

    def batches(self, log_id: int, start: int, end: int) -> Iterator[bytes | CorruptLog]:
        """What a broker that knows this log as [start, end) can serve, and what it cannot."""
        self._store.restore(log_id, start, end)
        offset = start
        while offset < end:
            try:
                found = self._store.read(log_id, offset, end, READ_BYTES)
            except CorruptLog as error:
                yield error
                offset = error.end_offset
                continue
            for batch in found:
                header = records.read_header(batch)
                if header.first_offset > offset or not records.verify(batch):
                    yield CorruptLog(log_id, offset, self._folder.logs, 0, "not what was written", header.end_offset)
                else:
                    yield batch
                offset = header.end_offset

    def read(self, log_id: int, offset: int, end_offset: int) -> Iterator[bytes | Stretch]:
        """The batches in [offset, end_offset), whatever the journal says, and what is missing between them."""
        self._store.restore(log_id, 0, FAR)
        while offset < end_offset:
            try:
                batch = self._store.read(log_id, offset, end_offset, 1)[0]
                header = records.read_header(batch)
                upto = header.end_offset
                is_whole = header.first_offset == offset and upto <= end_offset and records.verify(batch)
            except CorruptLog as error:
                upto, is_whole = error.end_offset, False
            upto = min(upto, end_offset)
            yield batch if is_whole else Stretch(log_id, offset, upto)
            offset = upto

    def close(self) -> None:
        self._store.close()


class Salvager:
    """Folds frames in order; says for each what to write in its place."""

    def __init__(self, files: LogFiles, without: dict[int, str]) -> None:
        self.broker = new_broker()
        self.losses = Losses()
        self._files = files
        self._without = without  # frames that are known not to fit
        self._holed = False

    def place(self, frame: bytes) -> None:
        """A frame of the snapshot that everything starts from."""
        for fact in decode(frame):
            self.broker.apply(fact)

    def hole(self, first_lsn: int, last_lsn: int) -> bytes:
        """Frames are lost here: what to write for each of them."""
        self._holed = True
        self.losses.holes.append((first_lsn, last_lsn))
        return encode([f.HoleMade(first_lsn, last_lsn)])

    def frame(self, lsn: int, frame: bytes) -> bytes:
        """What to write for a frame that is left: itself, more, or the note that it does not fit."""
        facts = decode(frame)
        reason = self._without.get(lsn) or (self._misfit(facts) if self._holed else None)
        if reason is not None:
            self._holed = True
            self.losses.left_out.append(LeftOut(lsn, tuple(facts), reason))
            return encode([f.HoleMade(lsn, lsn)])
        try:
            if self._holed:
                return encode(list(self._fold(facts)))
            for fact in facts:
                self.broker.apply(fact)
        except Exception as error:  # the fold stopped half-way: whatever it was, the frame does not fit
            raise StartOver(lsn, f"{type(error).__name__}: {error}") from error
        return frame

    def _misfit(self, facts: Sequence[f.Fact]) -> str | None:
        made = Made()
        for fact in facts:
            reason = why_not(self.broker.state, fact, made)
            if reason is not None:
                return reason
            made.note(fact)
        return None

    def _fold(self, facts: Sequence[f.Fact]) -> Iterator[f.Fact]:
        """Fold, one by one: what comes next is judged by what was folded before it."""
        for each in self._in_order(facts):
            self.broker.apply(each)
            yield each

    def _in_order(self, facts: Sequence[f.Fact]) -> Iterator[f.Fact]:
        state = self.broker.state
        for fact in facts:
            yield from ahead(state, fact, self._fill)
            for known in as_known(state, fact):
                yield from passed_over(state, known)
                yield known

    def _fill(self, log: Log, offset: int) -> Iterator[f.Fact]:
        """Bring a log's end up to an offset: with the records that its files have, and with the news for the others."""
        if log.log_id == f.STAGING_LOG:
            # Without the stage it belongs to, a staged batch can never be published.
            missing: Iterator[bytes | Stretch] = iter((Stretch(log.log_id, log.end, offset),))
        else:
            missing = self._files.read(log.log_id, log.end, offset)
        for found in missing:
            if isinstance(found, Stretch):
                self.losses.lost.append(found)
                yield f.RecordsLost(found.log_id, found.first_offset, found.end_offset)
                continue
            header = records.read_header(found)
            size = sum(len(record.value) + len(record.key) for record in records.unpack(found, header))
            self.losses.saved.append(Stretch(log.log_id, header.first_offset, header.end_offset))
            yield f.Appended(log.log_id, header.first_offset, header.count, size, header.at_ms, found)

    def closing(self, damaged: list[Stretch]) -> Iterator[bytes]:
        """What to add at the end: records that only the files have, records that they have no longer, and numbers that
        may have been given out."""
        state = self.broker.state
        if self._holed:
            for log_id in sorted(state.logs.keys() & set(self._files.ids()) - {f.STAGING_LOG}):
                end = self._files.end(log_id)
                if end > state.logs[log_id].end:
                    for fact in self._fill(state.logs[log_id], end):
                        self.broker.apply(fact)
                        yield encode([fact])
            yield encode([self._numbers()])
        for stretch in damaged:
            fact = f.RecordsLost(stretch.log_id, stretch.first_offset, stretch.end_offset)
            self.losses.lost.append(stretch)
            self.broker.apply(fact)
            yield encode([fact])

    def _numbers(self) -> NumbersState:
        state = self.broker.state
        next_log_id = max([state.next_log_id, *(log_id + 1 for log_id in self._files.ids())])
        numbers = NumbersState(next_log_id, state.next_group_id, state.next_fence + FENCES_SKIPPED, state.last_ms)
        self.broker.apply(numbers)
        return numbers


def new_broker() -> Broker:
    """A broker to fold into: folding asks neither for records nor for chance."""
    return Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())
