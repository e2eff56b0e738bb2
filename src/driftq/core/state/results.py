"""Results of jobs, and the reports of those that run. Both are bounded, and nothing is stored for a job without one.

    ResultTable     by (group, log, offset): stored in the frame of the end, expires after its TTL
    ReportTable     by the same key, for messages that are not settled: the last report of their worker

Both forget their oldest entries when all of them together are too large. `ResultTable.forgotten_ms` is the time up to
which some results are gone: for a job that ended after it, no entry means that there was no result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from driftq.core.model.job_facts import ProgressReported, ResultsForgotten, ResultStored

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.ranges import Range
    from driftq.core.state.deadlines import Deadlines

RESULTS_BYTES_MAX = 256 << 20
PROGRESS_BYTES_MAX = 64 << 20
ENTRY_BYTES = 400  # the cost of an entry without its contents
SWEEP_EVERY_MS = 10_000  # expired results are dropped together, this often
_END = 1 << 62

Stored = TypeVar("Stored", ResultStored, ProgressReported)
Key = tuple[int, int, int]  # group, log, offset


class _Entries(Generic[Stored]):
    """Facts about single messages, in the order in which they were stored, and by group and log."""

    __slots__ = ("_by_group", "_in_order")

    def __init__(self) -> None:
        self._in_order: OrderedDict[Key, Stored] = OrderedDict()
        self._by_group: dict[int, dict[int, dict[int, None]]] = {}  # by group and log: the offsets that have an entry

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Stored]:
        return iter(self._in_order.values())

    def get(self, key: Key) -> Stored | None:
        return self._in_order.get(key)

    def first(self) -> Stored | None:
        return next(iter(self._in_order.values()), None)

    def put(self, fact: Stored) -> Stored | None:
        """Add an entry as the newest. Returns the one that it replaces."""
        replaced = self.pop((fact.group_id, fact.log_id, fact.offset))
        self._in_order[fact.group_id, fact.log_id, fact.offset] = fact
        logs = self._by_group.setdefault(fact.group_id, {})
        logs.setdefault(fact.log_id, {})[fact.offset] = None
        return replaced

    def pop(self, key: Key) -> Stored | None:
        entry = self._in_order.pop(key, None)
        if entry is not None:
            group_id, log_id, offset = key
            logs = self._by_group[group_id]
            del logs[log_id][offset]
            if not logs[log_id]:
                del logs[log_id]
                if not logs:
                    del self._by_group[group_id]
        return entry

    def logs_of(self, group_id: int) -> list[int]:
        """The logs of which a group has entries."""
        return list(self._by_group.get(group_id, ()))

    def pop_within(self, group_id: int, log_id: int, first: int, end: int) -> Iterator[Stored]:
        """Remove the entries of a range. Costs as much as the smaller one: the range, or what the log has."""
        offsets = self._by_group.get(group_id, {}).get(log_id)
        if offsets is None:
            return
        candidates = range(first, end) if end - first < len(offsets) else sorted(offsets)
        for offset in candidates:
            if first <= offset < end:
                entry = self.pop((group_id, log_id, offset))
                if entry is not None:
                    yield entry


class ResultTable:
    """The results of jobs."""

    __slots__ = ("_deadlines", "_entries", "folds", "forgotten_ms", "size_bytes")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._entries: _Entries[ResultStored] = _Entries()
        self.size_bytes = 0
        self.forgotten_ms = 0
        self.folds: dict[type, Callable[[Any], None]] = {ResultStored: self._store, ResultsForgotten: self._forget}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, group_id: int, log_id: int, offset: int, now_ms: int) -> ResultStored | None:
        result = self._entries.get((group_id, log_id, offset))
        return result if result is not None and result.expires_ms > now_ms else None

    def of(self, group_id: int, log_id: int, offset: int) -> ResultStored | None:
        """The result of a message, whether it has expired or not."""
        return self._entries.get((group_id, log_id, offset))

    def expired(self, now_ms: int, limit: int) -> int:
        """How many of the oldest have expired; at most `limit` are counted."""
        count = 0
        for result in islice(self._entries, limit):
            if result.expires_ms > now_ms:
                break
            count += 1
        return count

    def next_ms(self) -> int | None:
        """When to sweep expired ones."""
        oldest = self._entries.first()
        return (oldest.expires_ms // SWEEP_EVERY_MS + 1) * SWEEP_EVERY_MS if oldest is not None else None

    def _store(self, fact: ResultStored) -> None:
        replaced = self._entries.put(fact)
        self.size_bytes += _result_bytes(fact) - (_result_bytes(replaced) if replaced is not None else 0)
        while self.size_bytes > RESULTS_BYTES_MAX and len(self._entries) > 1:
            self._forget_oldest()
        self._deadlines.push(("results", 0, 0), self.next_ms())

    def _forget(self, fact: ResultsForgotten) -> None:
        for _ in range(fact.count):
            self._forget_oldest()
        self.forgotten_ms = max(self.forgotten_ms, fact.until_ms)

    def _forget_oldest(self) -> None:
        oldest = self._entries.first()
        assert oldest is not None, "more results are forgotten than there are"
        self._entries.pop((oldest.group_id, oldest.log_id, oldest.offset))
        self.size_bytes -= _result_bytes(oldest)
        self.forgotten_ms = max(self.forgotten_ms, oldest.at_ms)

    def seek(self, group_id: int, log_id: int, offset: int) -> None:
        """A group gets the messages from an offset on again: their results do not count any more."""
        for result in self._entries.pop_within(group_id, log_id, offset, _END):
            self.size_bytes -= _result_bytes(result)

    def drop_group(self, group_id: int) -> None:
        """The group is gone."""
        for log_id in self._entries.logs_of(group_id):
            self.seek(group_id, log_id, 0)

    def snapshot(self) -> Iterator[Fact]:
        if self.forgotten_ms:
            yield ResultsForgotten(0, self.forgotten_ms)
        yield from self._entries


def _result_bytes(result: ResultStored) -> int:
    return ENTRY_BYTES + len(result.result) + len(result.traceback)


class ReportTable:
    """The last report of each message that is not settled."""

    __slots__ = ("_entries", "folds", "size_bytes")

    def __init__(self) -> None:
        self._entries: _Entries[ProgressReported] = _Entries()
        self.size_bytes = 0
        self.folds: dict[type, Callable[[Any], None]] = {ProgressReported: self._report}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, group_id: int, log_id: int, offset: int) -> ProgressReported | None:
        return self._entries.get((group_id, log_id, offset))

    def _report(self, fact: ProgressReported) -> None:
        replaced = self._entries.put(fact)
        self.size_bytes += _report_bytes(fact) - (_report_bytes(replaced) if replaced is not None else 0)
        while self.size_bytes > PROGRESS_BYTES_MAX and (oldest := self._entries.first()) is not None:
            self._entries.pop((oldest.group_id, oldest.log_id, oldest.offset))
            self.size_bytes -= _report_bytes(oldest)

    def settle(self, group_id: int, log_id: int, ranges: Iterable[Range]) -> None:
        """Messages were settled: how far they were does not matter any more."""
        for first, end in ranges:
            for report in self._entries.pop_within(group_id, log_id, first, end):
                self.size_bytes -= _report_bytes(report)

    def seek(self, group_id: int, log_id: int) -> None:
        """A group starts over in a log."""
        self.settle(group_id, log_id, ((0, _END),))

    def drop_group(self, group_id: int) -> None:
        """The group is gone."""
        for log_id in self._entries.logs_of(group_id):
            self.seek(group_id, log_id)

    def snapshot(self) -> Iterator[Fact]:
        yield from self._entries


def _report_bytes(report: ProgressReported) -> int:
    return ENTRY_BYTES + len(report.progress)
