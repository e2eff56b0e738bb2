"""Rows as Arrow batches in, chunks of packed records out: which row goes to which partition, and where a chunk ends.

Columns are cut, hashed and joined as columns; no row becomes a Python object unless it has an envelope. Where a chunk
ends depends on the rows of its lane alone, never on how Spark cut its Arrow batches, so a task that is run again cuts
the same chunks. Knows no broker: how many partitions a topic has is asked of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftq.spark.sink.options import CHUNK_BYTES_MAX, BadRow, WriteOptions, heads_of
from driftq.wire.partitions import fnv1a
from driftq.wire.records import HEADS, KEYS, NO_EPOCH, pack_body

LANE_BYTES_MIN = 64 << 10
ROW_BYTES = 12  # what a row costs in the ends of columns
LONG_KEY_BYTES = 128
SPREAD = -1  # the lane of rows without key and partition

Numbers = npt.NDArray[np.int64]


class Slice(NamedTuple):
    """Some rows of one lane. Arrays are binary and without nulls."""

    values: pa.Array
    keys: pa.Array | None
    heads: pa.Array | None


class PackedChunk(NamedTuple):
    """Rows that are sent together. `seq` counts the chunks of a lane; `spread` tells which kind of lane it was."""

    topic: str
    partition: int
    spread: bool
    seq: int
    rows: int
    slices: tuple[Slice, ...]

    def pack(self, producer: str = "", epoch: int = NO_EPOCH, *, compress: bool = False) -> bytes:
        """The bytes that the broker stores."""
        columns: list[list[pa.Array]] = []
        attributes = 0
        for bit, texts in (
            (KEYS, [piece.keys for piece in self.slices]),
            (HEADS, [piece.heads for piece in self.slices]),
        ):
            if any(array is not None and len(_content(array)) for array in texts):
                attributes |= bit
                columns.append([_or_empty(array, len(p.values)) for array, p in zip(texts, self.slices, strict=True)])
        columns.append([piece.values for piece in self.slices])
        parts: list[bytes | memoryview] = [_ends(column) for column in columns]
        parts.extend(_content(array) for column in columns for array in column)
        seq = self.seq if producer else 0
        return pack_body(parts, self.rows, attributes, producer=producer, epoch=epoch, seq=seq, compress=compress)

    def values(self) -> list[bytes]:
        """Each value by itself, for those who must look."""
        return [value for piece in self.slices for value in piece.values.to_pylist()]


class _Lane:
    """What waits for one partition of one topic."""

    __slots__ = ("cut", "pieces", "rows", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[Slice] = []
        self.rows = 0
        self.size_bytes = 0
        self.cut = 0  # chunks so far


class Chunker:
    """The rows of one task attempt. `task` shifts where the spreading begins, so that tasks do not all begin at 0."""

    def __init__(self, options: WriteOptions, partitions_of: Callable[[str], int], task: int) -> None:
        self._options = options
        self._partitions_of = partitions_of
        self._task = task
        self._counts: dict[str, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[PackedChunk]:
        """Take rows; give the chunks that are full."""
        if not batch.num_rows:
            return
        names = batch.schema.names
        values = batch.column("value")
        if values.null_count:
            index = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._bad_row("value", index, "it is null; an empty message is ''")
        keys = _binary(batch.column("key")) if "key" in names and not self._options.stream else None
        heads = heads_of(batch, staged=self._options.staged, refuse=self._bad_row)
        whole = Slice(_binary(values), keys, heads)
        sizes = _sizes(whole)
        if int(sizes.max()) > CHUNK_BYTES_MAX:
            index = int(sizes.argmax())
            raise self._bad_row("value", index, f"the row has {sizes[index]} bytes; at most {CHUNK_BYTES_MAX} fit")
        for topic, partition, rows in self._placed(batch, keys):
            piece, piece_sizes = (whole, sizes) if rows is None else (_taken(whole, rows), sizes[rows])
            yield from self._fill(topic, partition, piece, piece_sizes)
        self.rows += batch.num_rows

    def finish(self) -> Iterator[PackedChunk]:
        """Whatever waits."""
        for (topic, partition), lane in self._lanes.items():
            if lane.rows:
                yield self._seal(topic, partition, lane)

    # --- where ---

    def _placed(self, batch: pa.RecordBatch, keys: pa.Array | None) -> Iterator[tuple[str, int, Numbers | None]]:
        """Topics and partitions with the rows that go there; None for all of them."""
        if self._options.stream:
            yield "", 0, None
            return
        for topic, rows in self._topics(batch):
            yield from self._partitions(topic, rows, batch, keys)

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Numbers | None]]:
        if self._options.topic:
            yield self._options.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            index = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._bad_row("topic", index, "it is null, and there is no option topic")
        coded = column.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        names = coded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        for code, name in enumerate(names):
            yield name, np.flatnonzero(codes == code)

    def _partitions(
        self, topic: str, rows: Numbers | None, batch: pa.RecordBatch, keys: pa.Array | None
    ) -> Iterator[tuple[str, int, Numbers | None]]:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        places: Numbers | None = None
        if "partition" in batch.schema.names:
            places = self._named(topic, count, batch.column("partition"), rows)
        if count == 1:
            yield topic, 0, rows
            return
        if keys is not None:
            hashed = _hashed(keys if rows is None else keys.take(pa.array(rows)), count)
            places = hashed if places is None else np.where(places >= 0, places, hashed)
        if places is None:
            yield topic, SPREAD, rows
            return
        order = np.argsort(places, kind="stable")
        lanes, begins = np.unique(places[order], return_index=True)
        for lane, of_lane in zip(lanes, np.split(order, begins[1:]), strict=True):
            everything = rows is None and len(lanes) == 1
            yield topic, int(lane), None if everything else (of_lane if rows is None else rows[of_lane])

    def _named(self, topic: str, count: int, column: pa.Array, rows: Numbers | None) -> Numbers:
        found: Numbers = column.cast(pa.int64()).fill_null(SPREAD).to_numpy(zero_copy_only=False)
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        wrong = (found >= count) | ((found < 0) & ~is_null)
        mine = np.arange(len(found)) if rows is None else rows
        bad = mine[wrong[mine]]
        if len(bad):
            index = int(bad[0])
            raise self._bad_row("partition", index, f"it is {found[index]}; topic {topic} has {count} partitions")
        return found if rows is None else found[rows]

    # --- when ---

    def _fill(self, topic: str, partition: int, piece: Slice, sizes: Numbers) -> Iterator[PackedChunk]:
        lane = self._lanes.setdefault((topic, partition), _Lane())
        most_bytes = self._lane_bytes(topic, partition)
        ends = np.cumsum(sizes)
        begin, taken_bytes = 0, 0
        while begin < len(sizes):
            fit = int(np.searchsorted(ends, taken_bytes + most_bytes - lane.size_bytes, side="right"))
            end = min(max(fit, begin), begin + self._options.chunk_rows - lane.rows)
            if end == begin and not lane.rows:
                end = begin + 1  # a row larger than a chunk is a chunk
            if end > begin:
                lane.pieces.append(piece if end - begin == len(sizes) else _cut(piece, begin, end))
                lane.rows += end - begin
                lane.size_bytes += int(ends[end - 1]) - taken_bytes
                begin, taken_bytes = end, int(ends[end - 1])
            if begin < len(sizes) or lane.rows >= self._options.chunk_rows or lane.size_bytes >= most_bytes:
                yield self._seal(topic, partition, lane)

    def _lane_bytes(self, topic: str, partition: int) -> int:
        """All lanes of a topic share the buffer, so the memory of a task does not grow with the partitions."""
        lanes = 1 if partition == SPREAD else self._counts.get(topic, 1)
        return max(LANE_BYTES_MIN, min(self._options.chunk_bytes, self._options.buffer_bytes // lanes))

    def _seal(self, topic: str, partition: int, lane: _Lane) -> PackedChunk:
        """Chunks that may go anywhere go round: chunk n of all goes to partition n + task, and is chunk n // count
        of what this lane has in that partition."""
        seq = lane.cut
        spread = partition == SPREAD
        if spread:
            count = self._counts[topic]
            partition, seq = (self._task + seq) % count, seq // count
        chunk = PackedChunk(topic, partition, spread, seq, lane.rows, tuple(lane.pieces))
        lane.pieces, lane.rows, lane.size_bytes = [], 0, 0
        lane.cut += 1
        return chunk

    def _bad_row(self, column: str, index: int, why: str) -> BadRow:
        return BadRow(f"column {column}, row {self.rows + index} of task {self._task}: {why}")


# --- columns ----------------------------------------------------------------------------------------------------------


def _binary(column: pa.Array) -> pa.Array:
    array = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
    return array.fill_null(b"") if array.null_count else array


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Where each text begins, and where the last one ends."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _content(array: pa.Array) -> memoryview:
    offsets = _offsets(array)
    data = array.buffers()[2] if len(array) else None
    return memoryview(b"") if data is None else memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _ends(column: list[pa.Array]) -> bytes:
    """The ends of all texts of a chunk's column, with a 0 in front."""
    lengths = [np.diff(_offsets(array)) for array in column]
    ends = np.zeros(1 + sum(map(len, lengths)), "<u4")
    np.cumsum(np.concatenate(lengths), out=ends[1:])
    return ends.tobytes()


