"""Verify: is every byte that matters as it was written?

    snapshots   every one is read through and its digest compared
    journal     every block; then the frames are folded from as far back as they reach, and the state is compared with
                every snapshot on the way (invariant 2)
    log files   every batch up to the newest snapshot; what is after it is rebuilt from the journal at the next start

Changes nothing and locks nothing. While a broker runs, a finding counts only if it is still there when read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from driftq.core.model.frames import encode
from driftq.repair.folder_reader import (
    TRIES,
    Damage,
    FolderFold,
    JournalFrame,
    LogFiles,
    OnBytes,
    file_bytes,
    foreign_snapshots,
    ignore_bytes,
    new_broker,
    read_journal,
    require_folder,
    retry_if_moved,
)
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptLog, CorruptSnapshot
from driftq.storage.data_folder import DataFolder, holder_pid

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model import facts as f
    from driftq.storage.disk import Disk


@dataclass(frozen=True, slots=True)
class LogRange:
    """Offsets [first, end) of a log."""

    log_id: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written."""

    part: str  # snapshot, journal, log
    file: str
    position: int
    reason: str
    first_lsn: int = 0  # 0: not about lsns
    last_lsn: int = 0  # 0: to the end
    offsets: LogRange | None = None


@dataclass(slots=True)
class VerifyReport:
    """What `verify` saw."""

    findings: list[Finding] = field(default_factory=list)  # damage; empty: the folder is sound
    snapshots: list[int] = field(default_factory=list)  # the lsns of the readable ones
    first_lsn: int = 0  # of the journal
    last_lsn: int = 0  # the last lsn that was folded
    frames: int = 0  # how many were folded
    logs: int = 0
    records: int = 0  # that only the log files hold
    compared: list[int] = field(default_factory=list)  # snapshots that were compared with the fold of the journal
    broker: Broker = field(default_factory=new_broker)  # the state at `last_lsn`


def verify(disk: Disk, path: str, on_bytes: OnBytes = ignore_bytes) -> VerifyReport:
    """Check everything. Raises only for a FORMAT file that is damaged and for a folder of a later version."""
    folder = require_folder(disk, path)
    report = retry_if_moved(lambda: _verify_once(disk, folder, on_bytes))
    for _ in range(TRIES):
        if not report.findings or holder_pid(path) is None:
            break
        # A broker runs on the folder. Real damage is found again in the same place.
        again = retry_if_moved(lambda: _verify_once(disk, folder, ignore_bytes))
        again.findings, report = [finding for finding in again.findings if finding in report.findings], again
    return report


def _verify_once(disk: Disk, folder: DataFolder, on_bytes: OnBytes) -> VerifyReport:
    report = VerifyReport()
    readable = _verify_snapshots(disk, folder, report, on_bytes)
    ends = _verify_journal(disk, folder, report, readable, on_bytes)
    for log_id, end in ends.items():
        log = report.broker.state.logs.get(log_id)
        if log is not None:
            report.logs += 1
            report.records += max(0, min(end, log.end) - log.start)
    report.findings.extend(_verify_logs(disk, folder, report.broker, ends, on_bytes))
    return report


def _verify_snapshots(
    disk: Disk, folder: DataFolder, report: VerifyReport, on_bytes: OnBytes
) -> list[snapshots.Snapshot]:
    readable: list[snapshots.Snapshot] = []
    for lsn in snapshots.snapshot_lsns(disk, folder.snapshots):
        path = f"{folder.snapshots}/{lsn:020d}{snapshots.SUFFIX}"
        try:
            readable.append(snapshots.verify(disk, path, folder.store))
            on_bytes(file_bytes(disk, path))
        except CorruptSnapshot as error:
            report.findings.append(Finding("snapshot", path, error.position, error.reason, last_lsn=lsn))
        except FileNotFoundError:
            continue  # a checkpoint of the running broker replaced it
    report.snapshots = [snapshot.lsn for snapshot in readable]
    return readable


