"""The binary form of records: the same bytes on the wire, in the journal, in a log's segment and in Spark.

A *batch* holds records as columns, so that a reader can pass whole columns to Arrow, and the broker can store a batch
without looking into it (`docs/internals/formats.md` has the byte table):

    0      8                24    28                    56
    ├──────┼────────────────┼─────┼─────────────────────┼───────────────┬──────────────────────────────────────┐
    │magic │ first_offset,  │ crc │ attributes, count,  │ producer name │ body: ends of each column, then      │
    │length│ at_ms          │     │ sizes, epoch, seq   │ (padded to 8) │ keys, heads, values; may be zstd     │
    └──────┴────────────────┴─────┴─────────────────────┴───────────────┴──────────────────────────────────────┘
             stamped by the       └────────────────────── covered by the checksum ────────────────────────────┘
             broker on arrival

A column is stored as the bytes of all its values, and the *ends*: n + 1 numbers, of which the first is 0 and each other
one is where a value ends. This module does not know what a head means or where a batch is stored.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import sub
from typing import NamedTuple

import google_crc32c
import zstandard

MAGIC = b"DQB\x01"
HEADER = struct.Struct("<4sIqqIHHIIqq")
HEADER_BYTES = HEADER.size  # 56
STAMP = struct.Struct("<qq")  # first_offset, at_ms: bytes 8..24
_FRONT = struct.Struct("<4sIqqI")  # up to and including the checksum
_CHECKED = struct.Struct("<HHIIqq")  # from `attributes` on
_ONE = struct.Struct("<HHIIqqII")  # the same, followed by the ends of a column with one value
_PAIR = struct.Struct("<II")  # two neighbouring ends of a column
_LAST = struct.Struct("<I")
_PADDING = tuple(bytes(-size & 7) for size in range(8))
CHECKED_FROM = _FRONT.size  # 28: the checksum covers everything after itself
_LARGE_BYTES = 2_048  # parts of this size are joined once, and their checksum is computed before
_PIECE_BYTES = 256 << 10  # a copy of this size stays in the processor's cache

ZSTD = 0x1
KEYS = 0x2
HEADS = 0x4
SCHEDULED = 0x8  # a head has a lane, a delay, a deadline or a key: the broker must read the heads
KNOWN_ATTRIBUTES = ZSTD | KEYS | HEADS | SCHEDULED

COUNT_MAX = 100_000
RAW_BYTES_MAX = 64 << 20
PRODUCER_BYTES_MAX = 256

NO_EPOCH = -1
_Parts = Sequence[bytes]  # or Arrow's buffers; the function of the checksum does not take a memoryview


class BadBatch(Exception):
    """The bytes are not a batch that this version can read; the message is the reason."""


class Record(NamedTuple):
    """One entry of a log. `head` is JSON text (see `wire.message.Head`) or empty."""

    value: bytes
    key: bytes = b""
    head: bytes = b""

    @property
    def size_bytes(self) -> int:
        """What the record counts towards every limit: value, key and head."""
        return len(self.value) + len(self.key) + len(self.head)


class Header(NamedTuple):
    """The header of a batch, decoded."""

    length: int
    first_offset: int
    at_ms: int
    crc: int
    attributes: int
    count: int  # type: ignore[assignment]  # it hides the method `count` of tuples, which is not used
    raw_bytes: int
    producer: str
    epoch: int
    seq: int
    body_at: int

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count


def pack(
    records: Sequence[Record],
    *,
    producer: str = "",
    epoch: int = NO_EPOCH,
    seq: int = 0,
    compress: bool = False,
    scheduled: bool = False,
) -> bytes:
    """Pack records into one unstamped batch."""
    values, keys, heads = zip(*records, strict=True) if records else ((), (), ())
    return pack_columns(
        values, keys, heads, producer=producer, epoch=epoch, seq=seq, compress=compress, scheduled=scheduled
    )


def pack_columns(
    values: Sequence[bytes],
    keys: Sequence[bytes] = (),
    heads: Sequence[bytes] = (),
    *,
    producer: str = "",
    epoch: int = NO_EPOCH,
    seq: int = 0,
    compress: bool = False,
    scheduled: bool = False,
) -> bytes:
    """`pack` for a caller that has columns. There is one key and one head for each value, or none at all."""
    if not values:
        raise BadBatch("a batch holds at least one record")
    if len(values) > COUNT_MAX:
        raise BadBatch(f"{len(values)} records in a batch; at most {COUNT_MAX} are allowed")
    attributes = SCHEDULED if scheduled else 0
    ends: list[bytes] = []
    texts: list[bytes] = []
    for bit, column in ((KEYS, keys), (HEADS, heads)):
        if any(column):
            attributes |= bit
            ends.append(_ends(column))
            texts.extend(column)
    ends.append(_ends(values))
    texts.extend(values)
    return pack_body(
        (*ends, *texts), len(values), attributes, producer=producer, epoch=epoch, seq=seq, compress=compress
    )


def pack_body(
    parts: _Parts,
    count: int,
    attributes: int,
    *,
    producer: str = "",
    epoch: int = NO_EPOCH,
    seq: int = 0,
    compress: bool = False,
) -> bytes:
    """`pack` for a caller that has the body: the ends of each column, then the bytes of each column. `attributes` has a
    bit for each column. Large parts are copied once only; they are read-only, like bytes and Arrow's buffers."""
    if not 1 <= count <= COUNT_MAX:
        raise BadBatch(f"{count} records in a batch; 1 to {COUNT_MAX} are allowed")
    raw_bytes = sum(map(len, parts))
    if raw_bytes > RAW_BYTES_MAX:
        raise BadBatch(f"{raw_bytes} bytes in a batch; at most {RAW_BYTES_MAX} are allowed")
    if compress or raw_bytes < _LARGE_BYTES * len(parts):
        parts = (b"".join(parts),)
    if compress:
        compressed = zstandard.ZstdCompressor(level=1).compress(parts[0])
        if len(compressed) < raw_bytes:
            parts = (compressed,)
            attributes |= ZSTD
    return _assemble(parts, raw_bytes, count, attributes, producer, epoch, seq)


