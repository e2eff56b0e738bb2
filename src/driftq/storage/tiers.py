"""Moving a closed segment to the archive's tier: from then on it is read from there, and its file here is deleted.

    1. choose    closed segments that no start will cut, oldest first     (`SegmentTiers.next_candidate`)
    2. verify    an archived base has all of its bytes as one object: that object is read back and compared with the
                 file, and both with the checksums of the segment's index (`verified_place`)
    3. note      <first>.tier, synced under a temporary name, renamed, the folder synced (`write_tier`)
    4. switch    reads go to the archive (`SegmentTiers.finish`)
    5. delete    the file and its index (`delete_file`)

A crash in between leaves the file, or the tier file, or both; if there are both, the file counts. So a segment is never
without one of them, and no tier file names an object that was not read back.

Steps 1 and 4 are for the thread that owns the log store; 2, 3 and 5 read and write files that do not change, on any
thread, and not while a base is being made or objects are deleted. From step 3 on nothing else may delete files: `begin`
says so to the log store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from driftq.storage.cold_segments import ColdPlace, encode_tier, tier_path
from driftq.storage.log_segment import index_path, split_run

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from driftq.storage.archive.bases import Inventory
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.cold_segments import ColdWindow
    from driftq.storage.disk import Disk
    from driftq.storage.log_folder import LogFolder
    from driftq.storage.log_segment import BatchRun, LogSegment
    from driftq.storage.stored_log import ClosedSegments, RunCache

CHECK_BYTES = 4 << 20  # of a segment, compared in one step


class TierLimits(NamedTuple):
    """How much of the closed segments stays on the disk; 0: no limit."""

    local_bytes: int = 0
    local_ms: int = 0


NO_LIMITS = TierLimits()


class Candidate(NamedTuple):
    """A closed segment that may leave the disk."""

    log_id: int
    segment: LogSegment
    path: str
    size_bytes: int
    last_ms: int
    runs: tuple[tuple[int, int, int], ...]  # position, size, checksum
    encoded_index: bytes


class WrongObject(Exception):
    """What the archive has is not what the disk has. The segment stays."""


class SegmentTiers:
    """Which segments of one log store are here and which are not. For the thread that owns the store."""

    def __init__(self, disk: Disk, store: bytes, closed: ClosedSegments, cache: RunCache) -> None:
        self._disk = disk
        self._store = store
        self._closed = closed
        self._cache = cache
        self.is_moving = False  # between steps 3 and 5

    @property
    def local_bytes(self) -> int:
        """Of the closed segments that could leave the disk."""
        return self._closed.local_bytes

    @property
    def cold_bytes(self) -> int:
        """Of those that have left it."""
        return self._closed.cold_bytes

    @property
    def reads(self) -> int:
        """How often records that have left it were read from the cache, right after their download, too."""
        return self._closed.cold_reads

    def next_candidate(
        self, limits: TierLimits, now_ms: int, logs_kept: frozenset[int], skipped: Container[str]
    ) -> Candidate | None:
        """The oldest segment that should leave the disk, if there is one; `skipped` are paths of those that cannot."""
        surplus = self._closed.local_bytes - limits.local_bytes if limits.local_bytes else 0
        oldest: tuple[int, str, LogFolder, LogSegment] | None = None
        for segment, folder in self._closed.final.items():
            if segment.path in skipped or folder.log_id in logs_kept:
                continue
            row = (segment.last_ms(), segment.path, folder, segment)
            if oldest is None or row[:2] < oldest[:2]:
                oldest = row
        if oldest is None:
            return None
        last_ms, path, folder, segment = oldest
        is_old = limits.local_ms and last_ms <= now_ms - limits.local_ms
        if not is_old and surplus <= 0:
            return None
        runs = tuple((run.position, run.size_bytes, run.crc) for run in segment.runs)
        index = folder.encoded_index(segment)
        return Candidate(folder.log_id, segment, path, segment.size_bytes, last_ms, runs, index)

    def begin(self, candidate: Candidate) -> bool:
        """Before step 3. False if the segment is gone."""
        self.is_moving = candidate.segment in self._closed.final
        return self.is_moving

    def finish(self, candidate: Candidate, place: ColdPlace) -> None:
        """Step 4: reads go to the archive."""
        folder = self._closed.final.get(candidate.segment)
        assert folder is not None, "nothing deletes files while a segment is moved"
        folder.drop_file(candidate.segment, place)

    def end(self) -> None:
        """After step 5, or if a step failed."""
        self.is_moving = False

    def keep(self, window: ColdWindow, batches: Sequence[tuple[list[int], list[bytes]]]) -> None:
        """Put what was downloaded into the cache."""
        for run, (firsts, parts) in zip(window.runs, batches, strict=True):
            run.firsts, run.batches = firsts, parts
            self._cache.touch(run)


# --- the steps that any thread may take ---


def verified_place(
    disk: Disk, objects: ObjectStore, store: bytes, root: str, candidate: Candidate, inventory: Inventory
) -> ColdPlace | None:
    """Where the archive has this segment; None if it does not have it yet. Raises `WrongObject`, `ObjectMissing` or
    `ObjectStoreError`."""
    archived = inventory.file(candidate.path.removeprefix(f"{root}/"))
    if archived is None or archived.size_bytes != candidate.size_bytes or len(archived.pieces) != 1:
        return None
    piece = archived.pieces[0]
    if piece.position or piece.size_bytes != candidate.size_bytes:
        return None  # a part of a pack
    crc = 0
    file = disk.open(candidate.path)
    try:
        for position in range(0, candidate.size_bytes, CHECK_BYTES):
            size = min(CHECK_BYTES, candidate.size_bytes - position)
            data = file.read_at(position, size)
            if objects.get_range(piece.key, position, size) != data:
                raise WrongObject(f"{piece.key} is not what {candidate.path} has from byte {position} on")
            crc = google_crc32c.extend(crc, data)
        for position, size, run_crc in candidate.runs:
            if google_crc32c.value(file.read_at(position, size)) != run_crc:
                raise WrongObject(f"{candidate.path} is damaged at byte {position}")
    finally:
        file.close()
    if crc != piece.crc:
        raise WrongObject(f"{candidate.path} is not what was archived")
    segment = candidate.segment
    return ColdPlace(
        store.hex(), candidate.log_id, segment.first_offset, segment.end_offset, candidate.size_bytes,
        candidate.last_ms, crc, piece.key, objects.url,
    )  # fmt: skip


def write_tier(disk: Disk, candidate: Candidate, place: ColdPlace) -> None:
    """Step 3, durably."""
    path = tier_path(candidate.path)
    if disk.exists(f"{path}.tmp"):
        disk.remove("tier.leftover.remove", f"{path}.tmp")
    file = disk.create("tier.create", f"{path}.tmp")
    try:
        file.write_at("tier.write", 0, encode_tier(place, candidate.encoded_index))
        file.sync("tier.sync")
    finally:
        file.close()
    disk.rename("tier.rename", f"{path}.tmp", path)
    disk.sync_folder("tier.sync_folder", path.rpartition("/")[0])


def delete_file(disk: Disk, candidate: Candidate) -> None:
    """Step 5. If the deletion is lost in a power cut, the file is there again, and counts."""
    disk.remove("tier.log.remove", candidate.path)
    if disk.exists(path := index_path(candidate.segment)):
        disk.remove("tier.index.remove", path)


def fetch_window(objects: ObjectStore, window: ColdWindow) -> list[tuple[list[int], list[bytes]]]:
    """The batches of each run of a window, verified. Raises `WrongObject`, `ObjectMissing` or `ObjectStoreError`."""
    assert window.segment.cold is not None
    key = window.segment.cold.key
    data = objects.get_range(key, window.position, window.size_bytes)
    return [_batches(key, data, window.position, run) for run in window.runs]


def _batches(key: str, data: bytes, start: int, run: BatchRun) -> tuple[list[int], list[bytes]]:
    part = data[run.position - start : run.position - start + run.size_bytes]
    if len(part) != run.size_bytes or google_crc32c.value(part) != run.crc:
        raise WrongObject(f"{key} is not what was archived, at byte {run.position}: checksum mismatch")
    return split_run(part)
