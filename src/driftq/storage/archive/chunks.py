"""A chunk of the journal as an object: blocks exactly as they are in the journal, and where they belong.

    <generation>/journal/<first lsn>     | header | block | block | ... |

The header names the segment of the journal and the position in it, so that a restore writes the same bytes to the same
places: the restored journal has the same checksums, and a later writer can see whether it is the same history. A chunk
holds blocks of one segment.

A *seal* is an object of the same kind without blocks. Its name is that of the chunk that would follow; so the first
writer takes the name, and after a seal the generation gets no further chunk.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from driftq.storage.journal_files import SegmentHeader, checksum
from driftq.storage.journal_reader import JournalRun

FORMAT_VERSION = 1
_MAGIC = b"DQCHNK\r\n"
# magic, version, is_seal, store; segment: number, first_lsn, size_bytes, prev_crc; data crc; position, first_lsn,
# last_lsn, time; prev_crc, crc; data length. Then 4 bytes of checksum.
_HEADER = struct.Struct("<8sII16sQQQIIQQQQIIQ")
HEADER_BYTES = _HEADER.size + 4


class BadChunk(Exception):
    """The bytes of a chunk are not what was written."""


class Chunk(NamedTuple):
    """Blocks of the journal, or a seal."""

    store: bytes
    run: JournalRun
    at_ms: int  # when it was shipped
    is_seal: bool = False

    @property
    def next_lsn(self) -> int:
        return self.run.last_lsn + 1


def chunk_key(generation: str, first_lsn: int) -> str:
    return f"{journal_prefix(generation)}{first_lsn:020d}"


def journal_prefix(generation: str) -> str:
    return f"{generation}/journal/"


def key_lsn(key: str) -> int:
    """The first lsn of the chunk of this key."""
    return int(key.rpartition("/")[2])


def encode(chunk: Chunk) -> bytes:
    segment, position, first_lsn, last_lsn, prev_crc, crc, data = chunk.run
    fields = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, chunk.is_seal, chunk.store,
        segment.number, segment.first_lsn, segment.size_bytes, segment.prev_crc, google_crc32c.value(data),
        position, first_lsn, last_lsn, chunk.at_ms, prev_crc, crc, len(data),
    )  # fmt: skip
    return b"".join((fields, checksum(fields), data))


def encode_seal(store: bytes, next_lsn: int, prev_crc: int, by_generation: str, at_ms: int) -> bytes:
    """The object that ends a generation before `next_lsn`."""
    nothing = SegmentHeader(store, 0, 0, 0, 0)
    run = JournalRun(nothing, 0, next_lsn, next_lsn - 1, prev_crc, prev_crc, by_generation.encode())
    return encode(Chunk(store, run, at_ms, is_seal=True))


def decode(data: bytes) -> Chunk:
    """Raises `BadChunk` if a checksum is wrong."""
    if len(data) < HEADER_BYTES or data[_HEADER.size : HEADER_BYTES] != checksum(data[: _HEADER.size]):
        raise BadChunk("its header is damaged")
    fields = _HEADER.unpack_from(data)
    magic, version, is_seal, store, number, segment_first, size_bytes, segment_crc, data_crc = fields[:9]
    position, first_lsn, last_lsn, at_ms, prev_crc, crc, length = fields[9:]
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise BadChunk(f"its format ({version}) is not known here")
    body = data[HEADER_BYTES:]
    if len(body) != length or google_crc32c.value(body) != data_crc:
        raise BadChunk("checksum mismatch")
    segment = SegmentHeader(store, number, segment_first, size_bytes, segment_crc)
    run = JournalRun(segment, position, first_lsn, last_lsn, prev_crc, crc, body)
    return Chunk(store, run, at_ms, bool(is_seal))
