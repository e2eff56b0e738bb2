"""What the file log store knows about one log, and what it keeps at hand: open files and cached batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File
    from driftq.storage.log_segment import BatchRun, LogSegment
    from driftq.storage.log_store import Placed


class StoredLog:
    """One log.

    start             written            end
      | in segment files | `unwritten` |
    """

    __slots__ = ("dirty", "end", "folder", "log_id", "new_names", "opened", "segments", "start", "unwritten", "written")

    def __init__(self, log_id: int, folder: str, start: int, end: int) -> None:
        self.log_id = log_id
        self.folder = folder
        self.start = start  # records below are never read again
        self.end = end  # the offset of the next record
        self.written = end  # records below are in the files
        self.opened = False  # False: the files were not looked at since the start, `segments` is not filled
        self.segments: list[LogSegment] = []  # in order; the last one gets the next batch
        self.unwritten: list[Placed] = []  # batches that a full disk refused
        self.dirty: dict[str, LogSegment] = {}  # segments to sync, by path
        self.new_names = False  # a file was created or removed, so the folder is to be synced

    def find(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.first_offset) - 1

    def next_batches(self, room_bytes: int) -> tuple[list[int], list[bytes], int]:
        """The first offsets and bytes of the unwritten batches that fit, at least one, and the offset after them."""
        firsts: list[int] = []
        batches: list[bytes] = []
        end_offset = 0
        for first_offset, count, batch in self.unwritten:
            room_bytes -= len(batch)
            if room_bytes < 0 and batches:
                break
            firsts.append(first_offset)
            batches.append(batch)
            end_offset = first_offset + count
        return firsts, batches, end_offset


class Garbage(NamedTuple):
    """Files that frames up to `lsn` made useless. They are deleted when no kept snapshot is older than that."""

    lsn: int
    trimmed: list[tuple[StoredLog, int]]  # with the log's start at that time
    dropped: list[int]


# --- open files and cached batches ---

_RUN_COST_BYTES = 512  # what a cached run costs in addition to its bytes
_BATCH_COST_BYTES = 96


class OpenFiles:
    """Files by path, at most `limit` of them open."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()

    def __getitem__(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._disk.open(path, write=True)
            self.add(path, file)
        else:
            self._files.move_to_end(path)
        return file

    def add(self, path: str, file: File) -> None:
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class RunCache:
    """The runs whose batches are in memory: those that were appended or read last."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._runs: OrderedDict[BatchRun, int] = OrderedDict()

    def touch(self, run: BatchRun) -> None:
        """Mark a run as the most recently used one and evict the least recently used."""
        cost = run.size_bytes + _RUN_COST_BYTES + _BATCH_COST_BYTES * len(run.firsts or ())
        self._size_bytes += cost - self._runs.pop(run, 0)
        self._runs[run] = cost
        while self._size_bytes > self._limit_bytes and len(self._runs) > 1:
            old, old_cost = self._runs.popitem(last=False)
            old.firsts = old.batches = None
            self._size_bytes -= old_cost

    def clear(self) -> None:
        self._runs.clear()
        self._size_bytes = 0
