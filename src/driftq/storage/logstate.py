"""What a log store knows of one log: where it begins and ends, its segments, and what of it is not written or not
synced yet."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from driftq.storage.logfiles import LogSegment
from driftq.storage.logstore import Placed


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
        self.unwritten: list[Placed] = []
        self.dirty: dict[str, LogSegment] = {}
        self.new_names = False

    def find(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.first_offset) - 1

    def next_batches(self, room_bytes: int) -> tuple[list[int], list[bytes], int]:
        """The offsets and bytes of the unwritten batches that fit, at least one, and the offset behind them."""
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


class GivenUp(NamedTuple):
    """What frames up to `lsn` gave up: it goes when no snapshot is older than that."""

    lsn: int
    trimmed: list[tuple[LogState, int]]  # with the start the log had
    dropped: list[int]
