"""One segment file of one log: its header, its batches, and the sparse index that says where they are.

    <first_offset>.log     | header | batch | batch | batch | batch | batch | batch |
    <first_offset>.index            | run 0: crc    | run 1: crc            | run 2 |

The batches are in the file exactly as they travel, one after the other. The index divides them into *runs* of about
32 KiB, each with one checksum over all its bytes. So a read verifies everything that it returns, including the broker's
stamps, which a batch's own checksum leaves out. The index is a cache: it can be rebuilt by walking through the batches.

Pure, except for `read_run`, `walk` and `load`, which read the file they get. Knows one segment; `file_log_store` knows
the logs.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from driftq.storage.journal_files import checksum
from driftq.wire import records

if TYPE_CHECKING:
    from driftq.storage.cold_segments import ColdPlace
    from driftq.storage.disk import Disk, File

RUN_BYTES = 32 << 10
READ_BYTES = 1 << 20
BATCH_BYTES_MAX = 2 * records.RAW_BYTES_MAX

_HEADER = struct.Struct("<4sI16sqq20x")  # magic, version, store, log_id, first_offset; then 4 bytes of checksum
HEADER_BYTES = _HEADER.size + 4  # 64
_HEADER_MAGIC = b"DQL\x01"
_INDEX = struct.Struct("<4sI16sqqqI4x")  # magic, crc, store, log_id, first_offset, end_offset, count
_INDEX_MAGIC = b"DQX\x01"
_ENTRY = struct.Struct("<qqIIq")  # first_offset, position, size_bytes, crc, last_ms

_extend = google_crc32c.extend
_batch_header = records.HEADER.unpack_from


class BatchRun:
    """Several whole batches that are verified and cached together."""

    __slots__ = ("batches", "crc", "first_offset", "firsts", "last_ms", "position", "size_bytes")

    def __init__(self, first_offset: int, position: int, size_bytes: int = 0, crc: int = 0, last_ms: int = 0) -> None:
        self.first_offset = first_offset
        self.position = position  # in the file
        self.size_bytes = size_bytes
        self.crc = crc  # over all its bytes
        self.last_ms = last_ms  # the latest append time of its batches
        # The first offsets and bytes of its batches, while the run is in the cache.
        self.firsts: list[int] | None = None
        self.batches: list[bytes] | None = None

    def add(self, batch: bytes, at_ms: int) -> None:
        self.size_bytes += len(batch)
        self.crc = _extend(self.crc, batch)
        self.last_ms = max(self.last_ms, at_ms)


class LogSegment:
    """What is known in memory about one segment file."""

    __slots__ = (
        "closed", "cold", "end_offset", "first_offset", "firsts", "loaded", "open_run", "path", "runs", "size_bytes",
        "wrong",
    )  # fmt: skip

    def __init__(self, path: str, first_offset: int) -> None:
        self.path = path
        self.first_offset = first_offset
        self.end_offset = first_offset  # the offset after its last record
        self.size_bytes = HEADER_BYTES  # where the next batch is written
        self.loaded = True  # False: only its range of offsets is known, not its runs
        self.closed = False  # True: damaged at its end, so nothing is added to it
        self.cold: ColdPlace | None = None  # its file is not here: the archive has it
        self.open_run: BatchRun | None = None  # gets the next batch; always started by this process, so undamaged
        self.wrong = "the records are missing"  # why a read finds nothing here
        self.firsts: list[int] = []  # the first offset of each run, for bisection
        self.runs: list[BatchRun] = []

    def add(self, first_offset: int, count: int, batch: bytes, at_ms: int) -> BatchRun:
        """Note batches that were written at the end of the file; returns the run they became a part of."""
        run = self.open_run
        if run is None or run.size_bytes >= RUN_BYTES:
            run = self.open_run = BatchRun(first_offset, self.size_bytes)
            self.firsts.append(first_offset)
            self.runs.append(run)
        run.add(batch, at_ms)
        self.size_bytes += len(batch)
        self.end_offset = first_offset + count
        return run

    def run_room(self, segment_bytes: int) -> int:
        """How many bytes the next write may have: up to the end of the run that is being filled, or of a new run, and
        up to the end of the segment."""
        run = self.open_run
        used = run.size_bytes if run is not None and run.size_bytes < RUN_BYTES else 0
        return min(RUN_BYTES - used, segment_bytes - self.size_bytes)

    def find(self, offset: int) -> int:
        """The number of the run that holds an offset of this segment."""
        return max(0, bisect_right(self.firsts, offset) - 1)

    def last_ms(self) -> int:
        return self.cold.last_ms if self.cold is not None else max((run.last_ms for run in self.runs), default=0)

    def make_cold(self, place: ColdPlace) -> None:
        """Its file is gone, or about to go. Its runs are known again when they are read."""
        self.cold = place
        self.end_offset, self.size_bytes = place.end_offset, place.size_bytes
        self.closed = True
        self.unload()

    def unload(self) -> None:
        """Forget the runs; a later read loads them again."""
        self.open_run = None
        self.loaded = False
        self.runs, self.firsts = [], []

    def cut(self, run_index: int) -> None:
        """Forget this run and all after it."""
        self.open_run = None
        if run_index < len(self.runs):
            self.size_bytes = self.runs[run_index].position
            self.end_offset = self.runs[run_index].first_offset
            del self.runs[run_index:], self.firsts[run_index:]


# --- header and index ---


def encode_header(store: bytes, log_id: int, first_offset: int) -> bytes:
    fields = _HEADER.pack(_HEADER_MAGIC, 1, store, log_id, first_offset)
    return fields + checksum(fields)


def wrong_header(page: bytes, store: bytes, log_id: int, first_offset: int) -> str | None:
    """Why these are not the first bytes of this segment, or None if they are."""
    if len(page) < HEADER_BYTES or page[_HEADER.size : HEADER_BYTES] != checksum(page[: _HEADER.size]):
        return "the segment's header is damaged"
    magic, version, owner, found_log, found_first = _HEADER.unpack_from(page)
    if magic != _HEADER_MAGIC or version != 1:
        return f"the segment's format ({version}) is not known here"
    if owner != store:
        return f"the segment belongs to another store ({owner.hex()})"
    if (found_log, found_first) != (log_id, first_offset):
        return f"this is the segment of log {found_log} from offset {found_first} under another name"
    return None


def encode_index(store: bytes, log_id: int, segment: LogSegment) -> bytes:
    entries = b"".join(
        _ENTRY.pack(run.first_offset, run.position, run.size_bytes, run.crc, run.last_ms) for run in segment.runs
    )
    count = len(segment.runs)
    fields = _INDEX.pack(_INDEX_MAGIC, 0, store, log_id, segment.first_offset, segment.end_offset, count)
    rest = fields[8:] + entries
    return _INDEX_MAGIC + checksum(rest) + rest


def index_path(segment: LogSegment) -> str:
    return segment.path.removesuffix(".log") + ".index"


def read_index(data: bytes, store: bytes, log_id: int, segment: LogSegment) -> bool:
    """Fill a segment from its index file. False if the index is not usable; it can be rebuilt."""
    if len(data) < _INDEX.size or data[:4] != _INDEX_MAGIC:
        return False
    _, crc, owner, found_log, first_offset, end_offset, count = _INDEX.unpack_from(data)
    end = _INDEX.size + count * _ENTRY.size
    if end > len(data) or google_crc32c.value(data[8:end]) != crc:
        return False
    if (owner, found_log, first_offset) != (store, log_id, segment.first_offset):
        return False
    segment.runs = [BatchRun(*entry) for entry in _ENTRY.iter_unpack(data[_INDEX.size : end])]
    segment.firsts = [run.first_offset for run in segment.runs]
    segment.end_offset = end_offset
    if segment.runs:
        segment.size_bytes = segment.runs[-1].position + segment.runs[-1].size_bytes
    return True


def index_end(data: bytes) -> int | None:
    """How many bytes of its segment an index describes; None if it is not usable."""
    if len(data) < _INDEX.size or data[:4] != _INDEX_MAGIC:
        return None
    _, crc, _, _, _, _, count = _INDEX.unpack_from(data)
    end = _INDEX.size + count * _ENTRY.size
    if end > len(data) or google_crc32c.value(data[8:end]) != crc:
        return None
    if not count:
        return HEADER_BYTES
    _, position, size_bytes, _, _ = _ENTRY.unpack_from(data, end - _ENTRY.size)
    return int(position + size_bytes)


# --- batches ---


class Walked(NamedTuple):
    """One batch of a walk through a file."""

    first_offset: int
    records: int
    at_ms: int
    batch: bytes


def walk(file: File, position: int, end: int, offset: int) -> Iterator[Walked]:
    """The batches from `position` on while they are whole, intact and dense from `offset`. Damage ends the walk."""
    base, data = position, b""
    while position + records.HEADER_BYTES <= end:
        at = position - base
        if len(data) - at < records.HEADER_BYTES:
            base, data, at = position, file.read_at(position, min(READ_BYTES, end - position)), 0
            if len(data) < records.HEADER_BYTES:
                return  # a power cut may leave less of the file than its index says
        magic, length, first_offset, at_ms, _, _, _, count, _, _, _ = _batch_header(data, at)
        if magic != records.MAGIC or first_offset != offset or not records.HEADER_BYTES <= length <= BATCH_BYTES_MAX:
            return
        if position + length > end:
            return
        if len(data) - at < length:
            base, data, at = position, file.read_at(position, max(length, min(READ_BYTES, end - position))), 0
        batch = data[at : at + length]
        if not count or len(batch) < length or not records.verify(batch):
            return
        yield Walked(first_offset, count, at_ms, batch)
        position += length
        offset += count


def read_run(file: File, run: BatchRun) -> str | None:
    """Load a run's batches from the file; returns what is wrong with it, or None."""
    data = file.read_at(run.position, run.size_bytes)
    if len(data) < run.size_bytes:
        return f"the file ends {run.size_bytes - len(data)} bytes early"
    if google_crc32c.value(data) != run.crc:
        return "checksum mismatch"
    run.firsts, run.batches = split_run(data)
    return None


