"""Rows into packed records: heads from columns, nulls, and errors that name column and row."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from driftq.spark.sink.chunker import Chunker
from driftq.spark.sink.envelope import BadRow
from driftq.spark.sink.options import WriteOptions
from driftq.spark.source.options import BrokerOptions
from driftq.wire.message import Envelope, Head, Job, Routing, decode_head
from driftq.wire.records import HEADS, KEYS, Record, check, unpack

STAGED = WriteOptions(BrokerOptions(""), topic="t")
DIRECT = STAGED._replace(staged=False)
TIME = pa.timestamp("us", tz="UTC")


def records(batch: pa.RecordBatch, options: WriteOptions = STAGED, partitions: int = 1) -> list[Record]:
    packer = Chunker(options, lambda _: partitions, 0)
    chunks = [*packer.add(batch), *packer.finish()]
    return [record for chunk in chunks for record in unpack(chunk.pack())]


def test_text_and_bytes_are_taken_alike_and_a_null_key_is_none() -> None:
    batch = pa.record_batch({"value": ["a", "ü"], "key": pa.array([b"k", None], pa.binary())})

    assert records(batch) == [Record(b"a", b"k"), Record("ü".encode())]


def test_columns_that_are_empty_take_no_room() -> None:
    nothing = pa.array([None, None], pa.string())
    packer = Chunker(STAGED, lambda _: 1, 0)
    batch = pa.record_batch({"value": ["a", "b"], "key": nothing, "run_id": nothing})

    (chunk,) = [*packer.add(batch), *packer.finish()]

    assert not check(chunk.pack()).attributes & (KEYS | HEADS)


def test_large_types_and_slices_of_batches_are_read_right() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "bb", "ccc"], pa.large_string())})

    assert [record.value for record in records(batch.slice(1))] == [b"bb", b"ccc"]


def test_the_envelope_becomes_a_head() -> None:
    batch = pa.record_batch(
        {
            "value": ["a", "b"],
            "run_id": ["r1", None],
            "tenant_id": ["acme", None],
            "labels": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
        }
    )

    first, second = records(batch)

    assert decode_head(first.head) == Head(Envelope(run_id="r1", tenant_id="acme", labels={"k": "v"}))
    assert second.head == b""


def test_direct_messages_carry_deadline_routing_and_job() -> None:
    batch = pa.record_batch(
        {
            "value": ["a"],
            "deadline": pa.array([datetime(2030, 1, 1, tzinfo=UTC)], TIME),
            "routing_label": ["fast"],
            "routing_meta": pa.array([[("model", "small")]], pa.map_(pa.string(), pa.string())),
            "task": ["send"],
            "priority": pa.array([7], pa.int32()),
        }
    )

    (record,) = records(batch, DIRECT)

    assert decode_head(record.head) == Head(
        Envelope(deadline="2030-01-01T00:00:00.000+00:00"),
        Routing("fast", {"model": "small"}),
        Job(task="send", priority=7),
    )


def test_a_head_is_taken_as_it_is() -> None:
    text = '{"envelope":{"run_id":"r"}}'

    first, second = records(pa.record_batch({"value": ["a", "b"], "head": [text, None]}))

    assert (first.head, second.head) == (text.encode(), b"")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("deadline", pa.array([None, datetime(2030, 1, 1, tzinfo=UTC)], TIME)),
        ("routing_label", pa.array([None, "fast"])),
        ("task", pa.array(["", "send"])),
        ("priority", pa.array([0, 3], pa.int32())),
    ],
)
def test_what_a_staged_message_cannot_carry_is_refused(name: str, column: pa.Array) -> None:
    batch = pa.record_batch({"value": ["a", "b"], name: column})

    with pytest.raises(BadRow, match=rf"column {name}, row 1 of task 0: a staged message cannot have it.*mode=direct"):
        records(batch)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"value": pa.array(["a", None])}, "column value, row 1 .* null"),
        (
            {"value": ["a", "b"], "partition": pa.array([0, 3], pa.int32())},
            "column partition, row 1 .* has 3 partitions",
        ),
        ({"value": ["a", "b"], "partition": pa.array([None, -1], pa.int32())}, "column partition, row 1 .* it is -1"),
        ({"value": ["a"], "priority": pa.array([10], pa.int32())}, "column priority, row 0 .* 0 to 9"),
        (
            {"value": ["a"], "labels": pa.array([[("k", None)]], pa.map_(pa.string(), pa.string()))},
            "column labels, row 0 .* null",
        ),
    ],
)
def test_a_bad_row_is_named(batch: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(BadRow, match=message):
        records(pa.record_batch(batch), DIRECT, partitions=3)


def test_rows_are_counted_over_all_batches_of_a_task() -> None:
    packer = Chunker(STAGED, lambda _: 1, 4)
    list(packer.add(pa.record_batch({"value": ["a"] * 10})))

    with pytest.raises(BadRow, match="row 10 of task 4"):
        list(packer.add(pa.record_batch({"value": pa.array([None], pa.string())})))


def test_a_null_topic_is_refused() -> None:
    batch = pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())})

    with pytest.raises(BadRow, match="column topic, row 0"):
        records(batch, STAGED._replace(topic=""))


def test_a_row_that_no_batch_can_hold_is_refused() -> None:
    with pytest.raises(BadRow, match=r"column value, row 0 .* bytes"):
        records(pa.record_batch({"value": pa.array([bytes(16 << 20)], pa.binary())}))


def test_rows_without_a_key_go_round_the_partitions_chunk_by_chunk() -> None:
    packer = Chunker(STAGED._replace(chunk_rows=2), lambda _: 3, task=1)

    chunks = [*packer.add(pa.record_batch({"value": list("abcdefgh")})), *packer.finish()]

    assert [(chunk.partition, chunk.seq, chunk.rows) for chunk in chunks] == [
        (1, 0, 2),
        (2, 0, 2),
        (0, 0, 2),
        (1, 1, 2),
    ]


def test_a_chunk_of_direct_rows_with_envelopes_is_one_that_the_broker_takes() -> None:
    rows = 25_000
    labelled = pa.record_batch({"value": ["v"] * rows, "tenant_id": ["t"] * rows})
    plain = pa.record_batch({"value": ["v"] * rows})

    def chunks(batch: pa.RecordBatch, options: WriteOptions) -> list[int]:
        packer = Chunker(options, lambda _: 1, 0)
        return [chunk.rows for chunk in [*packer.add(batch), *packer.finish()]]

    assert chunks(labelled, DIRECT) == [10_000, 10_000, 5_000]
    assert chunks(plain, DIRECT) == [25_000]
    assert chunks(labelled, STAGED) == [25_000]


def digest(*batches: pa.RecordBatch, options: WriteOptions = STAGED, partitions: int = 1, task: int = 0) -> int:
    packer = Chunker(options, lambda _: partitions, task)
    chunks = [chunk for batch in batches for chunk in packer.add(batch)]
    return sum(chunk.digest() for chunk in [*chunks, *packer.finish()]) % (1 << 64)


def keyed(*rows: tuple[str, str | None]) -> pa.RecordBatch:
    return pa.record_batch({"value": [value for value, _ in rows], "key": pa.array([key for _, key in rows])})


def test_a_digest_depends_neither_on_the_order_of_rows_nor_on_chunks_and_tasks() -> None:
    rows = [(f"v{number}", f"k{number % 3}" if number % 4 else None) for number in range(50)]
    whole = digest(keyed(*rows), partitions=3)

    small_chunks = STAGED._replace(chunk_rows=7)
    assert digest(keyed(*rows[20:]), keyed(*rows[:20]), options=small_chunks, partitions=3, task=2) == whole
    assert (digest(keyed(*rows[:9]), partitions=3) + digest(keyed(*rows[9:]), partitions=3)) % (1 << 64) == whole


def test_a_digest_shows_every_change_of_a_row() -> None:
    rows = [("a", "k"), ("b", "l"), ("a", "k")]
    changed = [
        [("a", "l"), ("b", "k"), ("a", "k")],
        [("a", "k"), ("b", "l"), ("b", "l")],
        [("ak", None), ("b", "l"), ("a", "k")],
        [("a", "k"), ("b", "l")],
    ]
    batch = keyed(*rows)
    digests = [
        digest(batch),
        *(digest(keyed(*others)) for others in changed),
        digest(batch, options=STAGED._replace(topic="u")),
        digest(batch.append_column("partition", pa.array([0, 0, 1])), partitions=2),
        digest(batch.append_column("partition", pa.array([1, 0, 0])), partitions=2),
        digest(batch.append_column("run_id", pa.array(["r", None, None])), options=STAGED),
    ]

    assert len(set(digests)) == len(digests) - 1, "only the two swaps of equal rows are the same"
