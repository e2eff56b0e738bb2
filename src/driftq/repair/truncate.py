"""Truncate: cut the journal at the first damage, so that the folder opens with exactly the prefix before it.

    snapshot (lsn b)    journal  b+1 ..... k | k+1 ???? .... n
                                 kept        | cut: damaged frames, and the readable ones after them

What is kept is the newest readable snapshot and the frames after it up to the first damage: a state that the broker
once had. Damage below the snapshot costs nothing. `plan` reads and changes nothing; `execute` does what the plan says:

    1. Write the readable records among what is cut to `journal.salvaged-<n>/` (see `salvage`).
    2. Write the kept frames to a new journal, `journal.repaired/`.
    3. Rename `journal/` to `journal.damaged-<n>/`, then `journal.repaired/` to `journal/`.
    4. Rename damaged snapshots to `*.damaged-<n>`, and open the folder once to prove that it opens. A log file that is
       longer than the kept journal is cut when the broker next uses it.

A crash before step 3 leaves the folder as it was; one between the two renames is completed by the next `execute`.
Nothing is deleted. The caller holds the folder's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.folder_storage import StorageOptions, open_folder
from driftq.repair import salvage
from driftq.repair.folder_reader import (
    Damage,
    FolderFold,
    JournalFrame,
    foreign_snapshots,
    read_journal,
    require_folder,
)
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal, CorruptSnapshot, Damaged, FormatTooNew
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal_files import load_segment, load_watermark, segment_numbers

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk

_FRAMES_PER_BLOCK = 32


class NothingLeft(Damaged):
    """Neither a snapshot nor the first frame of the journal is readable: there is no prefix to keep."""


@dataclass(frozen=True, slots=True)
class CutRecords:
    """Records of one log that are cut."""

    log: str
    first_offset: int
    end_offset: int
    readable: int  # how many of them salvage can write to files


@dataclass(frozen=True, slots=True)
class TruncatePlan:
    """What a truncation keeps and what it cuts."""

    folder: DataFolder
    damage: Damage | None  # the first in the journal; None: the journal is not damaged
    base: snapshots.Snapshot | None  # the snapshot that is kept
    damaged_snapshots: tuple[CorruptSnapshot, ...]  # newer ones, which are put aside
    kept_lsn: int
    last_lsn: int  # the last lsn that is known to have existed
    records: tuple[CutRecords, ...] = ()
    created: tuple[str, ...] = ()  # topics and streams that were created after `kept_lsn`
    first_offsets: dict[int, int] | None = None  # by log: where the cut begins
    half_done: bool = False  # an earlier truncation was interrupted between its two renames

    @property
    def is_needed(self) -> bool:
        return self.damage is not None or bool(self.damaged_snapshots) or self.half_done

    def lines(self) -> list[str]:
        """What goes, one line each."""
        if self.last_lsn <= self.kept_lsn:
            return []
        lines = [f"cut: every change of lsn {self.kept_lsn + 1}..{self.last_lsn}"]
        lines += [f"cut: {name}, created in this part" for name in self.created]
        for cut in self.records:
            count = cut.end_offset - cut.first_offset
            lines.append(
                f"cut: {cut.log}, offsets {cut.first_offset}..{cut.end_offset - 1}: {count} records,"
                f" {cut.readable} of them readable"
            )
        return lines


@dataclass(frozen=True, slots=True)
class Truncated:
    """What a truncation did."""

    tail_lsn: int
    kept_as: tuple[str, ...]  # where the damaged files are now
    salvaged: tuple[salvage.SalvagedLog, ...]
    salvaged_to: str  # empty: nothing was salvaged


def plan(disk: Disk, path: str) -> TruncatePlan:
    """What truncating this folder would keep and cut. Raises `NothingLeft` if it would leave an empty folder."""
    folder = require_folder(disk, path)
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    base_lsn = newest.base_lsn()
    if not disk.exists(folder.journal) and disk.exists(_work_folder(folder)):
        return TruncatePlan(folder, None, newest.snapshot, newest.damaged, base_lsn, base_lsn, half_done=True)
    if newest.snapshot is not None:
        for error in foreign_snapshots(disk, folder, [newest.snapshot]):
            raise error
    fold, damage = _fold_prefix(disk, folder, newest.snapshot)
    kept_lsn, broker = fold.lsn, fold.broker
    if damage is None:
        return TruncatePlan(folder, None, newest.snapshot, newest.damaged, kept_lsn, kept_lsn)
    first_offsets = {log_id: log.end for log_id, log in broker.state.logs.items()}
    readable = salvage.ReadableRecords(disk, folder, first_offsets)
    readable.close()
    watermark = load_watermark(disk, folder.journal, folder.store)
    last_lsn = max(kept_lsn, readable.last_lsn, watermark.lsn if watermark else 0)
    if not kept_lsn and last_lsn:
        raise NothingLeft(
            f"{damage.file}, byte {damage.position}: {damage.reason}. No snapshot is readable and the journal is "
            "damaged at its start, so nothing can be kept. Restore a backup, or write the readable records to files "
            "with `driftq repair salvage DIR --to FOLDER`."
        )
    return TruncatePlan(
        folder,
        damage,
        newest.snapshot,
        newest.damaged,
        kept_lsn,
        last_lsn,
        tuple(_cut_records(readable, first_offsets)),
        tuple(_created(readable, broker)),
        first_offsets,
    )


def _fold_prefix(
    disk: Disk, folder: DataFolder, base: snapshots.Snapshot | None, end_lsn: int | None = None
) -> tuple[FolderFold, Damage | None]:
    """The snapshot and the frames after it up to the first damage, or to `end_lsn`; and the first damage of the
    journal, perhaps below the snapshot."""
    fold = FolderFold(disk, folder, base)
    first_damage: Damage | None = None
    for item in read_journal(disk, folder, fold.base_lsn):
        if isinstance(item, Damage):
            first_damage = first_damage or item
            continue
        if item.lsn - 1 == end_lsn:
            break
        damage = fold.take(item)
        if fold.is_spoilt:
            return _fold_prefix(disk, folder, base, item.lsn - 1)[0], damage
        if damage is not None:
            return fold, first_damage or damage
    return fold, first_damage


def _cut_records(readable: salvage.ReadableRecords, first_offsets: dict[int, int]) -> Iterator[CutRecords]:
    for log_id, ranges in sorted(readable.ranges.items()):
        end_offset = max(end for _, end in ranges)
        yield CutRecords(readable.names.log(log_id), first_offsets.get(log_id, 0), end_offset, ranges.count)


def _created(readable: salvage.ReadableRecords, broker: Broker) -> Iterator[str]:
    state, names = broker.state, readable.names
    for topic in dict.fromkeys(topic for log_id, (topic, _) in names.partitions.items() if log_id not in state.logs):
        yield f"topic {topic}"
    for log_id, path in names.paths.items():
        if log_id not in state.logs:
            yield f"stream {path}"


def execute(disk: Disk, plan: TruncatePlan) -> Truncated:
    """Truncate as planned, and open the folder once to prove that it opens."""
    folder = plan.folder
    salvaged: list[salvage.SalvagedLog] = []
    salvaged_to = ""
    segment_bytes = _segment_bytes(disk, folder, _work_folder(folder) if plan.half_done else folder.journal)
    kept_as: list[str] = []
    if plan.damage is not None:
        readable = salvage.ReadableRecords(disk, folder, plan.first_offsets)
        try:
            if readable.ranges:
                salvaged_to = _unused(disk, f"{folder.journal}.salvaged-")
                salvaged = salvage.write(disk, readable, salvaged_to)
        finally:
            readable.close()
        _write_prefix(disk, plan, segment_bytes)
        kept_as.append(_unused(disk, f"{folder.journal}.damaged-"))
        disk.rename("truncate.put_aside", folder.journal, kept_as[0])
    if plan.damage is not None or plan.half_done:
        disk.rename("truncate.put_in_place", _work_folder(folder), folder.journal)
        disk.sync_folder("truncate.sync_folder", folder.path)
    for error in plan.damaged_snapshots:
        kept_as.append(_unused(disk, f"{error.file}.damaged-"))
        disk.rename("truncate.put_aside", error.file, kept_as[-1])
        disk.sync_folder("truncate.sync_folder", folder.snapshots)
    options = StorageOptions(journal_segment_bytes=segment_bytes)
    opened = open_folder(disk, folder.path, folder.store, BrokerLimits(), SystemChance(), options)
    opened.journal.close()
    opened.store.close()
    return Truncated(opened.report.tail_lsn, tuple(kept_as), tuple(salvaged), salvaged_to)


def _write_prefix(disk: Disk, plan: TruncatePlan, segment_bytes: int) -> None:
    """A journal of the kept frames, beside the damaged one."""
    folder, base_lsn = plan.folder, plan.base.lsn if plan.base else 0
    work = _work_folder(folder)
    for name in disk.list(work):  # of an attempt that was interrupted
        disk.remove("truncate.leftover.remove", f"{work}/{name}")
    journal = FileJournal.create(
        disk,
        work,
        folder.store,
        segment_bytes=segment_bytes,
        first_lsn=base_lsn + 1,
        prev_crc=plan.base.chain_crc if plan.base else 0,
        parent=folder.path,  # its name must be durable before the damaged journal is renamed
    )
    try:
        frames: list[bytes] = []
        for item in read_journal(disk, folder, base_lsn):
            if isinstance(item, JournalFrame) and base_lsn < item.lsn <= plan.kept_lsn:
                frames.append(item.frame)
                if len(frames) == _FRAMES_PER_BLOCK:
                    journal.append(journal.tail_lsn(), frames)
                    frames = []
        journal.append(journal.tail_lsn(), frames)
    finally:
        journal.close()


def _work_folder(folder: DataFolder) -> str:
    return f"{folder.journal}.repaired"


def _segment_bytes(disk: Disk, folder: DataFolder, journal: str) -> int:
    """New segments are as large as the old ones."""
    sizes: list[int] = []
    for number in segment_numbers(disk, journal):
        try:
            sizes.append(load_segment(disk, journal, number, folder.store).header.size_bytes)
        except (CorruptJournal, FormatTooNew):
            continue
    return min(sizes, default=StorageOptions().journal_segment_bytes)


def _unused(disk: Disk, prefix: str) -> str:
    number = 1
    while disk.exists(f"{prefix}{number}"):
        number += 1
    return f"{prefix}{number}"
