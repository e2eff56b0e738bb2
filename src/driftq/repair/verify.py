"""Reading a data folder without changing it, also while a broker works in it: `verify`, and what other readers share.

Nothing is locked and nothing is written. A broker may move the tail, trim the journal and drop files meanwhile, so what
looks wrong is looked at again before it is called damage. A torn tail is weather, not damage. The command line formats
what is found here; the rules of recovery are `storage.tail_recovery`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from driftq.core.model.frames import UnknownFact, decode, encode
from driftq.repair.journal_scan import Damage, FoundFrame, inspect
from driftq.repair.salvage import LogFiles, Stretch, new_broker
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal, CorruptLog, CorruptSnapshot
from driftq.storage.data_folder import DataFolder, find_folder, holder_pid
from driftq.storage.journal_files import HEADER_BYTES, load_segment, load_watermark, segment_numbers, segment_path

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model import facts as f
    from driftq.storage.disk import Disk

_Result = TypeVar("_Result")
Progress = Callable[[int], None]  # how many more bytes were read
LOOKS = 10  # how often something that moves is looked at again


class NoDataFolder(Exception):
    """There is nothing to look at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written."""

    part: str  # folder, snapshot, journal, log
    file: str
    position: int
    reason: str
    first_lsn: int = 0
    last_lsn: int = 0
    stretch: Stretch | None = None


@dataclass(slots=True)
class VerifyReport:
    """What `verify` saw. Damage is in `findings`; `notes` are worth knowing and harmless."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)  # those that are whole
    first_lsn: int = 0
    last_lsn: int = 0
    frames: int = 0
    logs: int = 0
    records: int = 0
    compared: list[int] = field(default_factory=list)  # snapshots that the journal was folded up to
    broker: Broker = field(default_factory=new_broker)


def look(disk: Disk, path: str) -> DataFolder:
    """The folder, or `NoDataFolder`; raises what `storage.corruption` defines if nobody can say what it is."""
    folder = find_folder(disk, path)
    if folder is None:
        raise NoDataFolder(f"there is no data folder at {path}")
    return folder


def read_journal(disk: Disk, folder: DataFolder, after_lsn: int = 0) -> Iterator[FoundFrame | Damage]:
    """`repair.journal_scan.inspect`, going on when a broker trims the journal meanwhile. Without the torn tail."""
    for look_again in range(LOOKS, 0, -1):
        watermark = load_watermark(disk, folder.journal, folder.store)
        try:
            for found in inspect(disk, folder.journal, folder.store):
                if isinstance(found, FoundFrame):
                    if found.lsn > after_lsn:
                        after_lsn = found.lsn
                        yield found
                elif not is_torn_write(disk, folder, found, watermark.lsn if watermark else 0):
                    yield found
            return
        except FileNotFoundError:
            if look_again == 1:
                raise


def while_it_moves(work: Callable[[], _Result]) -> _Result:
    """Begin again when a file goes away meanwhile: a checkpoint of the running broker has replaced it."""
    for _ in range(LOOKS):
        try:
            return work()
        except FileNotFoundError:
            continue
    return work()


def is_torn_write(disk: Disk, folder: DataFolder, damage: Damage, durable_lsn: int) -> bool:
    """Whether this is the torn tail that the next start cuts: behind everything that is known to have been durable."""
    last = max(segment_numbers(disk, folder.journal), default=0)
    at_the_end = damage.file == segment_path(folder.journal, last) and damage.position >= HEADER_BYTES
    return at_the_end and damage.last_lsn == 0 and damage.first_lsn > durable_lsn


# --- verifying ---


def verify(disk: Disk, path: str, progress: Progress = lambda _: None) -> VerifyReport:
    """Look at everything. Raises only if nobody can say what the folder is, or if a later version wrote it."""
    folder = look(disk, path)
    verdict = while_it_moves(lambda: _verify_once(disk, folder, progress))
    for _ in range(LOOKS):
        if not verdict.findings or holder_pid(path) is None:
            break
        # A broker works here: what is really damaged looks the same when looked at again.
        again = while_it_moves(lambda: _verify_once(disk, folder, lambda _: None))
        again.findings, verdict = [each for each in again.findings if each in verdict.findings], again
    return verdict


