"""Properties of the sink: every row once, in order, in the partition of its key; chunks depend only on the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from driftq.spark.sink.chunker import LANE_BYTES_MIN, Chunker, PackedChunk
from driftq.spark.sink.options import WriteOptions
from driftq.spark.source.options import BrokerOptions
from driftq.wire.partitions import partition_of
from driftq.wire.records import check, unpack

TOPICS = {"a": 1, "b": 3, "c": 5}


class Row(NamedTuple):
    value: bytes
    key: bytes | None
    topic: str
    partition: int | None


keys = st.none() | st.sampled_from(
    [b"", b"k", b"user:1", b"\xff\x00" * 7, b"x" * 127, b"y" * 128, b"z" * 129, b"w" * 300]
)
rows = st.lists(
    st.builds(
        Row,
        st.sampled_from([b"", b"v", b"value", b"m" * 2_000, b"l" * 20_000]) | st.binary(max_size=20),
        keys,
        st.sampled_from(sorted(TOPICS)),
        st.none() | st.just(0),
    ),
    max_size=60,
)
options = st.builds(
    lambda chunk_rows, chunk_bytes, buffer_bytes: WriteOptions(
        BrokerOptions("http://nowhere"), chunk_rows=chunk_rows, chunk_bytes=chunk_bytes, buffer_bytes=buffer_bytes
    ),
    st.integers(1, 20),
    st.sampled_from([1 << 16, 1 << 17, 4 << 20]),
    st.sampled_from([1, 1 << 18]),
)


def batch_of(some: Sequence[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "value": pa.array([row.value for row in some], pa.binary()),
            "key": pa.array([row.key for row in some], pa.binary()),
            "topic": pa.array([row.topic for row in some], pa.string()),
            "partition": pa.array([row.partition for row in some], pa.int32()),
        }
    )


def packed(some: Sequence[Row], cuts: Sequence[int], how: WriteOptions, task: int = 0) -> list[PackedChunk]:
    packer = Chunker(how, TOPICS.__getitem__, task)
    chunks: list[PackedChunk] = []
    begin = 0
    for end in [*sorted(cut % (len(some) + 1) for cut in cuts), len(some)]:
        chunks.extend(packer.add(batch_of(some).slice(begin, end - begin)))
        begin = end
    chunks.extend(packer.finish())
    assert packer.rows == len(some)
    return chunks


@given(rows, st.lists(st.integers(0, 60), max_size=5), options, st.integers(0, 7))
def test_every_row_is_sent_once_and_in_order_to_its_partition(
    some: list[Row], cuts: list[int], how: WriteOptions, task: int
) -> None:
    sent: dict[tuple[str, int, bool], list[tuple[bytes, bytes]]] = {}
    round_robin: dict[str, list[tuple[bytes, bytes]]] = {}
    for chunk in packed(some, cuts, how, task):
        batch = chunk.pack("producer", 3)
        assert check(batch).count == chunk.rows <= how.chunk_rows
        records = [(record.value, record.key) for record in unpack(batch)]
        assert [value for value, _ in records] == chunk.values()
        if chunk.round_robin:
            round_robin.setdefault(chunk.topic, []).extend(records)
        else:
            sent.setdefault((chunk.topic, chunk.partition, False), []).extend(records)

    expected: dict[tuple[str, int, bool], list[tuple[bytes, bytes]]] = {}
    anywhere: dict[str, list[tuple[bytes, bytes]]] = {}
    for row in some:
        record, count = (row.value, row.key or b""), TOPICS[row.topic]
        if row.partition is not None or row.key or count == 1:
            place = row.partition if row.partition is not None else partition_of(row.key or b"", count)
            expected.setdefault((row.topic, place, False), []).append(record)
        else:
            anywhere.setdefault(row.topic, []).append(record)
    assert sent == expected
    assert round_robin == anywhere


@given(rows, st.lists(st.integers(0, 60), max_size=5), st.lists(st.integers(0, 60), max_size=5), options)
def test_chunks_do_not_depend_on_how_the_rows_arrived(
    some: list[Row], cuts: list[int], other_cuts: list[int], how: WriteOptions
) -> None:
    def named(chunks: list[PackedChunk]) -> dict[tuple[str, int, bool, int], bytes]:
        names = [(chunk.topic, chunk.partition, chunk.round_robin, chunk.seq) for chunk in chunks]
        assert len(set(names)) == len(names), "a number was used twice"
        return {name: chunk.pack("p", 1) for name, chunk in zip(names, chunks, strict=True)}

    assert named(packed(some, cuts, how)) == named(packed(some, other_cuts, how))


@given(rows, options)
def test_the_numbers_of_a_partition_have_no_gap(some: list[Row], how: WriteOptions) -> None:
    seqs: dict[tuple[str, int, bool], list[int]] = {}
    for chunk in packed(some, [], how, task=2):
        seqs.setdefault((chunk.topic, chunk.partition, chunk.round_robin), []).append(chunk.seq)

    assert all(numbers == list(range(len(numbers))) for numbers in seqs.values())


@given(rows, options)
def test_a_chunk_is_no_larger_than_its_share_of_the_buffer(some: list[Row], how: WriteOptions) -> None:
    for chunk in packed(some, [], how):
        size_max = how.chunk_bytes
        if not chunk.round_robin:
            size_max = max(LANE_BYTES_MIN, min(size_max, how.buffer_bytes // TOPICS[chunk.topic]))
        assert chunk.rows == 1 or sum(map(len, chunk.values())) <= size_max
