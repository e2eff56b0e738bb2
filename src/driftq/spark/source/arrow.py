"""Decodes packed batches into Arrow arrays, whole columns at a time and never record by record.

    fetched bytes    | header | ends of keys | ends of values | keys ... | values ... |  next batch ...
                         |           |                |            |           |
    _walk            length, crc     |                |            |           |       one loop over the batches
    _columns         counts, where the columns begin  |            |           |       numpy, all batches at once
    bytes_array                 Arrow offsets    Arrow offsets   Arrow data  Arrow data

The ends of a packed column are what Arrow calls offsets, so that a large batch becomes Arrow arrays without a copy.
Small batches are joined first, because a record batch of a few rows costs Spark more than the copy. Knows no Spark and
no broker. The format of a batch is in docs/internals/formats.md and `driftq.wire.records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftq.wire.records import (
    CHECKED_FROM,
    HEADER_BYTES,
    HEADS,
    KEYS,
    MAGIC,
    ZSTD,
    BadBatch,
    body,
    read_header,
)

Ints = npt.NDArray[np.int64]
_FRONT = struct.Struct("<4sI16xI")  # magic, length and checksum of a batch
_ATTRIBUTES_AT = 28  # in the header of a batch
COPIED_BYTES = 4 * 1024  # up to this size the bytes of a batch are copied for its checksum
LARGE_BYTES = 1 << 20  # from this size on a batch is not joined with others


class Texts(NamedTuple):
    """A column of bytes: the ends of the values, with a 0 in front, and the bytes of all values."""

    ends: npt.NDArray[np.int32]
    data: bytes | memoryview

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        lengths: npt.NDArray[np.int32] = np.diff(self.ends)
        return lengths

    def at(self, index: int) -> bytes:
        return bytes(self.data[self.ends[index] : self.ends[index + 1]])


class Rows(NamedTuple):
    """Records as columns. Keys and heads are None if no record has one."""

    offsets: Ints
    at_ms: Ints
    keys: Texts | None
    heads: Texts | None
    values: Texts


def rows_of(data: bytes | bytearray) -> Iterator[Rows]:
    """The records of consecutive batches. Large batches are not copied, small ones are joined. Raises `BadBatch` for
    bytes that are damaged."""
    starts = _walk(data)
    shorts = np.frombuffer(data, np.uint16)
    if (shorts[(starts + _ATTRIBUTES_AT) >> 1] & ZSTD).any():
        data = _decompressed(data, starts.tolist())
        starts = _walk(data, checked=True)
    for group in _groups(starts, len(data)):
        yield _columns(data, group)


def _groups(starts: Ints, size: int) -> Iterator[Ints]:
    """Batches to decode together. Joining copies their bytes, so a large batch is decoded alone."""
    first = 0
    for large in np.flatnonzero(np.diff(starts, append=size) >= LARGE_BYTES).tolist():
        if first < large:
            yield starts[first:large]
        yield starts[large : large + 1]
        first = large + 1
    if first < len(starts):
        yield starts[first:]


def _walk(data: bytes | bytearray, *, checked: bool = False) -> Ints:
    """The positions at which the batches start. Checks the checksums: the bytes came over a network."""
    starts: list[int] = []
    view = memoryview(data)
    at, size = 0, len(data)
    copy = data if isinstance(data, bytes) else b""
    unpack, checksum = _FRONT.unpack_from, google_crc32c.value  # looked up once: there may be very many batches
    last = size - HEADER_BYTES
    while at <= last:
        magic, length, crc = unpack(data, at)
        end = at + length
        if magic != MAGIC or length % 8 or length < HEADER_BYTES or end > size:
            read_header(data, at)
            raise BadBatch(f"the batch at {at} is cut off")
        if not checked:
            # The function refuses what can be changed. For small batches everything is copied once, because slices of
            # bytes are the cheapest; an Arrow buffer copies nothing and costs more, until the batch is large.
            if length < COPIED_BYTES:
                copy = copy or bytes(data)
                actual = checksum(copy[at + CHECKED_FROM : end])
            else:
                actual = checksum(pa.py_buffer(view[at + CHECKED_FROM : end]))
            if actual != crc:
                raise BadBatch(f"checksum mismatch in the batch at {at}")
        starts.append(at)
        at = end
    if at < size:
        raise BadBatch(f"the batch at {at} is cut off")
    return np.array(starts, dtype=np.int64)


def _decompressed(data: bytes | bytearray, starts: list[int]) -> bytes:
    """The same batches with every body decompressed."""
    parts: list[bytes] = []
    for at in starts:
        header = read_header(data, at)
        batch = bytes(data[at : at + header.length])
        if header.attributes & ZSTD:
            raw = body(batch, header)
            padding = bytes(-len(raw) & 7)
            length = header.body_at + len(raw) + len(padding)
            attributes = (header.attributes & ~ZSTD).to_bytes(2, "little")
            front = b"".join((batch[:4], length.to_bytes(4, "little"), batch[8:_ATTRIBUTES_AT], attributes))
            batch = b"".join((front, batch[len(front) : header.body_at], raw, padding))
        parts.append(batch)
    return b"".join(parts)


def _columns(data: bytes | bytearray, at: Ints) -> Rows:
    """Read all headers at once, then each column of all batches at once. Batches are aligned to eight bytes, so a
    header field of all batches is one indexed read from an array of that field's width."""
    words, shorts = np.frombuffer(data, np.uint32), np.frombuffer(data, np.uint16)
    longs = np.frombuffer(data, np.int64)
    attributes = shorts[(at + 28) >> 1].astype(np.int64)
    body_at = at + HEADER_BYTES + ((shorts[(at + 30) >> 1].astype(np.int64) + 7) & ~7)
    counts = words[(at + 32) >> 2].astype(np.int64)
    raw_end = body_at + words[(at + 36) >> 2]
    has_keys, has_heads = (attributes & KEYS) != 0, (attributes & HEADS) != 0
    size = 4 * (counts + 1)
    length = words[(at + 4) >> 2]
    fits = (counts > 0) & (body_at + size * (1 + has_keys + has_heads) <= raw_end) & (raw_end <= at + length)
    if not fits.all():
        raise BadBatch("a batch's columns do not fit into it")
    texts_at = body_at + size * (1 + has_keys + has_heads)
    ends_at = body_at
    keys = heads = None
    if has_keys.any():
        keys, total = _texts(data, words, ends_at, texts_at, raw_end, counts, has_keys)
        texts_at, ends_at = texts_at + total, ends_at + size * has_keys
    if has_heads.any():
        heads, total = _texts(data, words, ends_at, texts_at, raw_end, counts, has_heads)
        texts_at, ends_at = texts_at + total, ends_at + size * has_heads
    values, total = _texts(data, words, ends_at, texts_at, raw_end, counts, np.ones(len(at), dtype=np.bool_))
    if (texts_at + total != raw_end).any():
        raise BadBatch("a batch's columns do not cover it")
    first = longs[(at + 8) >> 3]
    offsets = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    return Rows(offsets, np.repeat(longs[(at + 16) >> 3], counts), keys, heads, values)