def pack_one(value: bytes, key: bytes = b"", head: bytes = b"", *, scheduled: bool = False) -> bytes:
    """`pack` for the one record of a produce. Faster: no loops."""
    if not (key or head or scheduled):
        size = len(value)
        checked = _ONE.pack(0, 0, 1, 8 + size, NO_EPOCH, 0, 0, size) + value + _PADDING[size & 7]
        return _FRONT.pack(MAGIC, CHECKED_FROM + len(checked), 0, 0, google_crc32c.value(checked)) + checked
    attributes = SCHEDULED if scheduled else 0
    ends = b""
    for bit, text in ((KEYS, key), (HEADS, head)):
        if text:
            attributes |= bit
            ends += _PAIR.pack(0, len(text))
    body = b"".join((ends, _PAIR.pack(0, len(value)), key, head, value))
    return _assemble((body,), len(body), 1, attributes, "", NO_EPOCH, 0)


def _ends(texts: Sequence[bytes]) -> bytes:
    return array("I", accumulate(map(len, texts), initial=0)).tobytes()


def _assemble(parts: _Parts, raw_bytes: int, count: int, attributes: int, producer: str, epoch: int, seq: int) -> bytes:
    """The batch whose body is made of these parts."""
    if len(name := producer.encode()) > PRODUCER_BYTES_MAX:
        raise BadBatch(f"the producer name has {len(name)} bytes; at most {PRODUCER_BYTES_MAX} are allowed")
    fields = _CHECKED.pack(attributes, len(name), count, raw_bytes, epoch, seq) + name + _PADDING[len(name) & 7]
    crc = 0
    for part in (checked := (fields, *parts, _PADDING[sum(map(len, parts)) & 7])):
        crc = google_crc32c.extend(crc, part)
    length = CHECKED_FROM + sum(map(len, checked))
    return b"".join((_FRONT.pack(MAGIC, length, 0, 0, crc), *checked))


def stamp(batch: bytes, first_offset: int, at_ms: int) -> bytes:
    """The batch with the broker's fields filled in."""
    rest = batch[24:] if len(batch) < _LARGE_BYTES else memoryview(batch)[24:]
    return b"".join((batch[:8], STAMP.pack(first_offset, at_ms), rest))


