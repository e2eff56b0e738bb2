"""What the file log store knows about one log, and what it keeps at hand: open files and cached batches."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File
    from driftq.storage.log_folder import LogFolder
    from driftq.storage.log_segment import BatchRun, LogSegment


class StoredLog:
    """One log. There may be a million, so it is small: a log that has not grown has no folder.

    start                own part            end
      | shared segments | files in `folder` |
    """

    __slots__ = ("end", "folder", "kept_from", "log_id", "replayed_from", "shared_bytes", "start")

    def __init__(self, log_id: int, start: int, end: int, replayed_from: int) -> None:
        self.log_id = log_id
        self.start = start  # records below are never read again
        self.end = end  # the offset of the next record
        self.folder: LogFolder | None = None  # its own files; None: everything is in shared segments
        self.shared_bytes = 0  # what it has put into shared segments since the start of the process
        self.kept_from = start  # no snapshot that is kept needs records below
        self.replayed_from = replayed_from  # what was stored from here on at the start, the replay writes again

    def shared_end(self) -> int:
        """The end of the part in shared segments."""
        return self.end if self.folder is None else self.folder.first_offset()


class IdleLogs:
    """Logs of a snapshot that were not used since the start, as numbers in packed arrays, ascending by log id: most of
    a million logs need no object."""

    __slots__ = ("_ends", "_gone", "_ids", "_starts", "count")

    def __init__(self) -> None:
        self._ids = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self._gone = bytearray()  # 1: it was taken
        self.count = 0

    def add(self, log_id: int, start: int, end: int) -> bool:
        """False if it does not come after all others."""
        if self._ids and log_id <= self._ids[-1]:
            return False
        self._ids.append(log_id)
        self._starts.append(start)
        self._ends.append(end)
        self._gone.append(0)
        self.count += 1
        return True

    def bounds(self, log_id: int) -> tuple[int, int] | None:
        """Start and end of a log; None if it is not here."""
        index = self._find(log_id)
        return None if index < 0 else (self._starts[index], self._ends[index])

    def take(self, log_id: int) -> tuple[int, int] | None:
        """The same; it is not here any more."""
        index = self._find(log_id)
        if index < 0:
            return None
        self._gone[index] = 1
        self.count -= 1
        return self._starts[index], self._ends[index]

    def _find(self, log_id: int) -> int:
        index = bisect_left(self._ids, log_id)
        if index == len(self._ids) or self._ids[index] != log_id or self._gone[index]:
            return -1
        return index


class Garbage(NamedTuple):
    """What frames up to `lsn` made useless. It is deleted when no kept snapshot is older than that. And the segments
    that were closed by then: every kept snapshot has all of their records, so a start never cuts them."""

    lsn: int
    trimmed: list[tuple[StoredLog, int]]  # with the log's start at that time
    dropped: list[int]
    closed: list[tuple[LogFolder, LogSegment]]


class ClosedSegments:
    """The closed segments that are known: those that could leave the disk once the archive has them, and those that
    have left it."""

    LOADED_MAX = 64  # indexes of cold segments in memory

    def __init__(self) -> None:
        self._fresh: list[tuple[LogFolder, LogSegment]] = []  # a start may still have to cut them
        self.final: dict[LogSegment, LogFolder] = {}  # no start will; their files are here
        self._cold: set[LogSegment] = set()  # their files are gone
        self._loaded: OrderedDict[LogSegment, None] = OrderedDict()  # cold ones whose index is in memory
        self.local_bytes = 0
        self.cold_bytes = 0
        self.cold_reads = 0  # reads of runs of cold segments that were in the cache

    def note(self, folder: LogFolder, segment: LogSegment) -> None:
        self._fresh.append((folder, segment))

    def take_fresh(self) -> list[tuple[LogFolder, LogSegment]]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def make_final(self, segments: list[tuple[LogFolder, LogSegment]]) -> None:
        for folder, segment in segments:
            if segment.cold is None and segment not in self.final and folder.has_closed(segment):
                self.final[segment] = folder
                self.local_bytes += segment.size_bytes

    def note_cold(self, segment: LogSegment) -> None:
        self.forget(segment)
        self._cold.add(segment)
        self.cold_bytes += segment.size_bytes

    def forget(self, segment: LogSegment) -> None:
        if self.final.pop(segment, None) is not None:
            self.local_bytes -= segment.size_bytes
        if segment in self._cold:
            self._cold.remove(segment)
            self.cold_bytes -= segment.size_bytes
        self._loaded.pop(segment, None)

    def note_loaded(self, segment: LogSegment) -> None:
        """The index of a cold segment was read. Those that were read long ago go."""
        self._loaded[segment] = None
        if len(self._loaded) > self.LOADED_MAX:
            self._loaded.popitem(last=False)[0].unload()


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
