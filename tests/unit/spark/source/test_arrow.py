"""Damaged batches are refused before they are decoded."""

from __future__ import annotations

import google_crc32c
import pytest

from driftq.spark.source.arrow import rows_of
from driftq.wire.records import CHECKED_FROM, HEADER_BYTES, BadBatch, Record, pack, stamp


def packed_batches(*batches: list[Record]) -> bytes:
    return b"".join(stamp(pack(batch), 0, 1_700_000_000_123) for batch in batches)


def test_a_changed_byte_is_refused():
    data = bytearray(packed_batches([Record(b"payload")] * 3))
    data[-9] ^= 1
    with pytest.raises(BadBatch, match="checksum"):
        list(rows_of(data))


@pytest.mark.parametrize("keep", [10, 60, -8])
def test_a_truncated_response_is_refused(keep):
    with pytest.raises(BadBatch):
        list(rows_of(packed_batches([Record(b"payload")] * 3, [Record(b"more")])[:keep]))


def test_bytes_that_are_no_batch_are_refused():
    with pytest.raises(BadBatch, match="magic"):
        list(rows_of(b"x" * 64))


@pytest.mark.parametrize("total", [8, 1_000, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_column_that_is_longer_than_its_batch_is_refused_before_its_bytes_are_read(total, batch):
    """The checksum is right: it was made over the wrong bytes."""
    batches = [bytearray(packed_batches([Record(b"v", b"k"), Record(b"w", b"k")])) for _ in range(2)]
    wrong = batches[batch]
    wrong[HEADER_BYTES + 8 : HEADER_BYTES + 12] = total.to_bytes(4, "little")  # the end of the second key
    wrong[24:28] = google_crc32c.value(bytes(wrong[CHECKED_FROM:])).to_bytes(4, "little")
    with pytest.raises(BadBatch, match="column"):
        list(rows_of(b"".join(batches)))


def test_batches_of_all_sizes_are_read_in_order():
    sizes = [1, 3, 5_000, 2_000_000, 2, 70_000, 10, 1_500_000, 1]
    values = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = packed_batches(*([Record(value, value[:1] * (number % 3))] for number, value in enumerate(values)))
    for content in (data, bytearray(data)):
        rows = [(group.values.at(0), *group.values.lengths.tolist()) for group in rows_of(content)]
        assert [value for value, *_ in rows] == [values[0], values[3], values[4], values[7], values[8]]
        assert [length for _, *lengths in rows for length in lengths] == sizes