def _checksum(batch: bytes) -> int:
    """Over everything after the checksum itself. The function takes bytes only, which copies them: in pieces, because a
    copy of a large batch costs more than its checksum."""
    crc = 0
    for at in range(CHECKED_FROM, len(batch), _PIECE_BYTES):
        crc = google_crc32c.extend(crc, batch[at : at + _PIECE_BYTES])
    return crc


def read_header(data: bytes | bytearray, position: int = 0) -> Header:
    """Decode the header at `position`. Checks its shape, not the checksum."""
    if len(data) - position < HEADER_BYTES:
        raise BadBatch(f"{len(data) - position} bytes are too few for a batch header ({HEADER_BYTES})")
    magic, length, first_offset, at_ms, crc, attributes, name_bytes, count, raw_bytes, epoch, seq = HEADER.unpack_from(
        data, position
    )
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise BadBatch(f"batch format {magic[3]} is not known here (this version reads {MAGIC[3]})")
        raise BadBatch(f"not a batch: magic {magic!r}")
    body_at = HEADER_BYTES + (name_bytes + 7 & ~7)
    if length % 8 or length < body_at or name_bytes > PRODUCER_BYTES_MAX:
        raise BadBatch(f"impossible batch length {length}")
    name = data[position + HEADER_BYTES : position + HEADER_BYTES + name_bytes] if name_bytes else b""
    try:
        producer = name.decode() if name else ""
    except UnicodeDecodeError:
        raise BadBatch("the producer name is not UTF-8") from None
    return Header(length, first_offset, at_ms, crc, attributes, count, raw_bytes, producer, epoch, seq, body_at)


def check(batch: bytes) -> Header:
    """Check a batch that a client encoded, before it is stored: shape, checksum, bounds, columns."""
    return check_with_heads(batch).header


class CheckedBatch(NamedTuple):
    """A batch that passed `check`."""

    header: Header
    heads: list[bytes]  # of each record; empty if the batch has no column of heads
    longest_key_bytes: int


def check_with_heads(batch: bytes) -> CheckedBatch:
    """`check`, and return what the broker has to look into."""
    header = read_header(batch)
    if header.length != len(batch):
        raise BadBatch(f"the header says {header.length} bytes, {len(batch)} arrived")
    if _checksum(batch) != header.crc:
        raise BadBatch("checksum mismatch")
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise BadBatch(f"unknown attribute bits {header.attributes & ~KNOWN_ATTRIBUTES:#x}")
    if not 1 <= header.count <= COUNT_MAX:
        raise BadBatch(f"{header.count} records in a batch; 1 to {COUNT_MAX} are allowed")
    if header.raw_bytes > RAW_BYTES_MAX:
        raise BadBatch(f"{header.raw_bytes} bytes in a batch; at most {RAW_BYTES_MAX} are allowed")
    if (header.epoch < 0) != (not header.producer) or header.epoch < NO_EPOCH or header.seq < 0:
        raise BadBatch("producer name, epoch and seq belong together")
    text, keys, ends, heads_at = _columns(batch, header)
    longest_key_bytes = max(map(sub, islice(keys, 1, None), keys), default=0)
    heads = text[heads_at : heads_at + ends[-1]] if ends else b""
    return CheckedBatch(header, [heads[start:end] for start, end in pairwise(ends)], longest_key_bytes)


def verify(batch: bytes) -> bool:
    """Whether the checksum is right. Cheaper than `check`, for batches that have passed it before."""
    return _checksum(batch) == int.from_bytes(batch[24:28], "little")


def body(batch: bytes, header: Header) -> bytes:
    """The columns, uncompressed."""
    if not header.attributes & ZSTD:
        return batch[header.body_at : header.body_at + header.raw_bytes]
    packed = batch[header.body_at :]
    try:
        # The declared size is checked first, so that a few bytes cannot decompress to gigabytes.
        if zstandard.get_frame_parameters(packed).content_size != header.raw_bytes:
            raise BadBatch("the compressed body and the header disagree about its size")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=header.raw_bytes)
    except zstandard.ZstdError as error:
        raise BadBatch(f"the body does not decompress: {error}") from None


