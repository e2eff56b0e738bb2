"""What an audit found, and what it means: pure, from counts and checksums to a verdict that people can read.

Exact: the table holds what the log holds, no more, no less, no other. Differs: it does not, and here is where. Cannot
tell: the log itself is not there any more for a part of it, so nobody can. Knows no Spark and no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from driftq.spark.tables.ledger import CHECKSUM_MODULUS, HeldRange

EXACT, DIFFERS, CANNOT_TELL = 0, 1, 2
_WORDS = {EXACT: "exact", DIFFERS: "DIFFERS", CANNOT_TELL: "cannot tell"}

LogName = tuple[str, int]
BucketName = tuple[str, int, int]
Kind = Literal["missing", "extra", "repeated", "changed"]
MEANINGS: dict[Kind, str] = {
    "missing": "in the log, not in the table",
    "extra": "in the table, not in the log",
    "repeated": "in the table more than once",
    "changed": "key or value are not those of the log",
}


class Total(NamedTuple):
    """Rows of a log, or of a part of it."""

    first: int
    last: int
    rows: int
    checksum: int


class Extent(NamedTuple):
    """What the log holds now: from `start`, up to `end` without it."""

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
    """One log: what the table has, what the log has of the same offsets, and what nobody can say any more."""

    topic: str
    partition: int
    table: Total
    log_rows: int
    differs: bool
    unknown: HeldRange | None
    ahead: int

    @property
    def code(self) -> int:
        return DIFFERS if self.differs else CANNOT_TELL if self.unknown else EXACT

    def line(self) -> str:
        first, last, rows, checksum = self.table
        said = f"{self.topic}/{self.partition}: offsets {first}–{last}, {rows:,} rows, checksum {checksum:016x}: "
        said += _WORDS[self.code]
        if self.differs:
            said += f" (the log has {self.log_rows:,} rows there)"
        if self.unknown:
            said += f"; offsets {self.unknown.first}–{self.unknown.last} are not in the log any more"
        if self.ahead:
            said += f"; {self.ahead:,} newer in the log"
        return said


class AuditReport(NamedTuple):
    """The whole. `problems` are about the table's own files; `counts` say how many mismatches there are of a kind, at
    least so many when `more` is set."""

    partitions: tuple[Partition, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    counts: Mapping[Kind, int] = {}
    more: bool = False
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """What a process exits with: 0 exact, 1 differs, 2 cannot tell."""
        if self.problems or any(each.differs for each in self.partitions):
            return DIFFERS
        return CANNOT_TELL if self.doubts or any(each.unknown for each in self.partitions) else EXACT

    def lines(self) -> list[str]:
        lines = [each.line() for each in self.partitions]
        lines += [f"problem: {each}" for each in self.problems]
        lines += [f"doubt: {each}" for each in self.doubts]
        lines += [each.line() for each in self.mismatches]
        least = "at least " if self.more else ""
        told = sum(self.counts.values())
        if told > len(self.mismatches):
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
            lines.append(f"… {least}{told:,} in all: {kinds}")
        return [*lines, self.verdict()]

    def verdict(self) -> str:
        rows = sum(each.table.rows for each in self.partitions)
        logs = len(self.partitions)
        if self.code == EXACT:
            return f"verdict: exact. {rows:,} rows of {logs} partitions are what the log holds, each once"
        if self.code == DIFFERS:
            return "verdict: the table DIFFERS from the log"
        return "verdict: cannot tell. What can be compared is exact; the rest is not in the log any more"


def whole(buckets: Mapping[BucketName, Total]) -> dict[LogName, Total]:
    """The totals of each log from those of its buckets."""
    found: dict[LogName, Total] = {}
    for (topic, partition, _), total in buckets.items():
        other = found.get((topic, partition))
        found[topic, partition] = total if other is None else joined(total, other)
    return found


def joined(one: Total, other: Total) -> Total:
    checksum = (one.checksum + other.checksum) % CHECKSUM_MODULUS
    return Total(min(one.first, other.first), max(one.last, other.last), one.rows + other.rows, checksum)


def comparable(table: Mapping[LogName, Total], log: Mapping[LogName, Extent]) -> dict[LogName, Extent]:
    """The offsets that table and log may both have: from the table's first, or the log's where it begins later, up to
    the table's last. Empty where retention has passed all of it, or where the log is gone."""
    found = {}
    for name, total in table.items():
        extent = log.get(name)
        if extent is not None:
            start = max(total.first, extent.start)
            found[name] = Extent(start, max(start, min(total.last + 1, extent.end)))
    return found


def differing(table: Mapping[BucketName, Total], log: Mapping[BucketName, Total]) -> list[BucketName]:
    """Buckets whose rows are not the same: another count or another checksum."""
    return sorted(
        name
        for name in table.keys() | log.keys()
        if name not in table or name not in log or table[name][2:] != log[name][2:]
    )


def judged(
    table: Mapping[LogName, Total],
    log: Mapping[LogName, Extent],
    log_rows: Mapping[LogName, int],
    different: Iterable[BucketName],
) -> tuple[Partition, ...]:
    wrong = {(topic, partition) for topic, partition, _ in different}
    return tuple(
        _judged(name, table[name], log.get(name), log_rows.get(name, 0), name in wrong) for name in sorted(table)
    )


def _judged(name: LogName, total: Total, extent: Extent | None, log_rows: int, wrong: bool) -> Partition:
    if extent is None:
        return Partition(*name, total, 0, wrong, HeldRange(total.first, total.last), 0)
    gone = min(extent.start, total.last + 1)
    unknown = HeldRange(total.first, gone - 1) if gone > total.first else None
    return Partition(*name, total, log_rows, wrong, unknown, max(0, extent.end - max(total.last + 1, extent.start)))
