"""What a log store knows of one log: where it begins and ends, its segments, and what of it is not written or not
synced yet."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from driftq.storage.logfiles import LogSegment


class LogState:
    """One log. Not `opened` means: the files were not looked at yet, only [start, end) is known."""

    __slots__ = ("dirty", "end", "folder", "log_id", "new_names", "opened", "segments", "start", "unwritten", "written")

    def __init__(self, log_id: int, folder: str, start: int, end: int) -> None:
        self.log_id = log_id
        self.folder = folder
        self.start = start
        self.end = end
        self.written = end  # up to here the records are in the files; `unwritten` holds the rest
        self.opened = False
        self.segments: list[LogSegment] = []
        self.unwritten: list[tuple[int, int, bytes]] = []
        self.dirty: dict[str, LogSegment] = {}
        self.new_names = False

    def find(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.first_offset) - 1


class GivenUp(NamedTuple):
    """What goes at the next collection."""

    trimmed: list[tuple[LogState, int]]  # with the start the log had
    dropped: list[int]
