"""A segment whose file was dropped from the disk because the archive has it: what stays, and what a read meets.

    <first_offset>.tier    | magic, checksum | which object has its bytes (`ColdPlace`) | the segment's index |

The index stays on the disk, with a checksum for each run. So a log's spans and times are known without the archive, and
bytes that come from it are never trusted: each run is compared with the checksum that was made when it was written.

A read of records that are not here raises `ColdRange`, and nothing else happens: it names the windows of the object
that are missing. `engine.cold_reads` downloads them, and the same read then succeeds. Nothing here reads from an object
store.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
from msgspec import DecodeError, Struct, ValidationError, json

from driftq.storage.log_segment import read_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driftq.storage.log_segment import BatchRun, LogSegment

SUFFIX = ".tier"
WINDOW_BYTES = 1 << 20  # of a segment, fetched with one request, unless one record is wanted
LONG_WINDOW_BYTES = 4 << 20  # the same for a reader that wants more than that: half of a small request is waiting
AHEAD_BYTES = 8 << 20  # fetched for a reader of long ranges before it asks

_HEAD = struct.Struct("<4sII")  # magic, checksum of the rest, size of the place
_MAGIC = b"DQT\x01"


class ColdPlace(Struct, frozen=True):
    """Where the bytes of a segment are, and what is known about them without its index."""

    store: str  # the uuid of the data folder, in hex
    log_id: int
    first_offset: int
    end_offset: int
    size_bytes: int
    last_ms: int
    crc: int  # over all bytes
    key: str  # of the object
    url: str  # of the archive


class ColdWindow(NamedTuple):
    """Neighbouring runs of one cold segment, which are fetched with one request."""

    segment: LogSegment
    runs: tuple[BatchRun, ...]

    @property
    def position(self) -> int:
        return self.runs[0].position

    @property
    def size_bytes(self) -> int:
        return self.runs[-1].position + self.runs[-1].size_bytes - self.position

    @property
    def name(self) -> tuple[str, int, int]:
        """The same for every reader that misses it."""
        assert self.segment.cold is not None
        return self.segment.cold.key, self.position, self.size_bytes


class ColdRange(Exception):
    """The records that were asked for are only in the archive. Nothing was changed: ask again when they are here."""

    def __init__(self, log_id: int, offset: int, segment: LogSegment, index: int) -> None:
        super().__init__(f"log {log_id}: the records at offset {offset} are only in the archive")
        self.log_id = log_id
        self.offset = offset
        self._segment = segment
        self._index = index  # of the first run that is missing
        self.segment_end = segment.end_offset
        self.at_ms = segment.runs[index].last_ms  # its records are about so old
        self._wanted_bytes = 1
        self._end_offset = offset + 1

    @property
    def place(self) -> ColdPlace:
        assert self._segment.cold is not None
        return self._segment.cold

    def wanting(self, size_bytes: int, end_offset: int) -> ColdRange:
        """For a reader of a range, which will continue behind the first record."""
        self._wanted_bytes, self._end_offset = size_bytes, end_offset
        return self

    def runs(self) -> tuple[Sequence[BatchRun], int]:
        """What was asked for, as far as it is one range of the object, and the offset after it: for a reader that gets
        it from the object store."""
        runs = contiguous_runs(self._segment.runs, self._index, self._wanted_bytes, self._end_offset)
        after = self._index + len(runs)
        all_runs = self._segment.runs
        end_offset = all_runs[after].first_offset if after < len(all_runs) else self._segment.end_offset
        return runs, min(end_offset, self._end_offset)

    def windows(self) -> list[ColdWindow]:
        """What to fetch so that the read succeeds: a single run for one record, else whole windows."""
        segment = self._segment
        if self._wanted_bytes <= 1:
            return [ColdWindow(segment, (segment.runs[self._index],))]
        return windows_from(segment, self._index, self._wanted_bytes, self._end_offset)


def contiguous_runs(runs: Sequence[BatchRun], index: int, size_bytes: int, end_offset: int) -> Sequence[BatchRun]:
    """The run of this index, and those right after it in the object that begin before an offset and fit."""
    position = runs[index].position + runs[index].size_bytes
    limit = runs[index].position + size_bytes
    last = index + 1
    while last < len(runs) and runs[last].first_offset < end_offset and runs[last].position == position:
        position += runs[last].size_bytes
        if position > limit:
            break
        last += 1
    return runs[index:last]


def windows_from(segment: LogSegment, index: int, size_bytes: int, end_offset: int) -> list[ColdWindow]:
    """The windows of a segment that hold so much from a run on, whole, as far as they begin before an offset."""
    runs = segment.runs
    window_bytes = LONG_WINDOW_BYTES if size_bytes > WINDOW_BYTES else WINDOW_BYTES
    number = runs[index].position // window_bytes
    last = (runs[index].position + size_bytes - 1) // window_bytes
    groups: dict[int, list[BatchRun]] = {}
    while index > 0 and runs[index - 1].position // window_bytes == number:
        index -= 1
    for at in range(index, len(runs)):
        group = runs[at].position // window_bytes
        if group > last or (group not in groups and group != number and runs[at].first_offset >= end_offset):
            break
        groups.setdefault(group, []).append(runs[at])
    return [ColdWindow(segment, tuple(group)) for group in groups.values()]


def tier_path(segment_path: str) -> str:
    return segment_path.removesuffix(".log") + SUFFIX


def encode_tier(place: ColdPlace, index: bytes) -> bytes:
    fields = json.encode(place)
    rest = fields + index
    return _HEAD.pack(_MAGIC, google_crc32c.value(rest), len(fields)) + rest


def read_place(data: bytes, store: bytes, log_id: int, first_offset: int) -> ColdPlace | None:
    """Where a segment is; None if these bytes do not say it."""
    place = decode_place(data)
    if place is None or (place.store, place.log_id, place.first_offset) != (store.hex(), log_id, first_offset):
        return None
    return place


def decode_place(data: bytes) -> ColdPlace | None:
    if len(data) < _HEAD.size:
        return None
    magic, crc, size = _HEAD.unpack_from(data)
    rest = data[_HEAD.size :]
    if magic != _MAGIC or google_crc32c.value(rest) != crc:
        return None
    try:
        return json.decode(rest[:size], type=ColdPlace)
    except (DecodeError, ValidationError):
        return None


def index_of(data: bytes) -> bytes:
    """The segment's index, as its file had it, in an intact tier file."""
    _, _, size = _HEAD.unpack_from(data)
    return data[_HEAD.size + size :]


def load_cold(data: bytes, store: bytes, log_id: int, segment: LogSegment) -> None:
    """Fill a cold segment from its file. If that is damaged, its reads report it."""
    segment.loaded = True
    end_offset = segment.end_offset
    if read_place(data, store, log_id, segment.first_offset) == segment.cold:
        if read_index(index_of(data), store, log_id, segment) and segment.end_offset == end_offset:
            return
    segment.cut(0)
    segment.end_offset = segment.first_offset
    segment.wrong = f"{tier_path(segment.path)} is damaged; it names their place in the archive"
