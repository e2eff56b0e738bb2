"""Reads the durable blocks of a file journal while another thread appends to it: for a copy of the journal elsewhere.

    | block | block | block | block |        <- JournalEnd: everything before it is synced
                    ▲
                 position: the next `read` begins here, at a block

A reader has files of its own and shares nothing with the writer but `JournalEnd`, which is replaced as a whole after
each sync. So it never sees a block that is not durable, and it never waits for the writer. Segments that it has not
read must not be trimmed. Each block is verified before it is returned: damage must not be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal
from driftq.storage.journal_files import (
    HEADER_BYTES,
    READ_BYTES,
    Segment,
    SegmentHeader,
    load_segment,
    segment_numbers,
)

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File
    from driftq.storage.journal_writer import JournalEnd

_extend = google_crc32c.extend
_NO_LSN = 1 << 62


class JournalRun(NamedTuple):
    """Whole blocks of one segment, one after the other."""

    segment: SegmentHeader
    position: int  # of the first block, in the segment
    first_lsn: int
    last_lsn: int
    prev_crc: int  # of the block before the first one
    crc: int  # of the last block
    data: bytes


class JournalReader:
    """One pass through a journal, from an lsn on."""

    def __init__(self, disk: Disk, folder: str, store: bytes, end: Callable[[], JournalEnd], after_lsn: int) -> None:
        self._disk = disk
        self._folder = folder
        self._store = store
        self._end = end
        self._file: File | None = None
        self._segment = self._find_segment(after_lsn + 1)
        self._position = HEADER_BYTES
        self.prev_crc = self._segment.header.prev_crc  # of the last block that was read
        self.lsn = self._segment.header.first_lsn - 1  # the last one that was read
        if self.lsn < after_lsn:
            self._skip(after_lsn)

    def read(self, max_bytes: int) -> JournalRun | None:
        """The next durable blocks, up to `max_bytes` but at least one; None if all were read."""
        while True:
            end = self._end()
            if self.lsn >= end.lsn:
                return None
            is_last = self._segment.header.number == end.number
            limit = end.position if is_last else self._segment.size_bytes
            run = self._read(max_bytes, limit)
            if run is not None:
                return run
            if is_last:
                raise self._damaged(end.lsn)
            self._next_segment()

    def lag_bytes(self) -> int:
        """How many durable bytes were not read yet; of segments in between, their whole size."""
        end = self._end()
        if self.lsn >= end.lsn:
            return 0
        header = self._segment.header
        if header.number == end.number:
            return end.position - self._position
        return (end.number - header.number) * header.size_bytes + end.position - self._position

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, max_bytes: int, limit: int, upto_lsn: int = _NO_LSN) -> JournalRun | None:
        """Blocks of this segment before `limit`, the last of them the one with `upto_lsn`; None if there is none."""
        data = self._data(min(max(max_bytes, blocks.HEADER_BYTES), limit - self._position))
        if len(data) < blocks.HEADER_BYTES:
            return None
        length = blocks.HEADER.unpack_from(data)[3]
        if data.startswith(blocks.MAGIC) and len(data) < length <= limit - self._position:
            data = self._data(length)
        size, first_lsn, prev_crc = 0, self.lsn + 1, self.prev_crc
        while len(data) - size >= blocks.HEADER_BYTES and self.lsn < upto_lsn:
            magic, crc, prev, length, lsn, count, _ = blocks.HEADER.unpack_from(data, size)
            block_end = size + length
            if magic != blocks.MAGIC or prev != self.prev_crc or lsn != self.lsn + 1 or block_end > len(data):
                break
            if _extend(self._segment.seed, data[size + blocks.CHECKED_FROM : block_end]) != crc:
                break
            size, self.prev_crc, self.lsn = block_end, crc, self.lsn + count
        if not size:
            return None
        position, self._position = self._position, self._position + size
        return JournalRun(self._segment.header, position, first_lsn, self.lsn, prev_crc, self.prev_crc, data[:size])

    def _data(self, size: int) -> bytes:
        if self._file is None:
            self._file = self._disk.open(self._segment.path)
        return self._file.read_at(self._position, size)

    def _next_segment(self) -> None:
        self.close()
        following = load_segment(self._disk, self._folder, self._segment.header.number + 1, self._store)
        if (following.header.first_lsn, following.header.prev_crc) != (self.lsn + 1, self.prev_crc):
            raise self._damaged(following.header.first_lsn - 1)
        self._segment, self._position = following, HEADER_BYTES

    def _find_segment(self, lsn: int) -> Segment:
        """The segment that holds an lsn, or that it would go to."""
        holder: Segment | None = None
        for number in segment_numbers(self._disk, self._folder):
            segment = load_segment(self._disk, self._folder, number, self._store)
            if segment.header.first_lsn > lsn:
                break
            holder = segment
        if holder is None:
            raise CorruptJournal(self._folder, 0, lsn, lsn, f"the journal begins after lsn {lsn}")
        return holder

    def _skip(self, lsn: int) -> None:
        """Move to the block after `lsn`."""
        while self.lsn < lsn and self._read(READ_BYTES, self._segment.size_bytes, upto_lsn=lsn) is not None:
            pass
        if self.lsn != lsn:
            raise CorruptJournal(self._segment.path, self._position, lsn, lsn, f"no block ends with lsn {lsn}")

    def _damaged(self, last_lsn: int) -> CorruptJournal:
        reason = "the block is damaged or missing, so it is not archived"
        return CorruptJournal(self._segment.path, self._position, self.lsn + 1, last_lsn, reason)
