"""Single records of stored batches: the same as unpacking, without the cost of the batch."""

from __future__ import annotations

import time

import pytest

from driftq.core.context import Unreadable
from driftq.engine import projection
from driftq.engine.projection import StoreReader
from driftq.storage.log_store import MemoryLogStore
from driftq.wire import records
from driftq.wire.records import Record, pack, stamp


def stored(*batches: list[Record], compress: bool = False) -> MemoryLogStore:
    """A log number 1 with these batches."""
    store = MemoryLogStore()
    for batch in batches:
        first_offset = store.end(1)
        store.append(1, first_offset, len(batch), stamp(pack(batch, compress=compress), first_offset, 5))
    return store


def some(count: int, size: int = 50) -> list[Record]:
    return [Record(b"%d" % number * size, b"key-%d" % number, b'{"n":%d}' % number) for number in range(count)]


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offsets of the batches whose body was taken out, in order."""
    seen: list[int] = []
    body = records.body

    def counted(batch: bytes, header: records.Header) -> bytes:
        seen.append(header.first_offset)
        return body(batch, header)

    monkeypatch.setattr(records, "body", counted)
    return seen


@pytest.mark.parametrize("compress", [False, True])
def test_every_record_and_head_is_read_back(compress: bool) -> None:
    batches = [some(3), [Record(b"plain")], some(200)]
    reader = StoreReader(stored(*batches, compress=compress))
    for offset, record in enumerate(record for batch in batches for record in batch):
        assert reader.record(1, offset) == record
        assert reader.head(1, offset) == record.head
    with pytest.raises(Unreadable):
        reader.record(1, 204)


def test_a_compressed_batch_is_decompressed_once_for_all_its_records(decompressed: list[int]) -> None:
    reader = StoreReader(stored(some(100), some(100), compress=True))
    for offset in range(200):
        reader.record(1, offset)
        reader.head(1, offset)
    assert decompressed == [0, 100]


def test_few_decompressed_bodies_are_kept_and_the_last_one_always(
    decompressed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "BODIES_BYTES", 25_000)
    reader = StoreReader(stored(some(100), some(100), some(100), some(2_000), compress=True))
    for offset in (0, 100, 200, 0, 200, 300, 301, 302):  # a body has about 12,000 bytes, the last one 400,000
        reader.record(1, offset)
    assert decompressed == [0, 100, 200, 0, 300]


def test_the_head_of_a_batch_without_heads_needs_no_body(decompressed: list[int]) -> None:
    reader = StoreReader(stored([Record(b"v" * 100)] * 1_000, compress=True))
    assert reader.head(1, 500) == b""
    assert decompressed == []


@pytest.mark.serial
def test_a_record_of_a_large_batch_costs_what_a_record_of_a_small_one_costs() -> None:
    few, many = StoreReader(stored(some(100, 1))), StoreReader(stored(some(20_000, 1)))

    def cost(reader: StoreReader, step: int) -> float:
        started_s = time.thread_time()
        for offset in range(0, 100 * step, step):
            reader.record(1, offset)
        return time.thread_time() - started_s

    ratios = [cost(many, 200) / cost(few, 1) for _ in range(9)]
    assert sorted(ratios)[4] < 2