def _verify_journal(
    disk: Disk, folder: DataFolder, report: VerifyReport, readable: list[snapshots.Snapshot], on_bytes: OnBytes
) -> dict[int, int]:
    """Fold the journal from as far back as it reaches, and compare with every snapshot on the way. Returns where each
    log ended at the newest snapshot: up to there its files must be readable."""
    known_lsn = readable[-1].lsn if readable else 0
    damages = [item for item in read_journal(disk, folder, known_lsn) if isinstance(item, Damage)]
    report.findings.extend(map(_journal_finding, damages))
    report.findings.extend(
        Finding("snapshot", error.file, error.position, error.reason, 1)
        for error in foreign_snapshots(disk, folder, readable)
    )
    frames = (item for item in read_journal(disk, folder, known_lsn) if isinstance(item, JournalFrame))
    first = next(frames, None)
    first_lsn = first.lsn if first else known_lsn + 1
    report.first_lsn, report.last_lsn = first_lsn, first_lsn - 1
    bases: list[snapshots.Snapshot | None] = [snapshot for snapshot in readable if first_lsn <= snapshot.lsn + 1]
    if first_lsn == 1:
        bases.insert(0, None)  # nothing was trimmed yet: the journal holds everything
    if not bases:
        newest = f"lsn {known_lsn}" if readable else "none"
        reason = f"the journal begins at lsn {first_lsn}, and the newest readable snapshot is {newest}"
        report.findings.append(Finding("journal", folder.journal, 0, reason, 1, first_lsn - 1))
        return {}
    # From the oldest base, so that snapshots are compared. With damage on the way, from the newest, past most of it.
    fold = FolderFold(disk, folder, bases[-1] if damages else bases[0])
    report.broker = fold.broker
    later = {snapshot.lsn: snapshot for snapshot in readable if snapshot.lsn > fold.base_lsn}
    ends = _ends(fold.broker) if fold.lsn == known_lsn else {}
    for frame in [] if first is None else chain((first,), frames):
        damage = fold.take(frame)
        if damage is not None:
            if fold.is_spoilt or not damages:
                report.findings.append(_journal_finding(damage))
            break
        on_bytes(len(frame.frame) + 4)
        if frame.lsn == known_lsn:
            ends = _ends(fold.broker)
        if frame.lsn in later:
            _compare(disk, folder, report, later[frame.lsn])
    report.frames = fold.lsn - fold.base_lsn
    report.last_lsn = max(report.last_lsn, fold.lsn)
    return ends


def _journal_finding(damage: Damage) -> Finding:
    return Finding("journal", damage.file, damage.position, damage.reason, damage.first_lsn, damage.last_lsn)


def _ends(broker: Broker) -> dict[int, int]:
    return {log_id: log.end for log_id, log in broker.state.logs.items()}


def _compare(disk: Disk, folder: DataFolder, report: VerifyReport, snapshot: snapshots.Snapshot) -> None:
    """Invariant 2: folding a snapshot equals folding the journal up to its lsn."""
    try:
        from_snapshot = FolderFold(disk, folder, snapshot).broker
    except FileNotFoundError:
        return
    if digest(from_snapshot.snapshot()) != digest(report.broker.snapshot()):
        reason = "the snapshot holds another state than the journal up to its lsn"
        report.findings.append(Finding("snapshot", snapshot.path, 0, reason, 1, snapshot.lsn))
    report.compared.append(snapshot.lsn)


def digest(facts: Iterable[f.Fact]) -> tuple[int, int]:
    """A fingerprint of facts that does not depend on their order: how many, and the sum of their hashes."""
    count = total = 0
    for fact in facts:
        count += 1
        total += int.from_bytes(hashlib.sha256(encode([fact])).digest(), "big")
    return count, total


def _verify_logs(
    disk: Disk, folder: DataFolder, broker: Broker, ends: dict[int, int], on_bytes: OnBytes
) -> Iterator[Finding]:
    """The parts of each log that cannot be served. Only files up to `ends` matter: the journal has the rest."""
    files = LogFiles(disk, folder)
    try:
        for log_id, end in ends.items():
            log = broker.state.logs.get(log_id)
            if log is None:
                continue
            for item in files.batches(log_id, log.start, min(end, log.end)):
                if not isinstance(item, CorruptLog):
                    on_bytes(len(item))
                elif not any(first <= item.offset and item.end_offset <= last for first, last in log.cancelled):
                    offsets = LogRange(log_id, item.offset, item.end_offset)
                    yield Finding("log", item.file, item.position, item.reason, offsets=offsets)
    finally:
        files.close()