def _verify_once(disk: Disk, folder: DataFolder, progress: Progress) -> VerifyReport:
    verdict = VerifyReport()
    whole = _verify_snapshots(disk, folder, verdict, progress)
    ends = _verify_journal(disk, folder, verdict, whole, progress)
    for log_id, end in ends.items():
        log = verdict.broker.state.logs.get(log_id)
        if log is not None:
            verdict.logs += 1
            verdict.records += max(0, min(end, log.end) - log.start)
    verdict.findings.extend(damaged_logs(disk, folder, verdict.broker, ends, progress))
    return verdict


def _verify_snapshots(
    disk: Disk, folder: DataFolder, verdict: VerifyReport, progress: Progress
) -> list[snapshots.Snapshot]:
    whole: list[snapshots.Snapshot] = []
    for lsn in snapshots.snapshot_lsns(disk, folder.snapshots):
        path = f"{folder.snapshots}/{lsn:020d}{snapshots.SUFFIX}"
        try:
            whole.append(snapshots.verify(disk, path, folder.store))
            progress(_size(disk, path))
        except CorruptSnapshot as error:
            verdict.findings.append(Finding("snapshot", path, error.position, error.reason, last_lsn=lsn))
        except FileNotFoundError:
            continue  # a checkpoint of the running broker replaced it
    verdict.snapshots = [each.lsn for each in whole]
    return whole


def _verify_journal(
    disk: Disk, folder: DataFolder, verdict: VerifyReport, whole: list[snapshots.Snapshot], progress: Progress
) -> dict[int, int]:
    """Fold the journal from as far back as it reaches, and compare with every snapshot on the way. Returns where each
    log ended at the newest snapshot: up to there its files must be whole."""
    damaged = [each for each in read_journal(disk, folder) if isinstance(each, Damage)]
    verdict.findings.extend(
        Finding("journal", each.file, each.position, each.reason, each.first_lsn, each.last_lsn) for each in damaged
    )
    verdict.findings.extend(_foreign_snapshots(disk, folder, whole))
    frames = (each for each in read_journal(disk, folder) if isinstance(each, FoundFrame))
    first = next(frames, None)
    first_lsn = first.lsn if first else (whole[-1].lsn + 1 if whole else 1)
    verdict.first_lsn, verdict.last_lsn = first_lsn, first_lsn - 1
    starts: list[snapshots.Snapshot | None] = [each for each in whole if first_lsn <= each.lsn + 1]
    if first_lsn == 1:
        starts.insert(0, None)  # nothing was trimmed yet: the journal tells everything
    if not starts:
        newest = f"lsn {whole[-1].lsn}" if whole else "none"
        reason = f"the journal begins at lsn {first_lsn}, and the newest whole snapshot is {newest}"
        verdict.findings.append(Finding("journal", folder.journal, 0, reason, 1, first_lsn - 1))
        return {}
    # From as far back as possible, so that snapshots are compared; with damage on the way, from behind as much of it
    # as possible.
    fold = _Fold(disk, folder, verdict, whole, starts[-1] if damaged else starts[0])
    for found in [] if first is None else chain((first,), frames):
        if not fold.take(found, bool(damaged)):
            break
        progress(len(found.frame) + 4)
    return fold.ends


