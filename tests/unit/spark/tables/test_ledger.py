"""The rules of a table without a table: batches, offsets, and what to compact."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driftq.spark.tables.ledger import (
    BatchKnown,
    BatchRefused,
    Compaction,
    DataFile,
    FileSpan,
    HeldRange,
    Ledger,
    Overlap,
    check_batch,
    check_rows,
    files_to_compact,
    files_with,
    merge_ranges,
    merge_spans,
    overlaps,
)


def file_of(
    path: str, first: int, last: int, *, rows: int | None = None, size_bytes: int = 1, partition: int = 0
) -> DataFile:
    count = last - first + 1 if rows is None else rows
    return DataFile(path, count, size_bytes, (FileSpan("t", partition, first, last, count, 7),), attempt=path)


def appended(ledger: Ledger, batch_id: int, *files: DataFile, writer: str = "w", content: int = 0) -> Ledger:
    ends = dict(ledger.ends)
    for span in merge_spans(span for file in files for span in file.spans):
        ends[span.topic, span.partition] = max(span.last, ends.get((span.topic, span.partition), -1))
    return replace(
        ledger,
        version=ledger.version + 1,
        files={**ledger.files, **{file.path: file for file in files}},
        ends=ends,
        writers={**ledger.writers, writer: batch_id},
        contents={**ledger.contents, writer: content},
    )


def test_a_batch_is_new_known_or_a_regression() -> None:
    ledger = appended(Ledger(), 4)

    assert check_batch(ledger, "w", 5) is None
    assert check_batch(ledger, "w", 7) is None
    assert check_batch(ledger, "w", 4) == BatchKnown("w", 4)
    refused = check_batch(ledger, "w", 3)
    assert isinstance(refused, BatchRefused)
    assert refused.code == "BATCH_REGRESSED"
    assert check_batch(ledger, "another", 0) is None


def test_a_known_batch_with_other_content_is_refused_where_both_are_known() -> None:
    ledger = appended(Ledger(), 4, content=1)

    assert check_batch(ledger, "w", 4, 1) == check_batch(ledger, "w", 4) == BatchKnown("w", 4)
    refused = check_batch(ledger, "w", 4, 2)
    assert isinstance(refused, BatchRefused)
    assert refused.code == "CONTENT_DIFFERS"
    assert check_batch(ledger, "w", 5, 2) is None
    assert check_batch(appended(Ledger(), 4), "w", 4, 2) == BatchKnown("w", 4)


def test_what_a_batch_shares_with_the_table_is_found_by_offsets_whichever_writer_sends_it() -> None:
    ledger = appended(appended(Ledger(), 0, file_of("a", 0, 9)), 0, file_of("b", 20, 29), writer="another")

    def shared(first: int, last: int, partition: int = 0) -> list[tuple[int, int]]:
        spans = file_of("c", first, last, partition=partition).spans
        return [(overlap.first, overlap.last) for overlap in overlaps(ledger, spans)]

    assert shared(9, 9) == [(9, 9)]
    assert shared(5, 15) == [(5, 9)]
    assert shared(10, 19) == shared(0, 9, partition=1) == []
    assert shared(0, 40) == [(0, 9), (20, 29)]
    assert shared(25, 26) == [(25, 26)]


def test_only_files_with_rows_of_a_range_are_read_to_compare() -> None:
    ledger = appended(Ledger(), 0, file_of("a", 0, 9), file_of("b", 10, 19), file_of("c", 0, 9, partition=1))

    assert [file.path for file in files_with(ledger, [Overlap("t", 0, 9, 9)])] == ["a"]
    unknown = replace(ledger, files={**ledger.files, "d": DataFile("d", 5, 1)})
    assert [file.path for file in files_with(unknown, [Overlap("t", 0, 9, 9)])] == ["a", "d"]
    assert [file.path for file in files_with(ledger, [Overlap("t", 0, 5, 15)])] == ["a", "b"]


def test_more_rows_than_offsets_are_refused() -> None:
    files = [file_of("a", 0, 4), file_of("b", 3, 9)]
    refused = check_rows(merge_spans(span for file in files for span in file.spans))

    assert isinstance(refused, BatchRefused)
    assert refused.code == "ROWS_REPEATED"


def test_the_positions_of_a_table_are_where_a_reader_continues() -> None:
    ledger = appended(Ledger(), 0, file_of("a", 0, 9), file_of("b", 5, 7, partition=3))

    assert ledger.positions() == {"t": {0: 10, 3: 8}}


def test_what_one_commit_left_out_counts_as_held_and_what_lies_between_two_does_not() -> None:
    parts = [replace(file_of(name, first, first + 4), attempt="one") for name, first in (("a", 0), ("b", 10))]
    ledger = appended(appended(Ledger(), 0, *parts), 1, file_of("c", 20, 24))

    assert ledger.held("t", 0) == [HeldRange(0, 14), HeldRange(20, 24)]
    assert ledger.held("t", 1) == ledger.held("other", 0) == []


def test_everything_up_to_the_end_counts_as_held_once_another_program_has_rewritten_files() -> None:
    ledger = appended(Ledger(), 0, file_of("a", 5, 9))

    assert replace(ledger, files={"b": DataFile("b", 5, 1)}).held("t", 0) == [HeldRange(0, 9)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8))))
def test_merged_ranges_hold_the_same_offsets_in_order_and_apart(pairs: list[tuple[int, int]]) -> None:
    ranges = [HeldRange(first, first + more) for first, more in pairs]

    merged = merge_ranges(ranges)

    offsets = {offset for held in ranges for offset in range(held.first, held.last + 1)}
    assert {offset for held in merged for offset in range(held.first, held.last + 1)} == offsets
    assert all(one.last + 1 < other.first for one, other in itertools.pairwise(merged))


def test_the_sum_of_checksums_does_not_depend_on_how_rows_are_cut_into_files() -> None:
    spans = [FileSpan("t", 0, n, n, 1, (n * 0x9E3779B97F4A7C15) % 2**64) for n in range(10)]

    assert merge_spans(spans) == merge_spans(merge_spans(spans[:3]) + merge_spans(spans[3:]))
    assert merge_spans(spans)[0].checksum < 2**64


def test_only_partitions_with_many_small_files_are_compacted() -> None:
    rule = Compaction(files_min=3, small_bytes=10, target_bytes=25)
    files = [
        replace(file_of(f"d={day}/{n}", n, n, size_bytes=size_bytes), values={"d": str(day)})
        for day, count, size_bytes in ((1, 5, 8), (2, 2, 8), (3, 9, 10))
        for n in range(count)
    ]
    ledger = appended(Ledger(partitioned_by=("d",)), 0, *files)

    assert [file.path for file in files_to_compact(ledger, rule)] == ["d=1/0", "d=1/1", "d=1/2"]
