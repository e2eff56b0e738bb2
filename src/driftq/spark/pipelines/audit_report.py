"""The report of an audit: from counts and checksums to a verdict. Pure: knows no Spark and no broker.

*Exact*: the table holds what the log holds, no more, no less, nothing changed. *Differs*: it does not, and the report
says where. *Cannot tell*: a part of the log is gone, so that part of the table cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from driftq.spark.tables.ledger import CHECKSUM_MODULUS, HeldRange

EXACT, DIFFERS, CANNOT_TELL = 0, 1, 2
_VERDICTS = {EXACT: "exact", DIFFERS: "DIFFERS", CANNOT_TELL: "cannot tell"}

LogName = tuple[str, int]
BucketName = tuple[str, int, int]
Kind = Literal["missing", "extra", "repeated", "changed"]
MEANINGS: dict[Kind, str] = {
    "missing": "in the log, not in the table",
    "extra": "in the table, not in the log",
    "repeated": "in the table more than once",
    "changed": "key or value differ from the log",
}


NOTHING_PASSED: Mapping[LogName, int] = {}


class Total(NamedTuple):
    """The rows of a log, or of one of its buckets."""

    first: int
    last: int
    rows: int
    checksum: int


class Extent(NamedTuple):
    """What the log holds now: offsets [start, end)."""

    start: int
    end: int


class Mismatch(NamedTuple):
    kind: Kind
    topic: str
    partition: int
    offset: int

    def line(self) -> str:
        return f"{self.kind:<9} {self.topic}/{self.partition} offset {self.offset}: {MEANINGS[self.kind]}"


class Partition(NamedTuple):
    """The result for one log."""

    topic: str
    partition: int
    table: Total
    log_rows: int  # in the log, of the same offsets
    differs: bool
    unknown: HeldRange | None  # offsets that are no longer in the log
    ahead: int  # records in the log after the last one of the table, and after those that the query has passed
    passed: int = 0  # the offset up to which the query has read, if that is after the table's end

    @property
    def code(self) -> int:
        return DIFFERS if self.differs else CANNOT_TELL if self.unknown else EXACT

    def line(self) -> str:
        first, last, rows, checksum = self.table
        held = f"offsets {first}–{last}, {rows:,} rows, checksum {checksum:016x}" if rows else "no rows"
        text = f"{self.topic}/{self.partition}: {held}: {_VERDICTS[self.code]}"
        if self.differs:
            text += f" (the log has {self.log_rows:,} rows there)"
        if self.passed:
            text += f"; the query has read up to offset {self.passed - 1}"
        if self.unknown:
            text += f"; offsets {self.unknown.first}–{self.unknown.last} are no longer in the log"
        if self.ahead:
            text += f"; {self.ahead:,} newer in the log"
        return text


class AuditReport(NamedTuple):
    """The whole report. `problems` are about the table's own files; `counts` has the number of mismatches of each kind,
    or a lower bound if `more` is set."""

    partitions: tuple[Partition, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    counts: Mapping[Kind, int] = {}
    more: bool = False
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 0 exact, 1 differs, 2 cannot tell."""
        if self.problems or any(log.differs for log in self.partitions):
            return DIFFERS
        return CANNOT_TELL if self.doubts or any(log.unknown for log in self.partitions) else EXACT

    def lines(self) -> list[str]:
        lines = [log.line() for log in self.partitions]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"doubt: {doubt}" for doubt in self.doubts]
        lines += [mismatch.line() for mismatch in self.mismatches]
        at_least = "at least " if self.more else ""
        total = sum(self.counts.values())
        if total > len(self.mismatches):
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
            lines.append(f"… {at_least}{total:,} in all: {kinds}")
        return [*lines, self.verdict()]

    def verdict(self) -> str:
        rows = sum(log.table.rows for log in self.partitions)
        logs = len(self.partitions)
        if self.code == EXACT:
            return f"verdict: exact. {rows:,} rows of {logs} partitions are what the log holds, each once"
        if self.code == DIFFERS:
            return "verdict: the table DIFFERS from the log"
        return "verdict: cannot tell. What can be compared is exact; the rest is no longer in the log"


def whole(buckets: Mapping[BucketName, Total]) -> dict[LogName, Total]:
    """The totals of each log from those of its buckets."""
    totals: dict[LogName, Total] = {}
    for (topic, partition, _), total in buckets.items():
        other = totals.get((topic, partition))
        totals[topic, partition] = total if other is None else _sum(total, other)
    return totals


def _sum(one: Total, other: Total) -> Total:
    checksum = (one.checksum + other.checksum) % CHECKSUM_MODULUS
    return Total(min(one.first, other.first), max(one.last, other.last), one.rows + other.rows, checksum)


def with_passed(
    table: Mapping[LogName, Total], first: Mapping[LogName, int], end: Mapping[LogName, int]
) -> dict[LogName, Total]:
    """The totals of the table, with empty ones for logs of which a query has passed [first, end) and the table holds
    nothing."""
    absent = {log: Total(first[log], first[log] - 1, 0, 0) for log in end if log not in table and first[log] < end[log]}
    return {**table, **absent}


def comparable(
    table: Mapping[LogName, Total], log: Mapping[LogName, Extent], passed: Mapping[LogName, int] = NOTHING_PASSED
) -> dict[LogName, Extent]:
    """The offsets that can be compared: from the table's first, or the log's start if that is later, to the table's
    last, or to where the query has read if that is later. Empty if retention has trimmed all of it; a log that is gone
    is left out."""
    ranges = {}
    for name, total in table.items():
        extent = log.get(name)
        if extent is not None:
            start = max(total.first, extent.start)
            end = max(total.last + 1, passed.get(name, 0))
            ranges[name] = Extent(start, max(start, min(end, extent.end)))
    return ranges


def differing(table: Mapping[BucketName, Total], log: Mapping[BucketName, Total]) -> list[BucketName]:
    """Buckets whose count or checksum differ."""
    return sorted(
        name
        for name in table.keys() | log.keys()
        if name not in table or name not in log or table[name][2:] != log[name][2:]
    )


def partition_results(
    table: Mapping[LogName, Total],
    log: Mapping[LogName, Extent],
    log_rows: Mapping[LogName, int],
    different: Iterable[BucketName],
    passed: Mapping[LogName, int] = NOTHING_PASSED,
) -> tuple[Partition, ...]:
    differing_logs = {(topic, partition) for topic, partition, _ in different}
    return tuple(
        _partition_result(
            name, table[name], log.get(name), log_rows.get(name, 0), name in differing_logs, passed.get(name, 0)
        )
        for name in sorted(table)
    )


def _partition_result(
    name: LogName, total: Total, extent: Extent | None, log_rows: int, differs: bool, passed: int
) -> Partition:
    end = max(total.last + 1, passed)
    passed = passed if passed > total.last + 1 else 0
    if extent is None:
        return Partition(*name, total, 0, differs, HeldRange(total.first, end - 1), 0, passed)
    gone_until = min(extent.start, end)
    unknown = HeldRange(total.first, gone_until - 1) if gone_until > total.first else None
    return Partition(*name, total, log_rows, differs, unknown, max(0, extent.end - max(end, extent.start)), passed)
