"""Packed batches into Arrow arrays: whole columns at a time, never record by record.

A fetched run of batches is walked once, batch by batch, for lengths and checksums; everything else is arithmetic over
all batches at once. The ends of a packed column are what Arrow calls offsets. Knows no Spark and no broker.
"""

from __future__ import annotations

import itertools
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
_FRONT = struct.Struct("<4sI")
_ZSTD_AT = 28  # of the attributes in a batch
LARGE_BYTES = 256 * 1024  # of a batch whose copy costs more than a record batch of its own


class Texts(NamedTuple):
    """A column of bytes: where each ends, with a 0 in front, and all of them in a row."""

    ends: npt.NDArray[np.int32]
    data: bytes | memoryview

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        found: npt.NDArray[np.int32] = np.diff(self.ends)
        return found

    def at(self, index: int) -> bytes:
        return bytes(self.data[self.ends[index] : self.ends[index + 1]])


class Rows(NamedTuple):
    """The records of a run of batches as columns. Keys and heads are None when no record has one."""

    offsets: Ints
    at_ms: Ints
    keys: Texts | None
    heads: Texts | None
    values: Texts


def rows_of(data: bytes | bytearray) -> Iterator[Rows]:
    """The records of a run of batches. A large batch stays where it is, small ones are joined. Raises `BadBatch` for
    bytes that are not what was packed."""
    places = _walk(data)
    if any(data[at + _ZSTD_AT] & ZSTD for at in places):
        data = _inflated(data, places)
        places = _walk(data, checked=True)
    for group in _groups(places, len(data)):
        yield _columns(data, np.array(group, dtype=np.int64))


def _groups(places: list[int], size: int) -> Iterator[list[int]]:
    """Neighbours that are worth joining: their texts are copied, so it is done to none that is large by itself."""
    small: list[int] = []
    for at, end in itertools.pairwise([*places, size]):
        if end - at < LARGE_BYTES:
            small.append(at)
            continue
        if small:
            yield small
            small = []
        yield [at]
    if small:
        yield small


def _walk(data: bytes | bytearray, *, checked: bool = False) -> list[int]:
    """Where the batches begin. Checksums are looked at here: between a disk and this line lie many machines."""
    places: list[int] = []
    view = memoryview(data)
    at, size = 0, len(data)
    while at < size:
        if at + HEADER_BYTES > size:
            raise BadBatch(f"the batch at {at} is cut off")
        magic, length = _FRONT.unpack_from(data, at)
        if magic != MAGIC or length % 8 or length < HEADER_BYTES or at + length > size:
            read_header(data, at)
            raise BadBatch(f"the batch at {at} is cut off")
        if not checked:
            crc = int.from_bytes(view[at + 24 : at + 28], "little")
            # As Arrow's buffer: a plain view of bytes that could be written to is not taken, and a copy costs more.
            if google_crc32c.value(pa.py_buffer(view[at + CHECKED_FROM : at + length])) != crc:
                raise BadBatch(f"checksum mismatch in the batch at {at}")
        places.append(at)
        at += length
    return places


def _inflated(data: bytes | bytearray, places: list[int]) -> bytes:
    """The same run with every body uncompressed."""
    parts: list[bytes] = []
    for at in places:
        header = read_header(data, at)
        batch = bytes(data[at : at + header.length])
        if header.attributes & ZSTD:
            raw = body(batch, header)
            padding = bytes(-len(raw) & 7)
            length = header.body_at + len(raw) + len(padding)
            attributes = (header.attributes & ~ZSTD).to_bytes(2, "little")
            front = b"".join((batch[:4], length.to_bytes(4, "little"), batch[8:_ZSTD_AT], attributes))
            batch = b"".join((front, batch[len(front) : header.body_at], raw, padding))
        parts.append(batch)
    return b"".join(parts)


def _columns(data: bytes | bytearray, at: Ints) -> Rows:
    """Read all headers at once, then each column of all batches at once. Batches begin at multiples of eight."""
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
        keys, total = _texts(data, words, ends_at, texts_at, counts, has_keys)
        texts_at, ends_at = texts_at + total, ends_at + size * has_keys
    if has_heads.any():
        heads, total = _texts(data, words, ends_at, texts_at, counts, has_heads)
        texts_at, ends_at = texts_at + total, ends_at + size * has_heads
    values, total = _texts(data, words, ends_at, texts_at, counts, np.ones(len(at), dtype=np.bool_))
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
    counts: Ints,
    has: npt.NDArray[np.bool_],
) -> tuple[Texts, Ints]:
    """One column of all batches, and how many bytes of it each batch has. A batch without it counts as empty texts."""
    totals = np.zeros(len(counts), dtype=np.int64)
    totals[has] = words[(ends_at[has] >> 2) + counts[has]]
    if len(counts) == 1:
        index = int(ends_at[0]) >> 2
        ends = words[index : index + int(counts[0]) + 1].view(np.int32)
        begin = int(texts_at[0])
        _refuse_disorder(np.diff(ends), ends[0])
        return Texts(ends, memoryview(data)[begin : begin + int(totals[0])]), totals
    sizes = counts[has] + 1
    starts = np.cumsum(sizes) - sizes
    found = words[np.repeat((ends_at[has] >> 2) - starts, sizes) + np.arange(int(sizes.sum()))].astype(np.int64)
    # Between two batches the ends fall back to 0: those differences belong to no record.
    lengths = np.delete(np.diff(found), starts[1:] - 1)
    _refuse_disorder(lengths, found[starts])
    if not has.all():
        spread = np.zeros(int(counts.sum()), dtype=np.int64)
        spread[np.repeat(has, counts)] = lengths
        lengths = spread
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    view = memoryview(data)
    stops = (texts_at + totals).tolist()
    joined = b"".join([view[begin:stop] for begin, stop in zip(texts_at.tolist(), stops, strict=True)])
    return Texts(ends, joined), totals


def _refuse_disorder(lengths: npt.NDArray[Any], firsts: Any) -> None:
    if (lengths < 0).any() or np.any(firsts):
        raise BadBatch("a column's ends are not in order")


# --- arrays -----------------------------------------------------------------------------------------------------------
#
# Made from buffers: `pa.array`, `pa.scalar` and `pa.repeat` import pandas to ask whether they were given some of it.
# That is most of a second for every new worker, and memory that it never uses.


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
    """Numbers as an Arrow array over the same memory; 64 bits wide if nothing else is said."""
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
