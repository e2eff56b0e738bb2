"""The codec of records: unpacking returns what was packed, and damaged or forged bytes are refused as a bad batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.wire import records as r

texts = st.binary(max_size=40)
record = st.builds(r.Record, texts, st.one_of(st.just(b""), texts), st.one_of(st.just(b""), texts))
some = st.lists(record, min_size=1, max_size=20)


@given(some, st.booleans(), st.booleans(), st.integers(0, 2**62), st.integers(0, 2**62))
def test_unpacking_returns_what_was_packed(records, compress, scheduled, first_offset, at_ms):
    batch = r.stamp(r.pack(records, compress=compress, scheduled=scheduled), first_offset, at_ms)
    header = r.check(batch)
    assert (header.first_offset, header.at_ms, header.count) == (first_offset, at_ms, len(records))
    assert header.end_offset == first_offset + len(records)
    assert len(batch) % 8 == 0
    assert r.unpack(batch) == records
    assert r.verify(batch)
    assert bool(header.attributes & r.SCHEDULED) == scheduled


@given(some, st.data())
def test_a_part_of_a_batch_has_the_same_records(records, data):
    first = data.draw(st.integers(0, len(records)))
    count = data.draw(st.integers(0, len(records)))
    batch = r.pack(records)
    assert r.unpack(batch, first=first, count=count) == records[first : first + count]


@given(some, st.booleans(), st.integers(0, 2**40), st.data())
def test_a_part_read_by_its_own_ends_is_a_part_of_the_whole(records, compress, first_offset, data):
    batch = r.stamp(r.pack(records * 5, compress=compress), first_offset, 7)
    header = r.check(batch)
    first = data.draw(st.integers(0, header.count - 1))
    count = data.draw(st.integers(0, header.count))
    for raw in (None, r.body(batch, header)):
        assert r.unpack(batch, header, first=first, count=count, raw=raw) == (records * 5)[first : first + count]
        assert r.head_at(batch, header, first, raw) == (records * 5)[first].head


@given(texts, texts, texts, st.booleans())
def test_one_record_is_packed_like_many(value, key, head, scheduled):
    assert r.pack_one(value, key, head, scheduled=scheduled) == r.pack(
        [r.Record(value, key, head)], scheduled=scheduled
    )


@given(some, st.text(max_size=30).filter(bool), st.integers(0, 2**53), st.integers(0, 2**53))
def test_the_producer_is_in_the_header(records, producer, epoch, seq):
    header = r.check(r.pack(records, producer=producer, epoch=epoch, seq=seq))
    assert (header.producer, header.epoch, header.seq) == (producer, epoch, seq)


@given(st.lists(some, max_size=4))
def test_a_run_of_batches_is_cut_into_the_same_batches(batches):
    packed = [r.pack(records) for records in batches]
    assert list(r.split(b"".join(packed))) == packed


@given(some, st.booleans(), st.data())
def test_any_flipped_bit_after_the_stamped_fields_is_noticed(records, compress, data):
    batch = bytearray(r.pack(records, compress=compress))
    position = data.draw(st.integers(0, len(batch) - 1).filter(lambda at: not 8 <= at < 24))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(r.BadBatch):
        r.check(bytes(batch))


@given(some, st.data())
def test_a_truncated_batch_is_refused(records, data):
    batch = r.pack(records)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    with pytest.raises(r.BadBatch):
        r.check(cut)
    if cut:
        with pytest.raises(r.BadBatch):
            list(r.split(cut))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_bad_batch_and_raise_no_other_error(data):
    for made_up in (data, r.MAGIC + data, r.pack_one(b"x")[:28] + data):
        with pytest.raises(r.BadBatch):
            r.check(made_up)


@given(some, st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=60))
def test_a_batch_with_a_valid_checksum_and_forged_content_is_refused_or_readable(
    records, attributes, count, raw_bytes, body
):
    """A sender that can compute a checksum can send any bytes: they are refused as a bad batch, or can be read
    whole."""
    import google_crc32c

    body += bytes(-len(body) & 7)
    rest = r.HEADER.pack(r.MAGIC, 56 + len(body), 0, 0, 0, attributes, 0, count, raw_bytes, -1, 0)[28:] + body
    front = r.HEADER.pack(r.MAGIC, 56 + len(body), 0, 0, google_crc32c.value(rest), 0, 0, 0, 0, 0, 0)[:28]
    try:
        header = r.check(front + rest)
    except r.BadBatch:
        return
    assert len(r.unpack(front + rest)) == header.count