def split_run(data: bytes) -> tuple[list[int], list[bytes]]:
    """The first offsets and the bytes of the batches in a run that was verified."""
    firsts: list[int] = []
    batches: list[bytes] = []
    position = 0
    while position < len(data):
        _, length, first_offset, _, _, _, _, _, _, _, _ = _batch_header(data, position)
        firsts.append(first_offset)
        batches.append(data[position : position + length])
        position += length
    return firsts, batches


# --- load: from the index, or by walking through the batches ---


def load(
    disk: Disk, file: File, store: bytes, log_id: int, segment: LogSegment, end: int, *, is_last: bool = False
) -> bool:
    """Fill a segment whose records end at `end`. The last segment of a log is also cut there: the replay of the journal
    appends the rest again. True if its index must be rewritten and the names in its folder synced."""
    segment.loaded = True
    segment.end_offset = segment.first_offset
    size = file.size()
    wrong = wrong_header(file.read_at(0, HEADER_BYTES), store, log_id, segment.first_offset)
    if wrong:
        segment.wrong = wrong  # nothing in it can be trusted; a read reports this
        return False
    index = index_path(segment)
    if disk.exists(index):
        index_file = disk.open(index)
        if not read_index(index_file.read_at(0, index_file.size()), store, log_id, segment):
            segment.cut(0)
        index_file.close()
    changed = False
    if segment.end_offset > end:
        _cut(file, segment, end)
        # It describes bytes that are replaced. A power cut must not bring it back after they are.
        disk.remove("index.remove", index)
        changed = True
    elif segment.end_offset < end and size > segment.size_bytes:
        # The index is older than the snapshot, or gone: walk through what it does not cover.
        _walk(file, segment, size, end)
        changed = True
    segment.closed = size < segment.size_bytes
    if is_last and size > segment.size_bytes and segment.end_offset == end:
        file.truncate("log.cut", segment.size_bytes)
        changed = True
    return changed


def _cut(file: File, segment: LogSegment, end: int) -> None:
    """Forget everything from `end` on. The run that holds `end` is read again, batch by batch."""
    at = segment.find(end)
    stop = segment.runs[at].position + segment.runs[at].size_bytes
    segment.cut(at)
    _walk(file, segment, stop, end)


def _walk(file: File, segment: LogSegment, stop: int, end: int) -> None:
    for walked in walk(file, segment.size_bytes, stop, segment.end_offset):
        if walked.first_offset >= end:
            break
        segment.add(walked.first_offset, walked.records, walked.batch, walked.at_ms)