def _columns(batch: bytes, header: Header) -> tuple[bytes, list[int], list[int], int]:
    """The uncompressed columns, the ends of the keys and of the heads (empty without such a column), and where the
    heads begin. Checks that the ends of all columns are in order and cover the body."""
    text, located = _locate(batch, header)
    ends_of: list[list[int]] = [[], [], []]
    at = begin = 0 if header.attributes & ZSTD else header.body_at
    for column, place in enumerate(located):
        if place is not None:
            ends_at, at = place
            ends = ends_of[column] = array("I", text[ends_at : ends_at + 4 * (header.count + 1)]).tolist()
            if ends[0] != 0 or ends != sorted(ends):
                raise BadBatch("a column's ends are not in order")
            at += ends[-1]
    if at != begin + header.raw_bytes or at > len(text):
        raise BadBatch(f"the columns cover {at - begin} bytes, the body has {header.raw_bytes}")
    return text, ends_of[0], ends_of[1], located[1][1] if located[1] is not None else 0


def unpack(
    batch: bytes, header: Header | None = None, *, first: int = 0, count: int | None = None, raw: bytes | None = None
) -> list[Record]:
    """The records of a batch, or `count` of them from index `first`. A part of a batch costs what the part costs: only
    its own ends are read and checked. `raw` is the body of a compressed batch, if the caller has it."""
    header = header or read_header(batch)
    end = header.count if count is None else min(header.count, first + count)
    if first >= end:
        return []
    text, located = _locate(batch, header, raw)
    columns: list[list[bytes]] = []
    for column in located:
        if column is None:
            columns.append([b""] * (end - first))
            continue
        ends_at, text_at = column
        ends = array("I", text[ends_at + 4 * first : ends_at + 4 * (end + 1)]).tolist()
        if ends != sorted(ends) or text_at + ends[-1] > len(text):
            raise BadBatch("a column's ends are not in order")
        columns.append([text[text_at + start : text_at + stop] for start, stop in pairwise(ends)])
    keys, heads, values = columns
    return list(map(Record, values, keys, heads))


def head_at(batch: bytes, header: Header, index: int, raw: bytes | None = None) -> bytes:
    """The head of one record. A batch without heads is not even decompressed."""
    if not header.attributes & HEADS:
        return b""
    text, (_, column, _) = _locate(batch, header, raw)
    assert column is not None
    start, stop = _PAIR.unpack_from(text, column[0] + 4 * index)
    return text[column[1] + start : column[1] + stop]


_Located = tuple[int, int]  # where the ends of a column begin, and where its bytes do


def _locate(
    batch: bytes, header: Header, raw: bytes | None = None
) -> tuple[bytes, tuple[_Located | None, _Located | None, _Located]]:
    """Where the columns of keys, heads and values are, and in which bytes. Reads only the last end of a column."""
    text, ends_at = (raw or body(batch, header), 0) if header.attributes & ZSTD else (batch, header.body_at)
    size = 4 * (header.count + 1)  # of the ends of a column
    text_at = ends_at + size * _column_count(header)
    if text_at > len(text):
        raise BadBatch(f"{header.count} records do not fit into {len(text)} bytes")
    keys: _Located | None = None
    heads: _Located | None = None
    if header.attributes & KEYS:
        keys = ends_at, text_at
        ends_at += size
        text_at += _LAST.unpack_from(text, ends_at - 4)[0]
    if header.attributes & HEADS:
        heads = ends_at, text_at
        ends_at += size
        text_at += _LAST.unpack_from(text, ends_at - 4)[0]
    return text, (keys, heads, (ends_at, text_at))


def _column_count(header: Header) -> int:
    return 1 + bool(header.attributes & KEYS) + bool(header.attributes & HEADS)


def value_column(batch: bytes, header: Header) -> tuple[list[int], memoryview]:
    """The ends of the values, and their bytes in one piece: for readers that need nothing else. The batch must have
    passed `check` before."""
    text, (_, _, (ends_at, text_at)) = _locate(batch, header)
    ends = array("I", text[ends_at : ends_at + 4 * (header.count + 1)]).tolist()
    return ends, memoryview(text)[text_at : text_at + ends[-1]]


def split(data: bytes) -> Iterator[bytes]:
    """Split fetched bytes into single batches."""
    position = 0
    while position < len(data):
        length = read_header(data, position).length
        if position + length > len(data):
            raise BadBatch(f"the batch at {position} is cut off")
        yield data[position : position + length]
        position += length