def _or_empty(array: pa.Array | None, count: int) -> pa.Array:
    return pa.array([b""] * count, pa.binary()) if array is None else array


def _sizes(piece: Slice) -> Numbers:
    sizes: Numbers = np.diff(_offsets(piece.values)).astype(np.int64) + ROW_BYTES
    for column in (piece.keys, piece.heads):
        if column is not None:
            sizes += np.diff(_offsets(column))
    return sizes


def _taken(piece: Slice, rows: Numbers) -> Slice:
    picks = pa.array(rows)
    return Slice(*(None if column is None else column.take(picks) for column in piece))


def _cut(piece: Slice, begin: int, end: int) -> Slice:
    return Slice(*(None if column is None else column.slice(begin, end - begin) for column in piece))


def _hashed(keys: pa.Array, count: int) -> Numbers:
    """The partition of each key as the broker has it; SPREAD for the empty key."""
    offsets = _offsets(keys).astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = np.frombuffer(_whole(keys), np.uint8)
    hashes = np.full(len(lengths), 0x811C9DC5, np.uint32)
    prime = np.uint32(0x01000193)
    for at in range(min(int(lengths.max(initial=0)), LONG_KEY_BYTES)):
        rows = np.flatnonzero(lengths > at)
        hashes[rows] = (hashes[rows] ^ data[starts[rows] + at]) * prime
    for row in np.flatnonzero(lengths > LONG_KEY_BYTES):
        hashes[row] = fnv1a(keys[int(row)].as_py())
    return np.where(lengths > 0, (hashes % np.uint32(count)).astype(np.int64), SPREAD)


def _whole(array: pa.Array) -> memoryview:
    data = array.buffers()[2] if len(array) else None
    return memoryview(b"") if data is None else memoryview(data)