def _texts(
    data: bytes | bytearray,
    words: npt.NDArray[np.uint32],
    ends_at: Ints,
    texts_at: Ints,
    raw_end: Ints,
    counts: Ints,
    has: npt.NDArray[np.bool_],
) -> tuple[Texts, Ints]:
    """One column of all batches, and the bytes of it in each batch. A batch without the column has empty values."""
    totals = np.zeros(len(counts), dtype=np.int64)
    totals[has] = words[(ends_at[has] >> 2) + counts[has]]
    if (texts_at + totals > raw_end).any():
        raise BadBatch("a column is longer than its batch")
    if len(counts) == 1:
        index = int(ends_at[0]) >> 2
        ends = words[index : index + int(counts[0]) + 1].view(np.int32)
        first = int(texts_at[0])
        _check_order(np.diff(ends), ends[0])
        return Texts(ends, memoryview(data)[first : first + int(totals[0])]), totals
    sizes = counts[has] + 1
    starts = np.cumsum(sizes) - sizes
    joined_ends = words[np.repeat((ends_at[has] >> 2) - starts, sizes) + np.arange(int(sizes.sum()))].astype(np.int64)
    # Between two batches the ends start again at 0: those differences belong to no record.
    lengths = np.delete(np.diff(joined_ends), starts[1:] - 1)
    _check_order(lengths, joined_ends[starts])
    if not has.all():
        spread = np.zeros(int(counts.sum()), dtype=np.int64)
        spread[np.repeat(has, counts)] = lengths
        lengths = spread
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return Texts(ends, _joined(data, texts_at, texts_at + totals)), totals


def _joined(data: bytes | bytearray, firsts: Ints, stops: Ints) -> memoryview:
    """Parts of the data, in order, one after the other. Arrow copies them: with the gaps between them they are the
    values of a binary array, of which every second one is taken."""
    begin = int(firsts[0])
    bounds = np.empty(2 * len(firsts), dtype=np.int32)
    bounds[0::2], bounds[1::2] = firsts - begin, stops - begin
    around = pa.py_buffer(memoryview(data)[begin : int(stops[-1])])
    parts = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), around])
    taken = parts.take(numbers(np.arange(0, len(bounds), 2))).buffers()[2]
    return memoryview(taken if taken is not None else b"")


def _check_order(lengths: npt.NDArray[Any], firsts: Any) -> None:
    if (lengths < 0).any() or np.any(firsts):
        raise BadBatch("a column's ends are not in order")


# --- arrays -----------------------------------------------------------------------------------------------------------
#
# Made from buffers: `pa.array`, `pa.scalar` and `pa.repeat` import pandas to check whether the data is pandas data.
# That costs every new worker most of a second, and memory that it never uses.


def bytes_array(texts: Texts | None, count: int, kind: pa.DataType, *, empty_is_null: bool) -> pa.Array:
    """A column as an Arrow array over the same bytes."""
    if texts is None:
        return pa.nulls(count, kind)
    validity = None
    if empty_is_null:
        present = texts.lengths > 0
        if not present.all():
            validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)])


def numbers(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Numbers as an Arrow array over the same memory; int64 by default."""
    return pa.Array.from_buffers(kind or pa.int64(), len(values), [None, pa.py_buffer(values)])


def time_array(at_ms: Ints) -> pa.Array:
    """Milliseconds as Spark's timestamps, which count microseconds."""
    return numbers(at_ms * 1_000, pa.timestamp("us", tz="UTC"))


def repeated(value: str | int, count: int) -> pa.Array:
    """The same text or 32-bit number in every row."""
    if isinstance(value, int):
        return numbers(np.full(count, value, dtype=np.int32), pa.int32())
    text = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return bytes_array(Texts(ends, text * count), count, pa.string(), empty_is_null=False)
