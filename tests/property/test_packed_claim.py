"""Packed claims: a part of a batch holds the same records, and unpacking a claim returns what was packed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.wire import records as r
from driftq.wire.claims import RefusedItem
from driftq.wire.packed_claim import BatchColumns, PackedClaimHead, PackedRun, cut, pack_claim, unpack_claim

texts = st.binary(max_size=40)
record = st.builds(r.Record, texts, st.one_of(st.just(b""), texts), st.one_of(st.just(b""), texts))
some = st.lists(record, min_size=1, max_size=20)


@given(some, st.booleans(), st.booleans(), st.integers(0, 2**40), st.data())
def test_a_cut_batch_is_a_batch_of_the_same_records(records, compress, scheduled, first_offset, data):
    whole = r.stamp(r.pack(records * 4, compress=compress, scheduled=scheduled), first_offset, 7)
    header = r.check(whole)
    first = data.draw(st.integers(0, header.count - 1))
    count = data.draw(st.integers(1, header.count - first))
    part = cut(whole, header, first, count)
    part_header = r.check(part)
    assert r.unpack(part) == (records * 4)[first : first + count]
    assert (part_header.first_offset, part_header.at_ms, part_header.count) == (first_offset + first, 7, count)
    assert bool(part_header.attributes & r.SCHEDULED) == scheduled


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("size", [10, 100, 3_000, 100_000])
def test_a_part_of_any_size_is_cut(size, compress):
    records = [r.Record(bytes([number]) * size, b"k" * (size // 2), b" " * (size // 3)) for number in range(100)]
    whole = r.pack(records, compress=compress)
    header = r.check(whole)
    for first, count in ((0, 1), (0, 50), (30, 60), (99, 1)):
        part = cut(whole, header, first, count)
        r.check(part)
        assert r.unpack(part) == records[first : first + count]


@given(some, st.booleans())
def test_columns_read_by_index_are_the_records(records, compress):
    batch = r.pack(records, compress=compress)
    columns = BatchColumns(batch, r.read_header(batch))
    read = [r.Record(columns.value(i), columns.key(i), columns.head(i)) for i in range(len(records))]
    assert read == records
    assert columns.has_heads == any(record.head for record in records)


@given(st.lists(st.lists(some, min_size=1, max_size=3), max_size=4), st.booleans())
def test_unpacking_a_claim_returns_what_was_packed(runs, refuses):
    offset, heads, batches = 5, [], []
    for number, contents in enumerate(runs):
        first, size_bytes = offset, 0
        for records in contents:
            batches.append(r.stamp(r.pack(records), offset, number))
            size_bytes += len(batches[-1])
            offset += len(records)
        heads.append(PackedRun(number, first, offset, number + 1, 1, 99, size_bytes, "boom" * number))
        offset += 3
    refused = [RefusedItem(0, 1, "FAILED_PRECONDITION", "lost")] if refuses else []
    body = pack_claim(PackedClaimHead("token", heads, refused), batches)
    head, unpacked = unpack_claim(body)
    unpacked = list(unpacked)
    assert (head.token, head.runs, head.refused) == ("token", heads, refused)
    assert [batch for _, _, batch in unpacked] == batches
    assert [run.partition for run, _, _ in unpacked] == [n for n, contents in enumerate(runs) for _ in contents]


@given(some, st.data())
def test_a_claim_that_misses_bytes_is_refused(records, data):
    batch = r.stamp(r.pack(records), 5, 0)
    body = pack_claim(PackedClaimHead("t", [PackedRun(0, 5, 5 + len(records), 1, 1, 9, len(batch))]), [batch])
    shorter = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(r.BadBatch):
        list(unpack_claim(shorter)[1])
    other = pack_claim(PackedClaimHead("t", [PackedRun(0, 4, 4 + len(records), 1, 1, 9, len(batch))]), [batch])
    with pytest.raises(r.BadBatch, match="offset 4 of partition 0 is missing"):
        list(unpack_claim(other)[1])
