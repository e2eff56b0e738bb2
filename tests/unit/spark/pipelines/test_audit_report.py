"""What an audit says, from counts and checksums alone."""

from __future__ import annotations

from driftq.spark.pipelines.audit_report import (
    CANNOT_TELL,
    DIFFERS,
    EXACT,
    AuditReport,
    Extent,
    Mismatch,
    Total,
    comparable,
    differing,
    partition_results,
    whole,
    with_passed,
)
from driftq.spark.tables.ledger import HeldRange

LOG = ("orders", 0)


def test_the_buckets_of_a_log_add_up() -> None:
    buckets = {("orders", 0, 0): Total(3, 9, 7, 2**64 - 1), ("orders", 0, 1): Total(10, 12, 3, 5)}

    assert whole(buckets) == {LOG: Total(3, 12, 10, 4)}


def test_only_offsets_that_both_can_have_are_compared() -> None:
    table = {LOG: Total(10, 19, 10, 0)}

    assert comparable(table, {LOG: Extent(0, 100)}) == {LOG: Extent(10, 20)}
    assert comparable(table, {LOG: Extent(15, 18)}) == {LOG: Extent(15, 18)}
    assert comparable(table, {LOG: Extent(50, 60)}) == {LOG: Extent(50, 50)}
    assert comparable(table, {}) == {}


def test_a_bucket_differs_by_count_by_checksum_or_by_being_alone() -> None:
    table = {("t", 0, n): Total(0, 9, 10, 7) for n in range(4)}
    log = {("t", 0, 0): Total(0, 9, 10, 7), ("t", 0, 1): Total(0, 9, 9, 7), ("t", 0, 2): Total(0, 9, 10, 8)}

    assert differing(table, log) == [("t", 0, 1), ("t", 0, 2), ("t", 0, 3)]
    assert differing({}, log) == sorted(log)


def test_a_table_that_is_the_same_as_its_log_is_exact() -> None:
    report = AuditReport(partition_results({LOG: Total(0, 9, 10, 255)}, {LOG: Extent(0, 12)}, {LOG: 10}, []))

    assert report.code == EXACT
    first, last = report.lines()
    assert first == "orders/0: offsets 0–9, 10 rows, checksum 00000000000000ff: exact; 2 newer in the log"
    assert last == "verdict: exact. 10 rows of 1 partitions are what the log holds, each once"


def test_offsets_that_retention_removed_cannot_be_compared() -> None:
    table = {LOG: Total(0, 9, 10, 1)}

    partial = partition_results(table, {LOG: Extent(4, 20)}, {LOG: 6}, [])[0]
    assert (partial.code, partial.unknown) == (CANNOT_TELL, HeldRange(0, 3))
    assert "offsets 0–3 are no longer in the log" in partial.line()
    assert partition_results(table, {LOG: Extent(30, 40)}, {}, [])[0].unknown == HeldRange(0, 9)
    gone = partition_results(table, {}, {}, [])[0]
    assert (gone.code, gone.unknown, gone.ahead) == (CANNOT_TELL, HeldRange(0, 9), 0)


def test_what_a_query_has_passed_is_compared_and_only_the_rest_is_newer() -> None:
    table = {LOG: Total(10, 19, 10, 0)}
    log = {LOG: Extent(0, 50)}

    assert comparable(table, log, {LOG: 30}) == {LOG: Extent(10, 30)}
    assert comparable(table, log, {LOG: 15}) == {LOG: Extent(10, 20)}
    assert comparable(table, log, {LOG: 90}) == {LOG: Extent(10, 50)}
    behind = partition_results(table, log, {LOG: 20}, [("orders", 0, 0)], {LOG: 30})[0]
    assert (behind.code, behind.ahead, behind.passed) == (DIFFERS, 20, 30)
    assert behind.line().endswith("; the query has read up to offset 29; 20 newer in the log")
    assert partition_results(table, log, {LOG: 10}, [], {LOG: 20})[0].passed == 0
    trimmed = partition_results(table, {LOG: Extent(25, 50)}, {}, [], {LOG: 30})[0]
    assert trimmed.unknown == HeldRange(10, 24)


def test_a_log_that_a_query_has_passed_and_the_table_lacks_is_compared_from_what_is_known() -> None:
    other = ("orders", 1)
    table = with_passed(
        {LOG: Total(0, 9, 10, 1)}, {LOG: 5, other: 5, ("idle", 0): 7}, {LOG: 10, other: 9, ("idle", 0): 7}
    )

    assert table == {LOG: Total(0, 9, 10, 1), other: Total(5, 4, 0, 0)}
    assert comparable(table, {other: Extent(0, 20)}, {other: 9}) == {other: Extent(5, 9)}
    lines = [
        log.line() for log in partition_results(table, {other: Extent(0, 20)}, {other: 4}, [(*other, 0)], {other: 9})
    ]
    assert lines[1] == (
        "orders/1: no rows: DIFFERS (the log has 4 rows there); the query has read up to offset 8; 11 newer in the log"
    )


def test_a_difference_weighs_more_than_a_doubt() -> None:
    partitions = partition_results({LOG: Total(0, 9, 10, 1)}, {LOG: Extent(4, 20)}, {LOG: 6}, [("orders", 0, 0)])

    report = AuditReport(partitions, (Mismatch("missing", "orders", 0, 5),), {"missing": 3}, more=True)

    assert report.code == DIFFERS
    assert "missing   orders/0 offset 5: in the log, not in the table" in report.lines()
    assert "… at least 3 in all: 3 missing" in report.lines()
    assert AuditReport(problems=("x is gone",)).code == DIFFERS
    assert AuditReport(doubts=("no rows",)).code == CANNOT_TELL