class _Fold:
    """The journal folded from one snapshot (or nothing) on."""

    def __init__(
        self,
        disk: Disk,
        folder: DataFolder,
        verdict: VerifyReport,
        whole: list[snapshots.Snapshot],
        start: snapshots.Snapshot | None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._verdict = verdict
        self.ends: dict[int, int] = {}
        self._base_lsn = start.lsn if start else 0
        self._later = {each.lsn: each for each in whole if each.lsn > self._base_lsn}
        self._newest_lsn = whole[-1].lsn if whole else 0
        if start is not None:
            fold_snapshot(disk, folder, start, verdict.broker)
            verdict.last_lsn = start.lsn
        self._note_ends(self._base_lsn)

    def take(self, found: FoundFrame, is_damaged: bool) -> bool:
        """Fold one frame; False when nothing behind it can be judged."""
        verdict = self._verdict
        if found.lsn <= self._base_lsn:
            return True
        if found.lsn != verdict.last_lsn + 1:
            if not is_damaged:
                reason = f"lsn {found.lsn} follows lsn {verdict.last_lsn}"
                verdict.findings.append(Finding("journal", found.file, found.position, reason, verdict.last_lsn + 1))
            return False
        try:
            for fact in decode(found.frame):
                verdict.broker.apply(fact)
        except UnknownFact:
            raise
        except Exception as error:
            reason = f"the frame does not fit the state before it ({type(error).__name__}: {error})"
            verdict.findings.append(Finding("journal", found.file, found.position, reason, found.lsn, found.lsn))
            return False
        verdict.last_lsn = found.lsn
        verdict.frames += 1
        self._note_ends(found.lsn)
        snapshot = self._later.pop(found.lsn, None)
        if snapshot is not None:
            self._compare(snapshot)
        return True

    def _note_ends(self, lsn: int) -> None:
        if lsn == self._newest_lsn:
            self.ends = {log_id: log.end for log_id, log in self._verdict.broker.state.logs.items()}

    def _compare(self, snapshot: snapshots.Snapshot) -> None:
        """Invariant 2: folding a snapshot is folding the journal up to its lsn."""
        try:
            frames = snapshots.read_frames(self._disk, snapshot, self._folder.store)
            kept = digest(fact for frame in frames for fact in decode(frame))
        except FileNotFoundError:
            return
        if kept != digest(self._verdict.broker.snapshot()):
            reason = "the snapshot says something else than the journal up to its lsn"
            self._verdict.findings.append(Finding("snapshot", snapshot.path, 0, reason, 1, snapshot.lsn))
        self._verdict.compared.append(snapshot.lsn)


def fold_snapshot(disk: Disk, folder: DataFolder, snapshot: snapshots.Snapshot, broker: Broker) -> None:
    for frame in snapshots.read_frames(disk, snapshot, folder.store):
        for fact in decode(frame):
            broker.apply(fact)


def digest(facts: Iterator[f.Fact]) -> tuple[int, int]:
    """A fingerprint of facts that does not depend on their order: how many, and the sum of their hashes."""
    count = total = 0
    for fact in facts:
        count += 1
        total += int.from_bytes(hashlib.sha256(encode([fact])).digest(), "big")
    return count, total


def _foreign_snapshots(disk: Disk, folder: DataFolder, whole: list[snapshots.Snapshot]) -> Iterator[Finding]:
    """Snapshots that stand for another history than the journal's, where a segment begins behind them."""
    by_lsn = {each.lsn: each for each in whole if each.chain_crc}
    for number in segment_numbers(disk, folder.journal):
        try:
            header = load_segment(disk, folder.journal, number, folder.store).header
        except (CorruptJournal, FileNotFoundError):
            continue
        snapshot = by_lsn.get(header.first_lsn - 1)
        if snapshot is not None and snapshot.chain_crc != header.prev_crc:
            yield Finding("snapshot", snapshot.path, 0, "the journal's history up to its lsn is another one", 1)


def damaged_logs(
    disk: Disk, folder: DataFolder, broker: Broker, ends: dict[int, int], progress: Progress = lambda _: None
) -> Iterator[Finding]:
    """What of each log cannot be served any more: only files up to `ends` matter, the journal has the rest."""
    files = LogFiles(disk, folder)
    try:
        for log_id, end in ends.items():
            log = broker.state.logs.get(log_id)
            if log is None:
                continue
            for found in files.batches(log_id, log.start, min(end, log.end)):
                if not isinstance(found, CorruptLog):
                    progress(len(found))
                elif not any(low <= found.offset and found.end_offset <= high for low, high in log.lost):
                    stretch = Stretch(log_id, found.offset, found.end_offset)
                    yield Finding("log", found.file, found.position, found.reason, stretch=stretch)
    finally:
        files.close()


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def snapshot_facts(disk: Disk, folder: DataFolder) -> Iterator[f.Fact]:
    """The facts of every snapshot that is whole, oldest first: they name what the journal speaks of."""
    for lsn in snapshots.snapshot_lsns(disk, folder.snapshots):
        try:
            found = snapshots.verify(disk, f"{folder.snapshots}/{lsn:020d}{snapshots.SUFFIX}", folder.store)
            for frame in snapshots.read_frames(disk, found, folder.store):
                yield from decode(frame)
        except (CorruptSnapshot, FileNotFoundError):
            continue
