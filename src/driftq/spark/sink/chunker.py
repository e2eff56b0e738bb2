"""The chunker: Arrow batches in, chunks of packed records out. Decides where each row goes and where a chunk ends.

    Arrow batch --_rows_by_partition--> lane orders/0  --_fill--> chunk seq 0, 1, 2 ...
                                        lane orders/1  --_fill--> chunk seq 0, 1 ...
                                        lane orders/-1 --_fill--> chunks that go round robin over the partitions

A lane buffers the rows for one partition of one topic. A row goes to the partition that it names, else to the one of
its key (the broker's FNV-1a hash, computed for all keys at once), else to the round-robin lane.

A chunk ends when its lane has `chunkRows` rows or `chunkBytes` bytes. That depends on the rows of the lane alone, never
on how Spark cut its Arrow batches, so a task that is run again with the same rows makes the same chunks with the same
numbers: direct mode needs this. Columns are cut, hashed and joined as columns; a row becomes a Python object only if
it has an envelope. Knows no broker: the number of partitions of a topic comes from a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google_crc32c import value as crc32c

from driftq.spark.sink.envelope import BadRow, heads_of
from driftq.spark.sink.options import CHUNK_BYTES_MAX, ENVELOPE_COLUMNS, WriteOptions
from driftq.wire.partitions import fnv1a
from driftq.wire.records import HEADS, KEYS, NO_EPOCH, pack_body

LANE_BYTES_MIN = 64 << 10
ENVELOPE_NAMES = frozenset(("head", *ENVELOPE_COLUMNS))
ENVELOPE_ROWS_MAX = 10_000  # of a chunk whose rows may have a time, a label or a tenant: the broker takes no more
ROW_BYTES = 12  # the size of a row's entries in the ends of three columns
LONG_KEY_BYTES = 128  # longer keys are hashed one by one
DIGEST_MASK = (1 << 64) - 1
ROUND_ROBIN = -1  # the lane of rows without key and partition

Numbers = npt.NDArray[np.int64]


class Slice(NamedTuple):
    """Consecutive rows of one lane. Arrays are binary and without nulls."""

    values: pa.Array
    keys: pa.Array | None
    heads: pa.Array | None


class PackedChunk(NamedTuple):
    """Rows that are sent together."""

    topic: str
    partition: int
    round_robin: bool  # from the round-robin lane, whose chunks are counted apart
    seq: int  # counts the chunks of a lane in this partition, from 0
    rows: int
    slices: tuple[Slice, ...]

    def pack(self, producer: str = "", epoch: int = NO_EPOCH, *, compress: bool = False) -> bytes:
        """The packed batch that the broker stores."""
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
        parts: list[Any] = [_ends(column) for column in columns]
        parts.extend(_content(array) for column in columns for array in column)
        seq = self.seq if producer else 0
        return pack_body(parts, self.rows, attributes, producer=producer, epoch=epoch, seq=seq, compress=compress)

    def digest(self) -> int:
        """The sum of a hash of each row, mod 2^64: of its topic, the partition it must go to, key, head and value. It
        depends neither on the order of the rows nor on how they were cut into chunks."""
        partition = ROUND_ROBIN if self.round_robin else self.partition
        seed = fnv1a(f"{self.topic}/{partition}".encode())
        return sum(_digest(piece, seed) for piece in self.slices) & DIGEST_MASK

    def values(self) -> list[bytes]:
        """The values as Python objects, for streams."""
        return [value for piece in self.slices for value in piece.values.to_pylist()]


class _Lane:
    """The rows that are buffered for one partition of one topic."""

    __slots__ = ("chunks", "pieces", "rows", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[Slice] = []
        self.rows = 0
        self.size_bytes = 0
        self.chunks = 0  # sealed so far


class Chunker:
    """The rows of one task attempt. The round robin starts at partition `task`, so that not all tasks start at 0."""

    def __init__(self, options: WriteOptions, partitions_of: Callable[[str], int], task: int) -> None:
        self._options = options
        self._chunk_rows = options.chunk_rows
        self._partitions_of = partitions_of
        self._task = task
        self._counts: dict[str, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[PackedChunk]:
        """Add rows; yields the chunks that are full."""
        if not batch.num_rows:
            return
        names = batch.schema.names
        if not self._options.staged and not ENVELOPE_NAMES.isdisjoint(names):
            self._chunk_rows = min(self._options.chunk_rows, ENVELOPE_ROWS_MAX)
        values = batch.column("value")
        if values.null_count:
            index = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._bad_row("value", index, "it is null; use '' for an empty message")
        keys = _binary(batch.column("key")) if "key" in names and not self._options.stream else None
        heads = heads_of(batch, staged=self._options.staged, refuse=self._bad_row)
        whole = Slice(_binary(values), keys, heads)
        sizes = _sizes(whole)
        if int(sizes.max()) > CHUNK_BYTES_MAX:
            index = int(sizes.argmax())
            raise self._bad_row("value", index, f"the row has {sizes[index]} bytes; at most {CHUNK_BYTES_MAX} fit")
        for topic, partition, rows in self._rows_by_partition(batch, keys):
            piece, piece_sizes = (whole, sizes) if rows is None else (_taken(whole, rows), sizes[rows])
            yield from self._fill(topic, partition, piece, piece_sizes)
        self.rows += batch.num_rows

    def finish(self) -> Iterator[PackedChunk]:
        """The rest: chunks that are not full."""
        for (topic, partition), lane in self._lanes.items():
            if lane.rows:
                yield self._seal(topic, partition, lane)

    # --- which partition ---

    def _rows_by_partition(
        self, batch: pa.RecordBatch, keys: pa.Array | None
    ) -> Iterator[tuple[str, int, Numbers | None]]:
        """Topics and partitions with the indices of their rows; None for all rows."""
        if self._options.stream:
            yield "", 0, None
            return
        for topic, rows in self._rows_by_topic(batch):
            yield from self._split_by_partition(topic, rows, batch, keys)

    def _rows_by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Numbers | None]]:
        if self._options.topic:
            yield self._options.topic, None
            return
        column = batch.column("topic")
        if column.null_count:
            index = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._bad_row("topic", index, "it is null, and there is no option topic")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        for code, name in enumerate(names):
            yield name, np.flatnonzero(codes == code)

    def _split_by_partition(
        self, topic: str, rows: Numbers | None, batch: pa.RecordBatch, keys: pa.Array | None
    ) -> Iterator[tuple[str, int, Numbers | None]]:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        partitions: Numbers | None = None
        if "partition" in batch.schema.names:
            partitions = self._explicit_partitions(topic, count, batch.column("partition"), rows)
        if count == 1:
            yield topic, 0, rows
            return
        if keys is not None:
            by_key = _key_partitions(keys if rows is None else keys.take(pa.array(rows)), count)
            partitions = by_key if partitions is None else np.where(partitions >= 0, partitions, by_key)
        if partitions is None:
            yield topic, ROUND_ROBIN, rows
            return
        order = np.argsort(partitions, kind="stable")
        lanes, starts = np.unique(partitions[order], return_index=True)
        for lane, lane_rows in zip(lanes, np.split(order, starts[1:]), strict=True):
            all_rows = rows is None and len(lanes) == 1
            yield topic, int(lane), None if all_rows else (lane_rows if rows is None else rows[lane_rows])

    def _explicit_partitions(self, topic: str, count: int, column: pa.Array, rows: Numbers | None) -> Numbers:
        partitions: Numbers = column.cast(pa.int64()).fill_null(ROUND_ROBIN).to_numpy(zero_copy_only=False)
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        wrong = (partitions >= count) | ((partitions < 0) & ~is_null)
        indices = np.arange(len(partitions)) if rows is None else rows
        bad = indices[wrong[indices]]
        if len(bad):
            index = int(bad[0])
            raise self._bad_row("partition", index, f"it is {partitions[index]}; topic {topic} has {count} partitions")
        return partitions if rows is None else partitions[rows]

    # --- where a chunk ends ---

    def _fill(self, topic: str, partition: int, piece: Slice, sizes: Numbers) -> Iterator[PackedChunk]:
        lane = self._lanes.setdefault((topic, partition), _Lane())
        lane_bytes = self._lane_bytes(topic, partition)
        ends = np.cumsum(sizes)
        first, taken_bytes = 0, 0
        while first < len(sizes):
            fit = int(np.searchsorted(ends, taken_bytes + lane_bytes - lane.size_bytes, side="right"))
            end = min(max(fit, first), first + self._chunk_rows - lane.rows)
            if end == first and not lane.rows:
                end = first + 1  # a row that is larger than a chunk is sent alone
            if end > first:
                lane.pieces.append(piece if end - first == len(sizes) else _sliced(piece, first, end))
                lane.rows += end - first
                lane.size_bytes += int(ends[end - 1]) - taken_bytes
                first, taken_bytes = end, int(ends[end - 1])
            if first < len(sizes) or lane.rows >= self._chunk_rows or lane.size_bytes >= lane_bytes:
                yield self._seal(topic, partition, lane)

    def _lane_bytes(self, topic: str, partition: int) -> int:
        """All lanes of a topic share the buffer, so a task's memory does not grow with the number of partitions."""
        lanes = 1 if partition == ROUND_ROBIN else self._counts.get(topic, 1)
        return max(LANE_BYTES_MIN, min(self._options.chunk_bytes, self._options.buffer_bytes // lanes))

    def _seal(self, topic: str, partition: int, lane: _Lane) -> PackedChunk:
        """Empty a lane into a chunk. Chunk n of the round-robin lane goes to partition n + task, where it is number
        n // count."""
        seq = lane.chunks
        round_robin = partition == ROUND_ROBIN
        if round_robin:
            count = self._counts[topic]
            partition, seq = (self._task + seq) % count, seq // count
        chunk = PackedChunk(topic, partition, round_robin, seq, lane.rows, tuple(lane.pieces))
        lane.pieces, lane.rows, lane.size_bytes = [], 0, 0
        lane.chunks += 1
        return chunk

    def _bad_row(self, column: str, index: int, why: str) -> BadRow:
        return BadRow(f"column {column}, row {self.rows + index} of task {self._task}: {why}")


# --- columns ----------------------------------------------------------------------------------------------------------


def _binary(column: pa.Array) -> pa.Array:
    array = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
    return array.fill_null(b"") if array.null_count else array


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Arrow's offsets: where each value starts, and where the last one ends."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _content(array: pa.Array) -> pa.Buffer:
    """The bytes of all values, not copied."""
    offsets = _offsets(array)
    data = array.buffers()[2] if len(array) else None
    return pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _ends(column: list[pa.Array]) -> bytes:
    """The ends of all values of a chunk's column, with a 0 in front."""
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


def _digest(piece: Slice, seed: int) -> int:
    hashes = np.full(len(piece.values), seed, np.uint64)
    for column in piece:
        # Two rounds of multiply and shift spread every bit of a checksum over the sum.
        crcs = np.zeros(len(hashes), np.uint64) if column is None else _checksums(column)
        hashes = (hashes ^ crcs) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(32)
    return int(hashes.sum(dtype=np.uint64))


def _checksums(column: pa.Array) -> npt.NDArray[np.uint64]:
    """The checksum of each value, with its length in the upper half."""
    offsets = _offsets(column)
    ends = (offsets - offsets[0]).tolist()
    content = bytes(_content(column))
    crcs = np.fromiter((crc32c(content[first:end]) for first, end in pairwise(ends)), np.uint64, len(column))
    lengths: npt.NDArray[np.uint64] = np.diff(offsets).astype(np.uint64) << np.uint64(32)
    return crcs | lengths


def _taken(piece: Slice, rows: Numbers) -> Slice:
    picks = pa.array(rows)
    return Slice(*(None if column is None else column.take(picks) for column in piece))


def _sliced(piece: Slice, first: int, end: int) -> Slice:
    return Slice(*(None if column is None else column.slice(first, end - first) for column in piece))


def _key_partitions(keys: pa.Array, count: int) -> Numbers:
    """The partition of each key, as the broker computes it; ROUND_ROBIN for an empty key. All keys are hashed together,
    one byte position at a time; the same result as `wire.partitions`, which a property test compares."""
    offsets = _offsets(keys).astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = np.frombuffer(_data(keys), np.uint8)
    hashes = np.full(len(lengths), 0x811C9DC5, np.uint32)
    prime = np.uint32(0x01000193)
    for at in range(min(int(lengths.max(initial=0)), LONG_KEY_BYTES)):
        rows = np.flatnonzero(lengths > at)
        hashes[rows] = (hashes[rows] ^ data[starts[rows] + at]) * prime
    for row in np.flatnonzero(lengths > LONG_KEY_BYTES):
        hashes[row] = fnv1a(keys[int(row)].as_py())
    return np.where(lengths > 0, (hashes % np.uint32(count)).astype(np.int64), ROUND_ROBIN)


def _data(array: pa.Array) -> memoryview:
    data = array.buffers()[2] if len(array) else None
    return memoryview(b"") if data is None else memoryview(data)
