"""The one binary form of records: its limits, and every way in which bytes are not a batch."""

from __future__ import annotations

import itertools
import struct

import google_crc32c
import pytest
import zstandard

from driftq.wire import records as r
from driftq.wire.records import BadBatch, Record, check, pack, pack_one, read_header, split, stamp, unpack


def with_header(batch: bytes, **changes: int) -> bytes:
    """The same batch with header fields changed and a true checksum."""
    names = ("magic", "length", "first", "at", "crc", "attributes", "name_bytes", "count", "raw_bytes", "epoch", "seq")
    fields = dict(zip(names, r.HEADER.unpack_from(batch), strict=True)) | changes
    rest = r.HEADER.pack(*fields.values())[28:] + batch[56:]
    return r.HEADER.pack(*(fields | {"crc": google_crc32c.value(rest)}).values())[:28] + rest


def test_a_batch_has_a_header_of_56_bytes_and_ends_at_a_multiple_of_8():
    batch = pack_one(b"value")
    assert r.HEADER_BYTES == 56
    assert len(batch) == 56 + 8 + 8  # one column of two ends, five bytes of value and three of padding
    assert read_header(batch).body_at == 56


def test_plain_records_carry_neither_keys_nor_heads():
    assert read_header(pack([Record(b"a"), Record(b"b")])).attributes == 0
    assert read_header(pack([Record(b"a", b"k"), Record(b"b")])).attributes == r.KEYS
    assert read_header(pack([Record(b"a", b"", b"{}"), Record(b"b", b"k")])).attributes == r.KEYS | r.HEADS


def test_the_stamp_lies_outside_the_checksum():
    batch = pack_one(b"value")
    stamped = stamp(batch, 7, 1_700_000_000_000)
    assert check(stamped).first_offset == 7
    assert check(stamped).at_ms == 1_700_000_000_000
    assert stamped[24:] == batch[24:]


def test_compression_is_kept_only_where_it_helps():
    long = pack([Record(b"a" * 10_000)], compress=True)
    assert check(long).attributes & r.ZSTD
    assert len(long) < 200
    assert unpack(long) == [Record(b"a" * 10_000)]
    assert not check(pack([Record(b"a")], compress=True)).attributes & r.ZSTD


def test_empty_values_and_unicode_keys_are_records_too():
    records = [Record(b""), Record(b"", "日本".encode()), Record(b"x", b"", b"{}")]
    assert unpack(pack(records)) == records


def test_the_columns_of_values_can_be_had_uncut():
    for compress in (False, True):
        batch = pack([Record(b"a" * 300, b"k"), Record(b"b" * 300, b"kk", b"h")], compress=compress)
        ends, values = r.value_column(batch, check(batch))
        assert [bytes(values[a:b]) for a, b in itertools.pairwise(ends)] == [b"a" * 300, b"b" * 300]


def test_packing_has_limits():
    with pytest.raises(BadBatch, match="at least one"):
        pack([])
    with pytest.raises(BadBatch, match="100001 records"):
        pack([Record(b"")] * 100_001)
    with pytest.raises(BadBatch, match="at most 67108864"):
        pack([Record(bytes(64 << 20))])
    with pytest.raises(BadBatch, match="257 bytes"):
        pack([Record(b"")], producer="p" * 257, epoch=0)
    assert check(pack([Record(b"")] * 100_000)).count == 100_000
    assert check(pack([Record(b"")], producer="p" * 256, epoch=0)).producer == "p" * 256


BATCH = pack([Record(b"one", b"k"), Record(b"two", b"kk")])

BAD = {
    "too short for a header": (BATCH[:55], "too few"),
    "another file": (b"PK\x03\x04" + BATCH[4:], "not a batch"),
    "a later format": (b"DQB\x02" + BATCH[4:], "format 2 is not known"),
    "a length that is not padded": (with_header(BATCH, length=len(BATCH) - 1), "impossible batch length"),
    "a length below the header": (with_header(BATCH, length=48), "impossible batch length"),
    "a name longer than allowed": (with_header(BATCH, name_bytes=300), "impossible batch length"),
    "bytes missing": (BATCH[:-8], "arrived"),
    "bytes too many": (BATCH + bytes(8), "arrived"),
    "a flipped bit": (BATCH[:60] + b"\xff" + BATCH[61:], "checksum"),
    "unknown attributes": (with_header(BATCH, attributes=r.KEYS | 0x100), "unknown attribute bits 0x100"),
    "no records": (with_header(BATCH, count=0), "1 to 100000"),
    "too many records": (with_header(BATCH, count=100_001), "1 to 100000"),
    "a body larger than allowed": (with_header(BATCH, raw_bytes=(64 << 20) + 1), "at most 67108864"),
    "a producer without an epoch": (pack([Record(b"x")], producer="p"), "belong together"),
    "an epoch without a producer": (with_header(BATCH, epoch=0), "belong together"),
    "an epoch below none": (with_header(BATCH, epoch=-2), "belong together"),
    "a negative seq": (with_header(BATCH, seq=-1), "belong together"),
    "more records than fit": (with_header(BATCH, count=1_000), "do not fit"),
    "a column too few": (with_header(BATCH, attributes=0), "cover"),
    "a column too many": (with_header(BATCH, attributes=r.KEYS | r.HEADS), "not in order|cover|do not fit"),
    "a body shorter than it says": (with_header(BATCH, raw_bytes=8), "cover"),
    "not compressed": (with_header(BATCH, attributes=r.KEYS | r.ZSTD), "decompress"),
}


