"""Repairs a data folder whose loss an operator accepts: what would be lost, and then the deed.

`plan` reads and says; `execute` writes a journal of what is left beside the damaged one, puts it in place, keeps the
damaged files under other names and proves that the folder opens. Both fold with the same `Salvager`, so that what was
announced is what happens. The caller holds the folder's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.recovery import RecoveryReport, StorageOptions, open_folder
from driftq.repair.journal_scan import FoundFrame, Hole, RepairReport, is_half_done, left_over, repair
from driftq.repair.salvage import LogFiles, Losses, Salvager, StartOver, Stretch
from driftq.repair.verify import Finding, NoDataFolder, damaged_logs, look, verify
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal, CorruptSnapshot, FormatTooNew
from driftq.storage.journal_files import load_segment, segment_numbers

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is damaged and what its repair would lose."""

    folder: DataFolder
    findings: tuple[Finding, ...]
    losses: Losses
    broker: Broker  # as it will be: names for numbers
    half_done: bool = False

    def __bool__(self) -> bool:
        return bool(self.findings or self.half_done)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did."""

    losses: Losses
    broker: Broker
    kept: tuple[str, ...]  # where the damaged files are now
    start: RecoveryReport  # how the folder opened afterwards


def plan(disk: Disk, path: str) -> Plan:
    """Look at everything and fold what is left, without writing."""
    folder = look(disk, path)
    if is_half_done(disk, folder.journal):
        mender = Salvager(LogFiles(disk, folder), {})
        return Plan(folder, (), mender.losses, mender.broker, half_done=True)
    verdict = verify(disk, path)
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)

    def fold(mender: Salvager, closing: Callable[[], list[Stretch]]) -> None:
        for found in left_over(disk, folder.journal, folder.store, newest.base_lsn()):
            if isinstance(found, Hole):
                mender.hole(found.first_lsn, found.last_lsn)
            else:
                mender.frame(found.lsn, found.frame)
        for _ in mender.closing(closing()):
            pass

    mender, _ = _folded(disk, folder, newest, fold)
    return Plan(folder, tuple(verdict.findings), mender.losses, mender.broker)


def execute(disk: Disk, path: str) -> Repaired:
    """Replace what is damaged by what is left of it. Raises with the damaged folder in place if that cannot be done."""
    folder = look(disk, path)
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    prev_crc = newest.snapshot.chain_crc if newest.snapshot else 0
    segment_bytes = _segment_bytes(disk, folder)

    def write(mender: Salvager, closing: Callable[[], list[Stretch]]) -> RepairReport:
        def change(found: FoundFrame) -> bytes:
            return mender.frame(found.lsn, found.frame)

        return repair(
            disk,
            folder.journal,
            folder.store,
            mender.hole,
            base_lsn=newest.base_lsn(),
            prev_crc=prev_crc,
            change=change,
            closing=lambda: mender.closing(closing()),
            segment_bytes=segment_bytes,
        )

    mender, report = _folded(disk, folder, newest, write)
    kept = [report.kept_as, *(_put_aside(disk, error) for error in newest.damaged)]
    if newest.damaged:
        disk.sync_folder("repair.sync_folder", folder.snapshots)
    options = StorageOptions(journal_segment_bytes=segment_bytes)
    opened = open_folder(disk, path, folder.store, BrokerLimits(), SystemChance(), options)
    opened.journal.close()
    opened.store.close()
    return Repaired(mender.losses, opened.broker, tuple(kept), opened.report)


def _folded(
    disk: Disk,
    folder: DataFolder,
    newest: snapshots.Newest,
    run: Callable[[Salvager, Callable[[], list[Stretch]]], _Result],
) -> tuple[Salvager, _Result]:
    """Fold what is left, again from the start whenever a frame turns out not to fit half-way through it."""
    without: dict[int, str] = {}
    while True:
        files = LogFiles(disk, folder)
        mender = Salvager(files, without)
        if newest.snapshot is not None:
            for frame in snapshots.read_frames(disk, newest.snapshot, folder.store):
                mender.place(frame)
        ends = {log_id: log.end for log_id, log in mender.broker.state.logs.items()}

        def closing(broker: Broker = mender.broker, ends: dict[int, int] = ends) -> list[Stretch]:
            found = damaged_logs(disk, folder, broker, ends)
            return [each.stretch for each in found if each.stretch is not None]

        try:
            return mender, run(mender, closing)
        except StartOver as again:
            without[again.lsn] = again.reason
        finally:
            files.close()


def _segment_bytes(disk: Disk, folder: DataFolder) -> int:
    """New segments are as large as the old ones were."""
    sizes: list[int] = []
    for number in segment_numbers(disk, folder.journal):
        try:
            sizes.append(load_segment(disk, folder.journal, number, folder.store).header.size_bytes)
        except (CorruptJournal, FormatTooNew):
            continue
    return min(sizes, default=StorageOptions().journal_segment_bytes)


def _put_aside(disk: Disk, error: CorruptSnapshot) -> str:
    turn = 1
    while disk.exists(kept := f"{error.file}.damaged-{turn}"):
        turn += 1
    disk.rename("repair.put_aside", error.file, kept)
    return kept


__all__ = ["NoDataFolder", "Plan", "Repaired", "execute", "plan"]
