"""Packed batches as record batches: the same records, however they are packed, with the selected columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from driftq.spark.source import columns
from driftq.spark.source.columns import BASE, ENVELOPE, HEAD
from driftq.spark.source.offsets import OffsetRange
from driftq.spark.source.record_batches import JOINED_BYTES, ROWS_MAX, SMALL_BYTES, joined, record_batches
from driftq.wire.message import Envelope, Head, Job, Routing, encode_head
from driftq.wire.records import Record, pack, stamp

AT_MS = 1_700_000_000_123


def packed_batches(*batches: list[Record], first: int = 0, compress: bool = False) -> bytes:
    """Batches as a broker answers with them."""
    parts = []
    for index, batch in enumerate(batches):
        parts.append(
            stamp(pack(batch, compress=compress, producer="p" * index, epoch=0 if index else -1), first, AT_MS)
        )
        first += len(batch)
    return b"".join(parts)


def rows(data: bytes, start: int, end: int, selected: tuple[columns.Column, ...] = BASE) -> list[dict[str, object]]:
    return [
        row for table in record_batches(data, OffsetRange("t", 3, start, end), selected) for row in table.to_pylist()
    ]


def test_a_run_of_batches_is_one_table():
    data = packed_batches(
        [Record(b"a", b"k")], [Record(b"bb"), Record(b"")], [Record(b"c", b"", b"{}"), Record(b"d", b"kk")]
    )
    decoded = rows(data, 0, 5)
    assert [row["value"] for row in decoded] == [b"a", b"bb", b"", b"c", b"d"]
    assert [row["key"] for row in decoded] == [b"k", None, None, None, b"kk"]
    assert [row["offset"] for row in decoded] == [0, 1, 2, 3, 4]
    assert {(row["topic"], row["partition"]) for row in decoded} == {("t", 3)}
    assert {row["timestamp"].timestamp() for row in decoded} == {AT_MS / 1_000}


def test_a_single_batch_needs_no_joining():
    decoded = rows(packed_batches([Record(b"a", b"x", b"{}"), Record(b"bc", b"", b"{}")], first=7), 7, 9)
    assert [(row["key"], row["value"]) for row in decoded] == [(b"x", b"a"), (None, b"bc")]


def test_only_what_lies_in_the_range_is_given():
    data = packed_batches([Record(bytes([65 + n])) for n in range(5)], [Record(b"x"), Record(b"y")], first=10)
    assert [row["offset"] for row in rows(data, 12, 16)] == [12, 13, 14, 15]
    assert [row["value"] for row in rows(data, 12, 16)] == [b"C", b"D", b"E", b"x"]
    assert rows(data, 17, 20) == []
    assert rows(b"", 0, 1) == []


def test_compressed_batches_are_the_same():
    batches = [[Record(b"v" * 500, b"k" * 20)] * 50, [Record(b"w")], [Record(b"x" * 300)] * 9]
    assert rows(packed_batches(*batches, compress=True), 0, 60) == rows(packed_batches(*batches), 0, 60)


def test_large_runs_are_cut_into_pieces():
    data = packed_batches([Record(b"v")] * 50_000, [Record(b"w")] * 50_000)
    sizes = [table.num_rows for table in record_batches(data, OffsetRange("t", 0, 10, 100_000), BASE)]
    assert sizes == [ROWS_MAX, 99_990 - ROWS_MAX]


@pytest.mark.parametrize("compress", [False, True])
def test_a_large_batch_stays_where_it_is_and_small_ones_are_joined(compress):
    small, large = [Record(b"s", b"k")] * 3, [Record(b"L" * 1_000_000), Record(b"M" * 200_000)]
    data = bytearray(packed_batches(small, small, large, large, small, compress=compress))

    tables_ = list(record_batches(data, OffsetRange("t", 0, 1, 12), BASE))

    assert [table.num_rows for table in tables_] == [5, 2, 2, 2]
    assert [row["offset"] for table in tables_ for row in table.to_pylist()] == list(range(1, 12))
    assert [len(row["value"]) for row in tables_[1].to_pylist()] == [1_000_000, 200_000]


# --- heads ------------------------------------------------------------------------------------------------------------

FULL = Head(
    envelope=Envelope(
        run_id="r", step_id="s", parent_step_id="p", tenant_id="acme", idempotency_key="i",
        labels={"tier": "gold", "zone": "é"}, deadline="2030-01-01T00:00:00.5Z",
    ),
    routing=Routing(label="fast", meta={"why": "rule 1"}),
    job=Job(task="mail.v1", priority=7),
)  # fmt: skip


def test_the_envelope_becomes_columns():
    data = packed_batches([Record(b"a", b"", encode_head(FULL)), Record(b"b")])
    full, empty = rows(data, 0, 2, (*BASE, *ENVELOPE))
    envelope = {name: full[name] for name in ("run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key")}
    assert envelope == {
        "run_id": "r", "step_id": "s", "parent_step_id": "p", "tenant_id": "acme", "idempotency_key": "i",
    }  # fmt: skip
    assert dict(full["labels"]) == {"tier": "gold", "zone": "é"}
    assert full["deadline"].isoformat() == "2030-01-01T00:00:00.500000+00:00"
    assert (full["routing_label"], full["task"], full["priority"]) == ("fast", "mail.v1", 7)
    assert dict(full["routing_meta"]) == {"why": "rule 1"}
    assert all(empty[column.name] is None for column in ENVELOPE)


def test_records_with_and_without_a_head_keep_their_places():
    heads = [encode_head(Head(envelope=Envelope(run_id=f"r{n}"))) if n % 3 == 0 else b"" for n in range(10)]
    data = packed_batches(
        [Record(b"v", b"", head) for head in heads[:4]], [Record(b"v", b"", head) for head in heads[4:]]
    )
    run_ids = [row["run_id"] for row in rows(data, 0, 10, (*BASE, *ENVELOPE))]
    assert run_ids == [f"r{n}" if n % 3 == 0 else None for n in range(10)]


def test_a_priority_is_null_for_what_is_no_job():
    heads = [Head(job=Job(task="t")), Head(envelope=Envelope(run_id="r"))]
    data = packed_batches([Record(b"v", b"", encode_head(head)) for head in heads])
    assert [row["priority"] for row in rows(data, 0, 2, ENVELOPE)] == [0, None]


def test_a_head_that_cannot_be_read_counts_as_none():
    heads = [b'{"envelope":{"run_id":"a"}}', b"not json", b'{"envelope":{"deadline":"never"}}', b"[1]", b"{},{}"]
    data = packed_batches([Record(b"v", b"", head) for head in heads])
    decoded = rows(data, 0, 5, ENVELOPE)
    assert [row["run_id"] for row in decoded] == ["a", None, None, None, None]
    assert [row["deadline"] for row in decoded] == [None] * 5


def test_a_head_that_is_two_counts_as_none():
    data = packed_batches([Record(b"v", b"", b"{},{}"), Record(b"w", b"", b'{"envelope":{"run_id":"r"}}')])
    assert [row["run_id"] for row in rows(data, 0, 2, ENVELOPE)] == [None, "r"]


def test_the_whole_head_is_a_column_too():
    text = encode_head(FULL)
    decoded = rows(packed_batches([Record(b"a", b"", text), Record(b"b")]), 0, 2, (*BASE, *HEAD))
    assert [row["head"] for row in decoded] == [text.decode(), None]


def test_a_query_that_names_its_columns_gets_no_others():
    selected = tuple(column for column in BASE if column.name in ("offset", "value"))
    (table,) = record_batches(packed_batches([Record(b"a")]), OffsetRange("t", 0, 0, 1), selected[::-1])
    assert table.schema.names == ["value", "offset"]


def test_arrow_and_spark_mean_the_same_types():
    from pyspark.sql.pandas.types import to_arrow_schema

    every = tuple(columns.ALL_COLUMNS.values())
    spark: pa.Schema = to_arrow_schema(columns.spark_schema(every), timezone="UTC")
    assert spark.equals(columns.arrow_schema(every))


WITHOUT_PANDAS = """
import sys
from tests.unit.spark.source.test_record_batches import BASE, OffsetRange, Record, record_batches, packed_batches
batches = list(record_batches(packed_batches([Record(b"a", b"k")], [Record(b"b")]), OffsetRange("t", 3, 0, 2), BASE))
print(sum(map(len, batches)), "pandas" in sys.modules)
"""


def test_a_worker_that_reads_needs_no_pandas():
    """It takes most of a second to import, in every worker."""
    process = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True)
    assert process.stdout == "2 False\n"


def fetched(size_bytes: int, *values: bytes) -> tuple[int, Iterator[pa.RecordBatch]]:
    """A fetch that says how large it was."""
    data = packed_batches([Record(value) for value in values])
    return size_bytes, record_batches(data, OffsetRange("t", 0, 0, len(values)), BASE)


def test_small_fetches_become_one_record_batch_and_large_ones_stay_as_they_are():
    fetches = [
        fetched(100, b"a"),
        fetched(100, b"b", b"c"),
        fetched(SMALL_BYTES, b"d"),
        fetched(100, b"e"),
        fetched(9, b"f"),
    ]
    assert [batch["value"].to_pylist() for batch in joined(fetches)] == [[b"a", b"b", b"c"], [b"d"], [b"e", b"f"]]
    assert not list(joined([(100, iter(()))]))


def test_what_is_joined_is_bounded_in_bytes_and_rows():
    many = [fetched(SMALL_BYTES - 1, b"x") for _ in range(JOINED_BYTES // SMALL_BYTES + 1)]
    assert [batch.num_rows for batch in joined(many)] == [len(many) - 1, 1]
    wide = [fetched(9, *[b""] * (ROWS_MAX // 2)) for _ in range(3)]
    assert [batch.num_rows for batch in joined(wide)] == [ROWS_MAX, ROWS_MAX // 2]
