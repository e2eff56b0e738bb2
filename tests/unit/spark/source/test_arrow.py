"""Damaged batches are refused before they are decoded."""

from __future__ import annotations

import pytest

from driftq.spark.source.arrow import rows_of
from driftq.wire.records import BadBatch, Record, pack, stamp


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