@pytest.mark.parametrize("name", BAD)
def test_whatever_is_not_a_batch_is_refused_with_a_reason(name):
    batch, reason = BAD[name]
    with pytest.raises(BadBatch, match=reason):
        check(batch)


def test_ends_that_go_back_are_refused():
    body = struct.pack("<III", 0, 5, 2) + b"abcde" + bytes(7)
    batch = with_header(pack_one(b"")[:56] + body, length=56 + len(body), count=2, raw_bytes=17)
    with pytest.raises(BadBatch, match="not in order"):
        check(batch)
    body = struct.pack("<III", 1, 2, 5) + b"abcde" + bytes(7)
    with pytest.raises(BadBatch, match="not in order"):
        check(with_header(pack_one(b"")[:56] + body, length=56 + len(body), count=2, raw_bytes=17))


def test_a_name_that_is_not_utf8_is_refused():
    batch = pack([Record(b"x")], producer="pq", epoch=0)
    with pytest.raises(BadBatch, match="UTF-8"):
        check(with_header(batch[:56] + b"\xff\xfe" + batch[58:]))


def compressed(body: bytes, raw_bytes: int, *, with_size: bool = True) -> bytes:
    packed = zstandard.ZstdCompressor(write_content_size=with_size).compress(body)
    packed += bytes(-len(packed) & 7)
    return with_header(
        pack_one(b"")[:56] + packed, length=56 + len(packed), attributes=r.ZSTD, count=1, raw_bytes=raw_bytes
    )


def test_a_few_bytes_cannot_ask_for_gigabytes():
    """A bomb is refused by what it says of itself, before anything is made room for."""
    bomb = bytes(80 << 20)
    with pytest.raises(BadBatch, match="at most"):
        check(compressed(bomb, len(bomb)))
    with pytest.raises(BadBatch, match="disagree"):
        check(compressed(bomb, 100))
    with pytest.raises(BadBatch, match="disagree"):
        check(compressed(bomb, 100, with_size=False))
    batch = compressed(struct.pack("<II", 0, 1000) + bytes(1000), 1008)
    assert unpack(batch, check(batch)) == [Record(bytes(1000))]


def test_a_change_anywhere_in_a_large_batch_is_noticed():
    values = [bytes([number % 251]) * 1_000 for number in range(1_300)]
    batch = pack([Record(value, b"k", b"{}") for value in values])
    assert len(batch) > 4 * r._PIECE_BYTES
    assert [record.value for record in unpack(batch, check(batch))] == values
    assert r.verify(batch)
    for at in (r.CHECKED_FROM, r._PIECE_BYTES, r.CHECKED_FROM + r._PIECE_BYTES, len(batch) // 2, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[at] ^= 1
        assert not r.verify(bytes(damaged)), at
    stamped = stamp(batch, 7, 9)
    assert r.verify(stamped)
    assert stamped == stamp(stamp(batch, 1, 2), 7, 9)


@pytest.mark.parametrize("sizes", [(10, 20), (5_000, 9_000), (10, 300_000), (300_000, 1)])
def test_a_body_in_parts_of_any_size_makes_the_same_batch(sizes):
    values = [bytes([size % 251]) * size for size in sizes]
    ends = r._ends(values)
    whole = pack([Record(value) for value in values], producer="p", epoch=3, seq=4)
    assert r.pack_body((ends, *values), len(values), 0, producer="p", epoch=3, seq=4) == whole
    assert r.pack_body((b"".join((ends, *values)),), len(values), 0, producer="p", epoch=3, seq=4) == whole
    compressed = r.pack_body((ends, *values), len(values), 0, compress=True)
    assert [record.value for record in unpack(compressed, check(compressed))] == values


def test_a_run_of_batches_is_cut_at_their_ends():
    run = pack_one(b"a") + pack_one(b"b" * 100)
    assert [unpack(batch)[0].value for batch in split(run)] == [b"a", b"b" * 100]
    assert list(split(b"")) == []
    with pytest.raises(BadBatch, match="cut off"):
        list(split(run[:-8]))
