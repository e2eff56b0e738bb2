"""A claim's reply in binary: the records as they are stored, and once for each run of messages what its lease says.

    0      4            8                  8 + head_bytes, padded to 8
    ├──────┼────────────┼──────────────────┼───────────────────────┬───────────────────────┬─────
    │magic │ head_bytes │ head: JSON       │ batches of run 0      │ batches of run 1      │ …
    └──────┴────────────┴──────────────────┴───────────────────────┴───────────────────────┴─────
                          `PackedClaimHead`   `size_bytes` of run 0    `size_bytes` of run 1

A *run* is offsets that follow each other in one partition and were delivered in the same way: the same number of
attempts, lease version and end of the lease. Its batches (`wire.records`) hold exactly the records of the run. The
broker sends a stored batch as it is if the run covers it, else a part of it (`cut`). Nothing here decodes a record.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from msgspec import MsgspecError, Struct, json

from driftq.wire import records
from driftq.wire.claims import RefusedItem
from driftq.wire.records import HEADS, KEYS, ZSTD, BadBatch, Header

CLAIM_TYPE = "application/x-driftq-claim"  # the media type; a client asks for it with `Accept`
MAGIC = b"DQC\x01"
_FRONT = struct.Struct("<4sI")


class PackedRun(Struct, frozen=True, omit_defaults=True, gc=False):
    """Messages [offset, end) of a partition, in the next `size_bytes` of the body."""

    partition: int
    offset: int
    end: int
    attempts: int
    lease_version: int
    lease_until_ms: int
    size_bytes: int
    last_error: str = ""


class PackedClaimHead(Struct, frozen=True, omit_defaults=True):
    """What a claim returned. The token holds for all runs; `refused` lists the acks that were refused."""

    token: str
    runs: list[PackedRun]
    refused: list[RefusedItem] = []


_encode = json.Encoder().encode
_decode = json.Decoder(PackedClaimHead).decode


def pack_claim(head: PackedClaimHead, batches: Sequence[bytes]) -> bytes:
    """The body of a reply. `batches` are those of all runs, in order."""
    text = _encode(head)
    return b"".join((_FRONT.pack(MAGIC, len(text)), text, bytes(-len(text) & 7), *batches))


def unpack_claim(data: bytes) -> tuple[PackedClaimHead, Iterator[tuple[PackedRun, Header, bytes]]]:
    """The head, and each batch with its header and the run that it belongs to."""
    if len(data) < _FRONT.size:
        raise BadBatch(f"{len(data)} bytes are too few for a packed claim")
    magic, head_bytes = _FRONT.unpack_from(data)
    if magic != MAGIC:
        raise BadBatch(f"not a packed claim: magic {magic!r}")
    at = _FRONT.size
    try:
        head = _decode(data[at : at + head_bytes])
    except (MsgspecError, UnicodeDecodeError) as error:
        raise BadBatch(f"the head of a packed claim cannot be read: {error}") from None
    return head, _batches(data, at + head_bytes + (-head_bytes & 7), head.runs)


def _batches(data: bytes, at: int, runs: Sequence[PackedRun]) -> Iterator[tuple[PackedRun, Header, bytes]]:
    for run in runs:
        offset, end_at = run.offset, at + run.size_bytes
        while at < end_at:
            header = records.read_header(data, at)
            batch = data[at : at + header.length]
            if header.first_offset != offset or len(batch) != header.length:
                raise BadBatch(f"offset {offset} of partition {run.partition} is missing in a packed claim")
            yield run, header, batch
            offset, at = header.end_offset, at + header.length
        if offset != run.end:
            raise BadBatch(f"offset {offset} of partition {run.partition} is missing in a packed claim")


def cut(batch: bytes, header: Header, first: int, count: int) -> bytes:
    """The `count` records from index `first` on, as a batch of its own without a producer. The batch must have passed
    `records.check` before. Copies columns; the cost of a record is that of one number."""
    if first == 0 and count == header.count:
        return batch
    raw = memoryview(records.body(batch, header) if header.attributes & ZSTD else batch)
    if not header.attributes & ZSTD:
        raw = raw[header.body_at : header.body_at + header.raw_bytes]
    size = 4 * (header.count + 1)
    columns = 1 + bool(header.attributes & KEYS) + bool(header.attributes & HEADS)
    texts_at = columns * size
    ends: list[bytes] = []
    texts: list[bytes] = []
    for ends_at in range(0, columns * size, size):
        numbers = array("I", bytes(raw[ends_at + 4 * first : ends_at + 4 * (first + count + 1)]))
        start = numbers[0]
        texts.append(bytes(raw[texts_at + start : texts_at + numbers[-1]]))
        ends.append(array("I", [end - start for end in numbers]).tobytes() if start else numbers.tobytes())
        texts_at += int.from_bytes(raw[ends_at + size - 4 : ends_at + size], "little")
    part = records.pack_body((*ends, *texts), count, header.attributes & ~ZSTD)
    return records.stamp(part, header.first_offset + first, header.at_ms)


class BatchColumns:
    """The columns of one batch, for reading single records by index. Nothing is decoded before it is read."""

    __slots__ = ("_heads", "_heads_at", "_keys", "_keys_at", "_raw", "_values", "_values_at")

    def __init__(self, batch: bytes, header: Header) -> None:
        raw = records.body(batch, header)
        size = 4 * (header.count + 1)
        columns = 1 + bool(header.attributes & KEYS) + bool(header.attributes & HEADS)
        at = columns * size
        if len(raw) < at:
            raise BadBatch(f"{header.count} records do not fit into {len(raw)} bytes")
        self._raw = raw
        self._keys = self._heads = None
        self._keys_at = self._heads_at = 0
        ends_at = 0
        if header.attributes & KEYS:
            self._keys, self._keys_at = array("I", raw[:size]), at
            at, ends_at = at + self._keys[-1], size
        if header.attributes & HEADS:
            self._heads, self._heads_at = array("I", raw[ends_at : ends_at + size]), at
            at, ends_at = at + self._heads[-1], ends_at + size
        self._values, self._values_at = array("I", raw[ends_at : ends_at + size]), at

    @property
    def has_heads(self) -> bool:
        return self._heads is not None

    def value(self, index: int) -> bytes:
        at, ends = self._values_at, self._values
        return self._raw[at + ends[index] : at + ends[index + 1]]

    def key(self, index: int) -> bytes:
        ends = self._keys
        return self._raw[self._keys_at + ends[index] : self._keys_at + ends[index + 1]] if ends is not None else b""

    def head(self, index: int) -> bytes:
        ends = self._heads
        return self._raw[self._heads_at + ends[index] : self._heads_at + ends[index + 1]] if ends is not None else b""
