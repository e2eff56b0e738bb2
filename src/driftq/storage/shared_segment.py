"""One shared segment: batches of many small logs in one file, with an index of rows in packed arrays.

    <number>.log     | header | entry | entry | entry | entry | ...
    <number>.index   log ids | first offsets | times | counts | positions | sizes      one column after the other

An entry is a batch exactly as it travels, after the log it belongs to and a checksum over all of it, including the
broker's stamps. The checksum is seeded with the store and the number of the segment, so an entry is recognised on its
own: after damage the walk finds the next one. The index is a cache: what it does not cover is found by walking.

In memory an entry is a *row*: one number in each column, no object. While the segment is open, `_last` leads to the
rows of a log; when it is closed, the log ids are sorted once and then searched by bisection.

Pure, except for `load` and `read_entry`, which read the file they get. Knows one segment; `shared_segments` knows all.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from driftq.storage.journal_files import checksum
from driftq.wire import records

if TYPE_CHECKING:
    from driftq.storage.disk import Disk, File

BATCH_BYTES_MAX = 2 * records.RAW_BYTES_MAX
READ_BYTES = 1 << 20

_HEADER = struct.Struct("<4sI16sq28x")  # magic, version, store, number; then 4 bytes of checksum
HEADER_BYTES = _HEADER.size + 4  # 64
_HEADER_MAGIC = b"DQS\x01"
_ENTRY = struct.Struct("<4sIqqII")  # magic, crc, log_id, first_offset, count, size_bytes of the batch
ENTRY_BYTES = _ENTRY.size  # 32
_ENTRY_MAGIC = b"DQE\x01"
_INDEX = struct.Struct("<4sI16sqqI4x")  # magic, crc, store, number, size_bytes covered, count
_INDEX_MAGIC = b"DQY\x01"

_extend = google_crc32c.extend
_batch_header = records.HEADER.unpack_from


class SharedSegment:
    """The rows of one file, and the bytes that are not written to it yet."""

    __slots__ = (
        "_last", "_order", "_previous", "_seed", "_sorted_ids", "counts", "firsts", "high_id", "is_created", "is_dirty",
        "is_pinned", "is_retired", "loaded_rows", "log_ids", "low_id", "number", "path", "pending", "pending_bytes",
        "positions", "size_bytes", "sizes", "times", "unproven_from", "written_bytes",
    )  # fmt: skip

    def __init__(self, number: int, path: str, store: bytes) -> None:
        self.number = number  # higher is newer
        self.path = path
        self.log_ids = array("q")  # of each row, in the order of the file ...
        self.firsts = array("q")  # ... its first offset,
        self.times = array("q")  # the time of its append,
        self.counts = array("I")  # how many records it has,
        self.positions = array("I")  # where its entry begins,
        self.sizes = array("I")  # and the bytes of its batch
        self.low_id = 1 << 62  # the range of log ids: most lookups end here
        self.high_id = -1
        self.size_bytes = HEADER_BYTES  # where the next entry goes
        self.written_bytes = HEADER_BYTES  # what is in the file
        self.pending: list[bytes] = []  # the header and batch of each entry that is not in the file, in turn
        self.pending_bytes = 0
        self.is_created = False  # the file exists
        self.is_dirty = False  # something is not synced
        self.is_pinned = False  # a live entry is damaged, so the file stays
        self.is_retired = False  # everything that is live in it was copied; the file goes at a later checkpoint
        self.unproven_from = 0  # entries from here on were in the file at the start but may not be on the device; or 0
        self.loaded_rows = 0  # rows from before the start; the replay appends some of them again
        self._seed = google_crc32c.value(store + number.to_bytes(8, "little"))
        self._last: dict[int, int] | None = {}  # by log: its last row, while the segment is open
        self._previous = array("i")  # for each row the row before it of the same log, or -1; while open
        self._sorted_ids = array("q")  # the log ids in order, when closed, and ...
        self._order = array("I")  # ... their rows

    # --- rows ---

    def append(self, log_id: int, first_offset: int, count: int, at_ms: int, batch: bytes) -> None:
        """Add an entry at the end. It is in memory until it is written."""
        rest = _ENTRY.pack(_ENTRY_MAGIC, 0, log_id, first_offset, count, len(batch))[8:]
        crc = _extend(_extend(self._seed, rest), batch)
        row = len(self.log_ids)
        self.add_row(log_id, first_offset, count, at_ms, self.size_bytes, len(batch))
        assert self._last is not None, "a closed segment gets no entries"
        self._previous.append(self._last.get(log_id, -1))
        self._last[log_id] = row
        self.pending.append(_ENTRY_MAGIC + crc.to_bytes(4, "little") + rest)
        self.pending.append(batch)
        size_bytes = ENTRY_BYTES + len(batch)
        self.pending_bytes += size_bytes
        self.size_bytes += size_bytes
        self.is_dirty = True

    def add_row(self, log_id: int, first_offset: int, count: int, at_ms: int, position: int, batch_bytes: int) -> None:
        """Note an entry that is in the file. Rows are found after `close` or `reopen`."""
        self.log_ids.append(log_id)
        self.firsts.append(first_offset)
        self.times.append(at_ms)
        self.counts.append(count)
        self.positions.append(position)
        self.sizes.append(batch_bytes)
        if log_id < self.low_id:
            self.low_id = log_id
        if log_id > self.high_id:
            self.high_id = log_id

    def rows_of(self, log_id: int) -> list[int]:
        """The rows of a log, newest first."""
        if not self.low_id <= log_id <= self.high_id:
            return []
        if self._last is None:
            low = bisect_left(self._sorted_ids, log_id)
            return self._order[low : bisect_right(self._sorted_ids, log_id, low)].tolist()[::-1]
        rows: list[int] = []
        row = self._last.get(log_id, -1)
        while row >= 0:
            rows.append(row)
            row = self._previous[row]
        return rows

    def close(self) -> None:
        """It gets no more rows: sort the log ids and drop the table."""
        if self._last is not None:
            order = sorted(range(len(self.log_ids)), key=self.log_ids.__getitem__)  # stable: older rows first
            self._order = array("I", order)
            self._sorted_ids = array("q", map(self.log_ids.__getitem__, order))
            self._last = None
            self._previous = array("i")

    def reopen(self) -> None:
        """It gets more rows, after it was loaded."""
        self._last, self._previous = {}, array("i")
        for row, log_id in enumerate(self.log_ids):
            self._previous.append(self._last.get(log_id, -1))
            self._last[log_id] = row

    def unwritten(self) -> bytes:
        """The bytes to write at `written_bytes`."""
        return b"".join(self.pending)

    def note_written(self) -> None:
        self.written_bytes = self.size_bytes
        self.pending, self.pending_bytes = [], 0

    def pending_batch(self, row: int) -> bytes | None:
        """The batch of a row that is not in the file yet."""
        if self.positions[row] < self.written_bytes:
            return None
        # Pending rows are the last ones, two items each.
        return self.pending[2 * (row - len(self.log_ids)) + 1]


# --- bytes ---


def encode_header(store: bytes, number: int) -> bytes:
    fields = _HEADER.pack(_HEADER_MAGIC, 1, store, number)
    return fields + checksum(fields)


def is_shared_path(path: str) -> bool:
    """Whether a file below the folder of the logs is a shared segment."""
    return path.rpartition("/")[0].endswith("/shared")


def index_path(segment: SharedSegment) -> str:
    return segment.path.removesuffix(".log") + ".index"


def encode_index(store: bytes, segment: SharedSegment) -> bytes:
    """The rows that are in the file."""
    count = len(segment.log_ids)
    fields = _INDEX.pack(_INDEX_MAGIC, 0, store, segment.number, segment.written_bytes, count)
    columns = b"".join(column.tobytes() for column in _columns(segment))
    rest = fields[8:] + columns
    return _INDEX_MAGIC + checksum(rest) + rest


def _columns(segment: SharedSegment) -> tuple[array[int], ...]:
    return segment.log_ids, segment.firsts, segment.times, segment.counts, segment.positions, segment.sizes


def read_entry(file: File, segment: SharedSegment, row: int) -> bytes | str:
    """The batch of a row, or what is wrong with it."""
    size_bytes = segment.sizes[row]
    data = file.read_at(segment.positions[row], ENTRY_BYTES + size_bytes)
    if len(data) < ENTRY_BYTES + size_bytes:
        return f"the file ends {ENTRY_BYTES + size_bytes - len(data)} bytes early"
    magic, crc, log_id, first_offset, _, batch_bytes = _ENTRY.unpack_from(data)
    if magic != _ENTRY_MAGIC or (log_id, first_offset, batch_bytes) != (
        segment.log_ids[row], segment.firsts[row], size_bytes,
    ):  # fmt: skip
        return "the entry is of another log, or damaged"
    if _extend(segment._seed, data[8:]) != crc:
        return "checksum mismatch"
    return data[ENTRY_BYTES:]


# --- load: from the index, then by walking through what it does not cover ---


def load(disk: Disk, file: File, store: bytes, segment: SharedSegment) -> None:
    """Fill a segment from its files. `close` or `reopen` it before it is used."""
    size = file.size()
    segment.is_created = True
    index = index_path(segment)
    covered_bytes = HEADER_BYTES
    if disk.exists(index):
        index_file = disk.open(index)
        try:
            covered_bytes = _read_index(index_file.read_at(0, index_file.size()), store, segment) or HEADER_BYTES
        finally:
            index_file.close()
    for entry in _walk(file, covered_bytes, size, segment._seed):
        segment.add_row(*entry)
        segment.is_dirty = True  # the index is to be written again
        segment.unproven_from = covered_bytes  # an index is written after a sync, so what it covers is on the device
    # Bytes that are no entry stay where they are: what follows them is recognised by its checksum.
    segment.size_bytes = segment.written_bytes = max(size, covered_bytes)
    segment.loaded_rows = len(segment.log_ids)


def _read_index(data: bytes, store: bytes, segment: SharedSegment) -> int:
    """Fill the columns from an index file; returns how many bytes of the segment it covers, 0 if it is not usable."""
    if len(data) < _INDEX.size or data[:4] != _INDEX_MAGIC:
        return 0
    _, crc, owner, number, covered_bytes, count = _INDEX.unpack_from(data)
    widths = [column.itemsize for column in _columns(segment)]
    end = _INDEX.size + count * sum(widths)
    if end > len(data) or google_crc32c.value(data[8:end]) != crc or (owner, number) != (store, segment.number):
        return 0
    at = _INDEX.size
    for column, width in zip(_columns(segment), widths, strict=True):
        column.frombytes(data[at : at + count * width])
        at += count * width
    if count:
        segment.low_id, segment.high_id = min(segment.log_ids), max(segment.log_ids)
    return int(covered_bytes)


def index_end(data: bytes) -> int | None:
    """How many bytes of its segment an index covers; None if it is not one. Its checksum is checked when it is read."""
    if len(data) < _INDEX.size or data[:4] != _INDEX_MAGIC:
        return None
    return int(_INDEX.unpack_from(data)[4])


class _Entry(NamedTuple):
    """An entry that a walk found: the arguments of `add_row`."""

    log_id: int
    first_offset: int
    records: int
    at_ms: int
    position: int
    size_bytes: int


def _walk(file: File, position: int, end: int, seed: int) -> Iterator[_Entry]:
    """Every intact entry from a position on. After damage it resumes at the next intact one."""
    base, data = position, b""
    while position + ENTRY_BYTES <= end:
        at = position - base
        if len(data) - at < ENTRY_BYTES:
            base, data, at = position, file.read_at(position, min(READ_BYTES, end - position)), 0
            if len(data) < ENTRY_BYTES:
                return
        entry, needed_bytes = _entry_at(data, at, base, seed)
        if needed_bytes and position + needed_bytes <= end:  # its end is after what was read
            base, data, at = position, file.read_at(position, max(needed_bytes, min(READ_BYTES, end - position))), 0
            entry, _ = _entry_at(data, at, base, seed)
        if entry is not None:
            yield entry
            position += ENTRY_BYTES + entry.size_bytes
            continue
        following = data.find(_ENTRY_MAGIC, at + 1)
        position = base + (following if following >= 0 else max(at + 1, len(data) - len(_ENTRY_MAGIC) + 1))


def _entry_at(data: bytes, at: int, base: int, seed: int) -> tuple[_Entry | None, int]:
    """The entry at a place of `data`, which begins at `base` in the file. If it may end after `data`, how many bytes it
    needs; otherwise 0."""
    magic, crc, log_id, first_offset, count, size_bytes = _ENTRY.unpack_from(data, at)
    if magic != _ENTRY_MAGIC or not records.HEADER_BYTES <= size_bytes <= BATCH_BYTES_MAX:
        return None, 0
    end = at + ENTRY_BYTES + size_bytes
    if end > len(data):
        return None, end - at
    if _extend(seed, data[at + 8 : end]) != crc:
        return None, 0
    at_ms = _batch_header(data, at + ENTRY_BYTES)[3]
    return _Entry(log_id, first_offset, count, at_ms, base + at, size_bytes), 0
